// Sparse exchange in which all ranks send the elements at the same indices, so that the sum over
// ranks of what is sent is what would be sent of the sum: one all-reduce of the values is enough,
// and a learner's traffic does not grow with their number. ScaleCom (scalecom.cpp) and random-k
// (random_k.cpp) differ in who chooses the indices.
//
//   return sum_at_indices(e, *feedback_, indices);   // at the end of exchange()
#pragma once

#include <vector>

#include "compress/error_feedback.h"
#include "compress/exchange.h"

namespace heddle {

// Gathers each item's values at `indices` ((k) i32 for each compressed item, on the items' device,
// the same on all ranks), sums them and the dense tensors over the ranks, keeps what was not sent
// in the residuals, and scatters the sums into item.sum. Returns false on all ranks, having written
// nothing, as all_reduce() does.
bool sum_at_indices(Exchange& e, ErrorFeedback& feedback, const std::vector<Tensor>& indices);

}  // namespace heddle
