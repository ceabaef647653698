// Pooling over windows of a (N, C, H, W) map.
#pragma once

#include "core/tape.h"

namespace heddle {

struct PoolOptions {
  int64_t kernel = 2, stride = 2, padding = 0;
};

// (N, C, H, W) -> (N, C, P, Q), P = (H + 2*padding - kernel)/stride + 1. Padding is -infinity; of
// equal values the first one gets the gradient. On the CPU a NaN counts only as the first value of
// its window (oneDNN's comparison). Needs padding <= kernel/2.
Var max_pool2d(Tape& tape, const Var& x, const PoolOptions& options);

// Mean over each map: (N, C, H, W) -> (N, C).
Var global_average_pool(Tape& tape, const Var& x);

enum class PoolKind { max, average };  // average: padding counts as zeros

// The backends. `workspace` carries what max pooling's backward needs.
#define HEDDLE_POOLING                                                                           \
  Tensor pool_forward(PoolKind kind, const Tensor& x, const Tensor& y, int64_t kernel_h,         \
                      int64_t kernel_w, int64_t stride, int64_t padding);                        \
  void pool_backward(PoolKind kind, const Tensor& dy, const Tensor& workspace, const Tensor& dx, \
                     int64_t kernel_h, int64_t kernel_w, int64_t stride, int64_t padding);
HEDDLE_BACKENDS(HEDDLE_POOLING)
#undef HEDDLE_POOLING

}  // namespace heddle
