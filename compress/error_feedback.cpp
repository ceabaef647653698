#include "compress/error_feedback.h"

#include "core/kernels.h"
#include "core/parallel.h"

namespace heddle {

void ErrorFeedback::set_beta(double beta) {
  check(beta > 0 && beta <= 1, "beta: expected a number above 0 up to 1, found ", beta);
  for (auto& [name, m] : residuals_) scale(m, static_cast<float>(beta / beta_));
  beta_ = beta;
}

Tensor ErrorFeedback::residual(const std::string& name, int64_t n) {
  Tensor& m = residuals_[name];
  if (!m.defined()) {
    m = Tensor::empty_on(Device{}, {n});
    m.fill_zero();
  }
  check_shape(m, {n}, "residual of " + name);
  return m;
}

void ErrorFeedback::compensate(const std::string& name, float* x, int64_t n) {
  const float* m = residual(name, n).data<float>();
  parallel_for(n, 8192, [=](int64_t begin, int64_t end) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) x[i] += m[i];
  });
}

void ErrorFeedback::keep_unsent(const std::string& name, float* x, int64_t n, const Indices& sent) {
  float* m = residual(name, n).data<float>();
  for (const uint32_t i : sent) x[i] = 0;
  const auto beta = static_cast<float>(beta_), rest = static_cast<float>(1 - beta_);
  parallel_for(n, 8192, [=](int64_t begin, int64_t end) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) {
      m[i] = rest == 0 ? x[i] : rest * m[i] + beta * x[i];
      x[i] = 0;
    }
  });
}

void ErrorFeedback::clear(const std::string& name) {
  if (holds(name)) residuals_.at(name).fill_zero();
}

}  // namespace heddle
