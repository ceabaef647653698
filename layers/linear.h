// Fully connected layer:  y = x weightᵀ + bias.
#pragma once

#include <string>

#include "core/tape.h"

namespace heddle {

// x (..., I) f32 or bf16, weight (O, I), bias (O) or null -> (..., O) f32. bf16 is multiplied as
// bf16, with sums in fp32. With three axes, (T, B, I), each sample uses the weight T times. Throws
// InputError for an input of other columns or on another device.
Var linear(Tape& tape, const Var& x, Parameter& weight, Parameter* bias);

class Linear {
 public:
  // Parameters name.weight and name.bias, uniform in ±1/sqrt(in) as PyTorch initialises them.
  Linear(ParameterStore& store, const std::string& name, int64_t in, int64_t out, bool bias = true);
  Var forward(Tape& tape, const Var& x) const { return linear(tape, x, *weight, bias); }

  Parameter* weight;
  Parameter* bias = nullptr;
};

}  // namespace heddle
