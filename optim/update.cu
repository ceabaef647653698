// The optimizers' formulas, compiled for the CPU and for CUDA.
#include "optim/update.h"

#include <cmath>

#include "core/shared_kernel.h"

namespace heddle::HEDDLE_BACKEND {
namespace {

// Returns a * b + c, rounded once where the machine has the instruction: elsewhere fmaf is slow.
HEDDLE_HD inline float multiply_add(float a, float b, float c) {
#if defined(__CUDA_ARCH__) || defined(__FMA__)
  return fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

struct PlainSgd {
  float* w;
  const float* g;
  SgdStep s;
  HEDDLE_HD void operator()(int64_t i) const {
    const float gradient = multiply_add(s.weight_decay, w[i], s.grad_scale * g[i]);
    w[i] = multiply_add(-s.lr, gradient, w[i]);
  }
};

// Sutskever et al. 2013 in the form of torch.optim.SGD: the learning rate is outside the velocity.
// A velocity of zero makes the first step's velocity the gradient, as there. A gradient from a
// residual, which has summed it over steps already, moves the weights at once by all that momentum
// would move them in the following steps, and adds no velocity that later gradients could not
// reverse. Our own rule (docs/algorithms.md).
template <bool kNesterov, bool kResidual>
struct MomentumSgd {
  float* w;
  const float* g;
  float* velocity;
  SgdStep s;
  HEDDLE_HD void operator()(int64_t i) const {
    const float gradient =
        kResidual ? s.weight_decay * w[i] : multiply_add(s.weight_decay, w[i], s.grad_scale * g[i]);
    const float v = multiply_add(s.momentum, velocity[i], gradient);
    velocity[i] = v;
    const float step = kNesterov ? multiply_add(s.momentum, v, gradient) : v;
    w[i] = multiply_add(-s.lr, kResidual ? multiply_add(s.grad_scale, g[i], step) : step, w[i]);
  }
};

// Kingma and Ba 2015, algorithm 1; Loshchilov and Hutter 2019, algorithm 2 for the decoupled decay.
struct Adam {
  float* w;
  const float* g;
  float* first;
  float* second;
  AdamStep s;
  HEDDLE_HD void operator()(int64_t i) const {
    const float gradient = multiply_add(s.weight_decay, w[i], s.grad_scale * g[i]);
    const float m = multiply_add(s.beta1, first[i], s.rest1 * gradient);
    const float v = multiply_add(s.beta2, second[i], s.rest2 * gradient * gradient);
    first[i] = m;
    second[i] = v;
    const float denominator = multiply_add(sqrtf(v), s.second_moment_scale, s.eps);
    w[i] = multiply_add(-s.step_size, m / denominator, s.shrink * w[i]);
  }
};

}  // namespace

void sgd(float* w, const float* g, float* velocity, int64_t n, const SgdStep& step) {
  if (velocity == nullptr)
    for_each_joined(n, PlainSgd{w, g, step});
  else if (step.from_residual && step.nesterov)
    for_each_joined(n, MomentumSgd<true, true>{w, g, velocity, step});
  else if (step.from_residual)
    for_each_joined(n, MomentumSgd<false, true>{w, g, velocity, step});
  else if (step.nesterov)
    for_each_joined(n, MomentumSgd<true, false>{w, g, velocity, step});
  else
    for_each_joined(n, MomentumSgd<false, false>{w, g, velocity, step});
}

void adam(float* w, const float* g, float* first_moment, float* second_moment, int64_t n,
          const AdamStep& step) {
  for_each_joined(n, Adam{w, g, first_moment, second_moment, step});
}

}  // namespace heddle::HEDDLE_BACKEND
