// The kernels of optim/update_rule.h: one pass over a slice of the flat buffers on one device. They
// trust their arguments. Internal.
//
// Every multiply-add is written as one fused operation, so that an element's result depends neither
// on where the slice begins and ends nor, on a CPU that has it, on the device.
#pragma once

#include <cstdint>

namespace heddle {

struct SgdStep {
  float lr, momentum, weight_decay, grad_scale;
  bool nesterov;
  bool from_residual;  // velocity: weight decay only; grad_scale includes 1 / (1 - momentum)
};

struct AdamStep {
  float beta1, beta2, eps;
  float rest1, rest2;         // 1 - beta1, 1 - beta2, rounded once
  float step_size;            // lr / (1 - beta1^t)
  float second_moment_scale;  // 1 / sqrt(1 - beta2^t)
  float weight_decay;         // added to the gradient (Adam); 0 for AdamW
  float shrink;  // the weight's factor before the step: 1 - lr * weight decay (AdamW), or 1
  float grad_scale;
};

// Updates w in place. w, g and the state have n elements each and do not overlap; `velocity` is
// null without momentum.
namespace cpu {
void sgd(float* w, const float* g, float* velocity, int64_t n, const SgdStep& step);
void adam(float* w, const float* g, float* first_moment, float* second_moment, int64_t n,
          const AdamStep& step);
}  // namespace cpu

namespace cuda {
void sgd(float* w, const float* g, float* velocity, int64_t n, const SgdStep& step);
void adam(float* w, const float* g, float* first_moment, float* second_moment, int64_t n,
          const AdamStep& step);
}  // namespace cuda

}  // namespace heddle
