#include "comm/net_model.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>

#include "core/error.h"
#include "core/random.h"
#include "core/scalar.h"

namespace heddle {
namespace {

struct UnitName {
  const char* name;
  double factor;
};
constexpr UnitName kRates[] = {{"kbit", 1e3 / 8}, {"mbit", 1e6 / 8}, {"gbit", 1e9 / 8}};
constexpr UnitName kTimes[] = {{"us", 1e-6}, {"ms", 1e-3}, {"s", 1.0}};

// Parses a number with one of the units, such as "20ms". Returns -1 for any other text.
template <size_t kCount>
double parse_quantity(const std::string& text, const UnitName (&units)[kCount]) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || !std::isfinite(value) || value < 0) return -1;
  for (const UnitName& unit : units)
    if (std::string(end) == unit.name) return value * unit.factor;
  return -1;
}

}  // namespace

NetModel parse_net(const std::string& text, const char* flag) {
  NetModel net;
  bool has_rate = false, has_latency = false, has_jitter = false;
  auto refuse = [&](const std::string& part) {
    throw InputError(concat(flag, " ", text, ": expected RATE[,DELAY][,jitter=DELAY] such as ",
                            "100mbit,20ms,jitter=2ms, found '", part, "'"));
  };
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string part = text.substr(at, end - at);
    const double rate = parse_quantity(part, kRates), delay = parse_quantity(part, kTimes);
    const double jitter =
        part.starts_with("jitter=") ? parse_quantity(part.substr(7), kTimes) : -1.0;
    if (rate > 0 && !has_rate) {
      net.bytes_per_s = rate;
      has_rate = true;
    } else if (delay >= 0 && !has_latency) {
      net.latency_s = delay;
      has_latency = true;
    } else if (jitter >= 0 && !has_jitter) {
      net.jitter_s = jitter;
      has_jitter = true;
    } else {
      refuse(part);
    }
    at = end + 1;
  }
  if (net.jitter_s > net.latency_s) refuse("a jitter above the delay");
  return net;
}

double LinkTime::reserve(double from, double duration) {
  constexpr size_t kMaxIntervals = 64;
  if (duration <= 0) return from;
  double begin = std::max(from, horizon_), end = begin;
  auto next = busy_.upper_bound(begin);
  if (next != busy_.begin() && std::prev(next)->second >= begin) {
    --next;
    begin = next->first;
    end = next->second;
    next = busy_.erase(next);
  }
  for (; next != busy_.end() && next->first < end + duration; next = busy_.erase(next)) {
    duration -= next->first - end;
    end = next->second;
  }
  end += duration;
  busy_[begin] = end;
  if (busy_.size() > kMaxIntervals) {
    horizon_ = busy_.begin()->second;
    busy_.erase(busy_.begin());
  }
  return end;
}

NetClock::NetClock(const NetModel& model, int ranks)
    : model_(model), up_free_(to_size(ranks)), down_(to_size(ranks)) {}

double NetClock::arrival(int from, int to, size_t bytes, double now) {
  std::lock_guard lock(mutex_);
  const double duration = to_double(bytes) / model_.bytes_per_s;
  // The switch forwards while it receives: the second link adds time only when it is busy.
  double& up = up_free_[to_size(from)];
  const double begin = std::max(up, now);
  up = begin + duration;
  const double down = down_[to_size(to)].reserve(begin, duration);
  const auto link = static_cast<uint64_t>(from) * up_free_.size() + static_cast<uint64_t>(to);
  const float u = Philox(0, stream_id(Stream::network, link)).uniform(messages_[{from, to}]++);
  return down + model_.latency_s + model_.jitter_s * (2.0 * to_double(u) - 1.0);
}

}  // namespace heddle
