// Dense exchange: the sum of all values by one all-reduce, without compression (family "none").
#pragma once

#include "comm/communicator.h"
#include "comm/ledger.h"
#include "compress/reducer.h"

namespace heddle {

// Sums a bucket's gradients as they are: not finite in the sum where they are not on one rank.
void sum_dense(const GradientBucket& bucket, const Tensor& flat, Communicator& comm,
               Ledger& ledger);

}  // namespace heddle
