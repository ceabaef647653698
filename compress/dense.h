// Dense exchange: the sum of all values by one all-reduce, without compression (family "none").
#pragma once

#include "comm/communicator.h"
#include "comm/ledger.h"
#include "compress/reducer.h"

namespace heddle {

// Sums a bucket's gradients over the ranks, in place, in `flat`; a value that is non-finite on one
// rank is non-finite in the sum. Booked in the ledger by parameter.
void sum_dense(const GradientBucket& bucket, const Tensor& flat, Communicator& comm,
               Ledger& ledger);

}  // namespace heddle
