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

void ErrorFeedback::compensate(const std::string& name, const Tensor& x) {
  axpy(1, residual(name, x.size()), x);
}

void ErrorFeedback::keep_unsent(const std::string& name, const Tensor& x, const Indices& sent) {
  float* m = residual(name, x.size()).data<float>();
  float* unsent = x.data<float>();
  for (const uint32_t i : sent) unsent[i] = 0;
  const auto beta = static_cast<float>(beta_), rest = static_cast<float>(1 - beta_);
  parallel_for(x.size(), 8192, [=](int64_t begin, int64_t end) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) {
      m[i] = rest == 0 ? unsent[i] : rest * m[i] + beta * unsent[i];
      unsent[i] = 0;
    }
  });
}

void ErrorFeedback::owe(const std::string& name, const Tensor& x, double share) {
  axpy(static_cast<float>(beta_ * share), x, residual(name, x.size()));
}

void ErrorFeedback::clear(const std::string& name) {
  if (holds(name)) residuals_.at(name).fill_zero();
}

}  // namespace heddle
