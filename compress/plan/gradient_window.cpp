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
  const auto n = to_double(exchanges.size());
  double bytes = 0, seconds = 0;
  for (const TimedExchange& e : exchanges) {
    bytes += to_double(e.bytes);
    seconds += e.seconds;
  }
  if (bytes <= 0) return 0;
  double spread = 0, slope = 0;  // sums of x^2 and x y, x relative to its mean
  for (const TimedExchange& e : exchanges) {
    const double x = to_double(e.bytes) - bytes / n;
    spread += x * x;
    slope += x * e.seconds;
  }
  const double b = spread > 0 ? slope / spread : 0;
  return b > 0 && b * bytes <= seconds ? b : seconds / bytes;
}

void WindowRecorder::open(Sums sums) {
  window_.emplace();
  sums_ = sums;
}

GradientWindow WindowRecorder::close() {
  return std::exchange(window_, std::nullopt).value_or(GradientWindow{});
}

void WindowRecorder::begin(const Ledger& ledger) {
  alone_.clear();
  compensated_.clear();
  if (window_) start_ = {ledger.total().payload, ledger.seconds()};
}

void WindowRecorder::see_alone(const std::string& layer, const Tensor& x) {
  if (window_ && sums_.alone) alone_.emplace_back(layer, x.clone());
}

void WindowRecorder::see_compensated(const std::string& layer, const Tensor& x) {
  if (window_ && sums_.compensated) compensated_.emplace_back(layer, x.clone());
}

void WindowRecorder::accept(const Ledger& ledger) {
  if (!window_) return;
  window_->exchanges.push_back(
      {ledger.total().payload - start_.bytes, ledger.seconds() - start_.seconds});
  add_up(compensated_, window_->compensated);
  add_up(alone_, window_->alone);
}

}  // namespace heddle
