#include "compress/error_feedback.h"

#include "compress/magnitude.h"
#include "core/kernels.h"
#include "core/parallel.h"

namespace heddle {
namespace {

// m = m + g, and g = m as it was; the largest |m + g|.
Largest exchange_sum(float* g, float* m, int64_t n) {
  return find_largest(n, [=]<int kLanes>(int64_t i) {
    using L = Lanes<kLanes>;
    const auto residual = L::load(m + i), sum = L::load(g + i) + residual;
    L::store(g + i, residual);
    L::store(m + i, sum);
    return sum;
  });
}

}  // namespace

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

Absorbed ErrorFeedback::absorb(const std::string& name, const Tensor& g, int64_t chunk) {
  const int64_t n = g.size(), chunks = (n + chunk - 1) / chunk;
  Absorbed out{residual(name, n), Indices(static_cast<size_t>(chunks)), 0};
  std::vector<uint32_t> magnitudes(static_cast<size_t>(chunks));
  float *gradient = g.data<float>(), *x = out.x.data<float>();
  parallel_for(chunks, std::max<int64_t>(1, 16384 / chunk), [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      const int64_t at = c * chunk;
      const Largest largest = exchange_sum(gradient + at, x + at, std::min(chunk, n - at));
      out.largest[static_cast<size_t>(c)] = static_cast<uint32_t>(at) + largest.place;
      magnitudes[static_cast<size_t>(c)] = largest.magnitude;
    }
  });
  for (const uint32_t magnitude : magnitudes) out.magnitude = std::max(out.magnitude, magnitude);
  return out;
}

void ErrorFeedback::keep_unsent(const std::string& name, const Tensor& g, const Indices& sent) {
  float* x = residual(name, g.size()).data<float>();
  for (const uint32_t i : sent) x[i] = 0;
  if (beta_ < 1) {
    const float* m = g.data<float>();
    const auto beta = static_cast<float>(beta_), rest = static_cast<float>(1 - beta_);
    parallel_for(g.size(), 8192, [=](int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) x[i] = rest * m[i] + beta * x[i];
    });
  }
  g.fill_zero();
}

void ErrorFeedback::undo(const std::string& name, const Tensor& g) {
  residual(name, g.size()).copy_from(g);
}

void ErrorFeedback::owe(const std::string& name, const Tensor& x, double share) {
  axpy(static_cast<float>(beta_ * share), x, residual(name, x.size()));
}

void ErrorFeedback::sent_all(const std::string& name) {
  if (!holds(name)) return;
  if (beta_ < 1)
    scale(residuals_.at(name), static_cast<float>(1 - beta_));
  else
    residuals_.at(name).fill_zero();
}

}  // namespace heddle
