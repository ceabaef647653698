// Layer normalisation over the last axis (Ba et al., 2016), as torch.nn.LayerNorm computes it:
//   y = weight * (x - mean) / sqrt(variance + eps) + bias, mean and variance of each row
#pragma once

#include <string>

#include "core/tape.h"

namespace heddle {

class LayerNorm {
 public:
  // Parameters name.weight (C), initially 1, and name.bias (C), initially 0. Throws InputError for
  // no columns.
  LayerNorm(ParameterStore& store, const std::string& name, int64_t columns);
  // x (..., C) f32 or bf16 -> same, in plain layout; sums in f32. The variance is that of the row
  // itself (divided by C). Throws InputError for another C or type.
  Var forward(Tape& tape, const Var& x) const;

  Parameter *weight, *bias;
  float eps = 1e-5f;
};

}  // namespace heddle
