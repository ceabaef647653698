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
};

// Throws dnnl::error if oneDNN does not offer this algorithm for the problem.
ConvPlan make_conv_plan(const ConvProblem& problem, dnnl::algorithm algorithm);

}  // namespace heddle::cpu
