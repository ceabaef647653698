// Pooling over windows of an (N, C, H, W) map.
#pragma once

#include "core/tape.h"

namespace heddle {

struct PoolOptions {
  int64_t kernel = 2, stride = 2, padding = 0;
};

// A byte holds the position of a window's largest value; and oneDNN 2.6 computes wrong gradients
// for larger windows of bf16 maps with channels last.
constexpr int64_t kMaxPoolKernel = 15;

// (N, C, H, W), f32 or bf16 -> (N, C, P, Q), P = (H + 2*padding - kernel)/stride + 1. Padding is
// -infinity; of equal values the first one gets the gradient. A NaN counts only as the first value
// of its window (oneDNN's comparison). Throws InputError unless kernel <= kMaxPoolKernel, padding
// <= kernel/2 and the padded map holds a window.
Var max_pool2d(Tape& tape, const Var& x, const PoolOptions& options);

// Averages each map: (N, C, H, W) -> (N, C). f32 or bf16.
Var global_average_pool(Tape& tape, const Var& x);

// Returns the maps of each sample as one row: (N, C, H, W) -> (N, C*H*W), in the order of plain
// tensors. f32 or bf16.
Var flatten(Tape& tape, const Var& x);

}  // namespace heddle
