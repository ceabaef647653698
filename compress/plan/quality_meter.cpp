#include "compress/plan/quality_meter.h"

#include <cmath>
#include <limits>
#include <utility>

#include "core/kernels.h"

namespace heddle {
namespace {

// Returns the sum of term(x_i, y_i), in double.
template <class Term>
double sum_of(const Tensor& x, const Tensor& y, const Term& term) {
  double sum = 0;
  for (int64_t i = 0; i < x.size(); ++i)
    sum += term(double{x.data<float>()[i]}, double{y.data<float>()[i]});
  return sum;
}

double product(double x, double y) { return x * y; }
double squared_difference(double x, double y) { return (x - y) * (x - y); }

double quotient(double x, double y) { return y > 0 ? x / y : 0.0; }

Tensor host_gradient(const Parameter& p) { return p.grad.to(Device{}).reshape({p.size()}); }

// Returns how many of the best indices were not sent: there the compressed sum is zero.
int64_t count_missed(const Indices& best, const Tensor& all, const Tensor& sent) {
  int64_t missed = 0;
  for (const uint32_t i : best) missed += all.data<float>()[i] != 0 && sent.data<float>()[i] == 0;
  return missed;
}

}  // namespace

void QualityMeter::before(const GradientBucket& bucket, Communicator& comm, Ledger& ledger) {
  bucket_.clear();
  int64_t n = 0;
  for (const Parameter* p : bucket.parameters)
    if (reducer_.compresses(p->name)) n += p->size();
  if (n == 0) return;
  // All layers' gradients, then, if there are residuals, gradients with residuals: one all-reduce.
  const bool residuals = reducer_.keeps_residuals();
  const Tensor payload = Tensor::empty_on(Device{}, {residuals ? 2 * n : n});
  int64_t at = 0;
  for (const Parameter* p : bucket.parameters) {
    if (!reducer_.compresses(p->name)) continue;
    Seen seen{p, payload.slice(at, at + p->size()), {}, 0, 0};
    seen.all = residuals ? payload.slice(n + at, n + at + p->size()) : seen.gradients;
    seen.gradients.copy_from(host_gradient(*p));
    if (residuals) {
      seen.all.copy_from(seen.gradients);
      reducer_.feedback()->compensate(p->name, seen.all);
    }
    seen.own_gradient = squared_norm(seen.gradients);
    seen.own = squared_norm(seen.all);
    bucket_.push_back(std::move(seen));
    at += p->size();
  }
  ledger.book(comm, {{"quality", PayloadKind::control, payload.bytes()}},
              [&] { comm.all_reduce(payload); });
}

void QualityMeter::after(Communicator& comm, Ledger& ledger, bool accepted) {
  const std::vector<Seen> layers = std::exchange(bucket_, {});
  if (!accepted || layers.empty()) return;
  ErrorFeedback* feedback = reducer_.feedback();
  const Tensor squares = Tensor::empty_on(Device{}, {std::ssize(layers), 3});
  float* at = squares.data<float>();
  for (const Seen& seen : layers) {
    *at++ = to_float(seen.own);
    *at++ = to_float(seen.own_gradient);
    const Parameter& p = *seen.parameter;
    *at++ =
        feedback == nullptr ? 0.0f : to_float(squared_norm(feedback->residual(p.name, p.size())));
  }
  ledger.book(comm, {{"quality", PayloadKind::control, squares.bytes()}},
              [&] { comm.all_reduce(squares); });
  at = squares.data<float>();
  const double ranks = comm.size(), beta = feedback == nullptr ? 1.0 : feedback->beta();
  for (const Seen& seen : layers) {
    const Tensor sent = host_gradient(*seen.parameter);
    const double all = squared_norm(seen.all), own = *at++, own_gradient = *at++, residual = *at++;
    LayerQuality out{
        .name = seen.parameter->name,
        .contraction = quotient(sum_of(seen.all, sent, squared_difference), all),
        .cosine = quotient(sum_of(sent, seen.gradients, product),
                           std::sqrt(squared_norm(sent)) * std::sqrt(squared_norm(seen.gradients))),
        .residual_norm = std::sqrt(residual / ranks) / beta,
        .gradient_norm = std::sqrt(own_gradient / ranks),
        .energy = own,
        .correlation = ranks > 1 ? quotient(all - own, (ranks - 1) * own) : 1.0,
        .mismatch = std::numeric_limits<double>::quiet_NaN(),
        .bound = std::numeric_limits<double>::quiet_NaN()};
    const Indices best = reducer_.selection(out.name, seen.all);
    if (!best.empty()) {
      const double rho = 1 - kept_energy(elements(seen.all), best);
      out.mismatch = to_double(count_missed(best, seen.all, sent)) / to_double(best.size());
      out.bound = out.mismatch + (1 - out.mismatch) * rho;
    }
    measured_.push_back(out);
  }
}

std::vector<LayerQuality> QualityMeter::take() { return std::exchange(measured_, {}); }

}  // namespace heddle
