#include "compress/error_feedback.h"

#include "compress/codecs/magnitude.h"
#include "compress/codecs/sparse_kernels.h"
#include "core/kernels.h"
#include "core/parallel.h"
#include "core/shared_kernel.h"

namespace heddle {

Tensor ErrorFeedback::residual(const std::string& name, int64_t n, Device device) {
  Tensor& m = residuals_[name];
  if (!m.defined()) {
    m = Tensor::empty_on(device, {n});
    m.fill_zero();
  }
  // The text of the error takes longer than the comparison.
  if (m.shape() != Shape{n}) check_shape(m, {n}, "residual of " + name);
  return m = m.to(device);
}

void ErrorFeedback::compensate(const std::string& name, const Tensor& x) {
  axpy(1, residual(name, x.size(), x.device()), x);
}

Compensated ErrorFeedback::compensate_swapping(const std::string& name, const Tensor& g,
                                               int64_t chunk) {
  const Device device = g.device();
  const Shape chunks = {ceil_div(g.size(), chunk)};
  Compensated out{residual(name, g.size(), device), g, Tensor::empty_on(device, chunks, DType::i32),
                  Tensor::empty_on(device, chunks, DType::i32)};
  HEDDLE_DISPATCH(device, add_and_swap(g, out.x, chunk, out.indices, out.magnitudes));
  return out;
}

void ErrorFeedback::keep_unsent(const std::string& name, const Tensor& old_residual,
                                const Tensor& sent, const Tensor& lost) {
  remove_sent(name, old_residual, sent, lost);
  renew(name, old_residual);
}

void ErrorFeedback::remove_sent(const std::string& name, const Tensor& old_residual,
                                const Tensor& sent, const Tensor& lost) {
  const Device device = old_residual.device();
  const Tensor x = residual(name, old_residual.size(), device);
  if (lost.defined())
    HEDDLE_DISPATCH(device, scatter(lost, sent, x));
  else
    HEDDLE_DISPATCH(device, scatter_value(0, sent, x));
}

void ErrorFeedback::renew(const std::string& name, const Tensor& old_residual) {
  const Device device = old_residual.device();
  const Tensor x = residual(name, old_residual.size(), device);
  if (beta_ < 1)
    HEDDLE_DISPATCH(device, low_pass(old_residual, x, beta_));
  else
    HEDDLE_DISPATCH(device, clear_words(old_residual));
}

void ErrorFeedback::restore(const std::string& name, const Tensor& old_residual) {
  residual(name, old_residual.size(), old_residual.device()).copy_from(old_residual);
}

void ErrorFeedback::return_unapplied(const std::string& name, const Tensor& x, double share) {
  axpy(to_float(beta_ * share), x, residual(name, x.size(), x.device()));
}

void ErrorFeedback::mark_sent_whole(const std::string& name) {
  // Well above denormal numbers, which slow processors down.
  constexpr float kNegligible = 1e-20f;
  if (!holds(name)) return;
  const Tensor& m = residuals_.at(name);
  if (beta_ < 1) scale(m, to_float(1 - beta_));
  if (beta_ == 1 || largest_magnitude_of({m}) < magnitude(kNegligible)) residuals_.erase(name);
}

}  // namespace heddle
