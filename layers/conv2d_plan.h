// oneDNN's primitives for convolutions on the CPU. Internal to layers/conv2d_cpu.cpp and to the
// benchmark of its choices.
#pragma once

#include <cstdint>

#include "core/onednn.h"
#include "layers/backend.h"

namespace heddle::cpu {

struct ConvProblem {
  ConvPass pass;
  dnnl::memory::desc x, w, y;  // x (N, C, H, W), y (N, O, P, Q); w (O, C, K, K) in any format
  dnnl::memory::dims stride, padding;
};

struct ConvPlan {
  Plan plan;
  dnnl::memory::desc x, w, y;  // as the primitive wants them; the gradient of w is f32
  bool reference = false;      // oneDNN has no optimised kernel for this problem
};

// Throws dnnl::error if oneDNN does not offer this algorithm for the problem.
ConvPlan make_conv_plan(const ConvProblem& problem, dnnl::algorithm algorithm);

// Returns the plan for maps x and y: Winograd where that pays, else direct; with copies of the maps
// as nhwc where oneDNN has only reference kernels for their own layouts. Throws InputError if
// neither exists.
ConvPlan choose_conv_plan(ConvPass pass, const Tensor& x, const Shape& w, const Tensor& y,
                          const Conv2dOptions& options);

}  // namespace heddle::cpu
