#include "compress/plan/gradient_window.h"

#include "core/kernels.h"

namespace heddle {
namespace {

void add_up(NamedTensors& bucket, std::map<std::string, Tensor>& sums) {
  for (const auto& [name, x] : bucket) {
    const auto [sum, first] = sums.emplace(name, x);
    if (!first) axpy(1, x, sum->second);
  }
  bucket.clear();
}

}  // namespace

double seconds_per_byte(const std::vector<TimedExchange>& exchanges) {
  const auto n = static_cast<double>(exchanges.size());
  double bytes = 0, seconds = 0;
  for (const TimedExchange& e : exchanges) {
    bytes += static_cast<double>(e.bytes);
    seconds += e.seconds;
  }
  if (bytes <= 0) return 0;
  double spread = 0, slope = 0;  // sums of x^2 and x y, x relative to its mean
  for (const TimedExchange& e : exchanges) {
    const double x = static_cast<double>(e.bytes) - bytes / n;
    spread += x * x;
    slope += x * e.seconds;
  }
  const double b = spread > 0 ? slope / spread : 0;
  return b > 0 && b * bytes <= seconds ? b : seconds / bytes;
}

void WindowRecorder::open(bool gradients) {
  window_.emplace();
  with_gradients_ = gradients;
}

GradientWindow WindowRecorder::close() {
  GradientWindow window = std::move(window_).value_or(GradientWindow{});
  if (with_gradients_ && window.gradients.empty())
    window.gradients = window.sums;  // there are no residuals
  window_.reset();
  return window;
}

void WindowRecorder::begin(const Ledger& ledger) {
  gradients_.clear();
  compensated_.clear();
  if (window_) start_ = {ledger.total().payload, ledger.seconds()};
}

void WindowRecorder::see_gradient(const std::string& layer, const Tensor& x) {
  if (window_ && with_gradients_) gradients_.emplace_back(layer, x.clone());
}

void WindowRecorder::see_compensated(const std::string& layer, const Tensor& x) {
  if (window_) compensated_.emplace_back(layer, x.clone());
}

void WindowRecorder::accept(const Ledger& ledger) {
  if (!window_) return;
  window_->exchanges.push_back(
      {ledger.total().payload - start_.bytes, ledger.seconds() - start_.seconds});
  add_up(compensated_, window_->sums);
  add_up(gradients_, window_->gradients);
}

}  // namespace heddle
