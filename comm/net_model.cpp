#include "comm/net_model.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <set>

#include "core/error.h"
#include "core/parse_number.h"
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

// Parses one link; refuse(part) throws.
template <class Refuse>
NetModel parse_link(const std::string& text, const Refuse& refuse) {
  NetModel net;
  bool has_rate = false, has_latency = false, has_jitter = false;
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

}  // namespace

NetModel parse_net(const std::string& text, const char* flag) {
  const auto refuse = [&](const std::string& part) {
    throw InputError(concat(flag, " ", text, ": expected RATE[,DELAY][,jitter=DELAY] such as ",
                            "100mbit,20ms,jitter=2ms, or two such links as ",
                            "[hosts=N;]host=LINK;between=LINK, found '", part, "'"));
  };
  if (!text.starts_with("host") && !text.starts_with("between")) return parse_link(text, refuse);
  NetModel net, host;
  std::set<std::string> seen;
  int hosts = -1;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(';', at), text.size());
    const std::string part = text.substr(at, end - at), name = part.substr(0, part.find('='));
    const std::string value = part.substr(std::min(part.size(), name.size() + 1));
    if (!seen.insert(name).second) refuse(part);
    if (name == "hosts") {
      hosts = parse_number<int>(value).value_or(0);
      if (hosts < 1) refuse(part);
    } else if (name == "host") {
      host = parse_link(value, refuse);
      if (host.jitter_s > 0) refuse(part);
    } else if (name == "between") {
      net = parse_link(value, refuse);
    } else {
      refuse(part);
    }
    at = end + 1;
  }
  if (!seen.contains("between")) refuse("no between=LINK");
  net.hosts = hosts;
  net.host_bytes_per_s = host.bytes_per_s;
  net.host_latency_s = host.latency_s;
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
    : model_(model),
      ranks_(ranks),
      up_free_(to_size(2 * ranks)),
      up_(to_size(ranks)),
      down_(to_size(2 * ranks)) {
  check(model.hosts >= 0 && model.hosts <= ranks, "network: expected at most ", ranks,
        " hosts, one for each rank, found ", model.hosts);
}

double NetClock::arrival(int from, int to, size_t bytes, double now) {
  std::lock_guard lock(mutex_);
  const int from_host = model_.host_of(from, ranks_), to_host = model_.host_of(to, ranks_);
  const bool within = model_.hosts > 0 && from_host == to_host;
  const double duration =
      to_double(bytes) / (within ? model_.host_bytes_per_s : model_.bytes_per_s);
  // The switch forwards while it receives: the second link adds time only when it is busy.
  double begin = now;
  if (model_.hosts > 0 && !within) {
    begin = up_[to_size(from_host)].reserve(now, duration) - duration;
  } else {
    double& up = up_free_[to_size(within ? ranks_ + from : from_host)];
    begin = std::max(up, now);
    up = begin + duration;
  }
  const double down = down_[to_size(within ? ranks_ + to : to_host)].reserve(begin, duration);
  if (within) return down + model_.host_latency_s;
  const auto link = static_cast<uint64_t>(from) * to_size(ranks_) + static_cast<uint64_t>(to);
  const float u = Philox(0, stream_id(Stream::network, link)).uniform(messages_[{from, to}]++);
  return down + model_.latency_s + model_.jitter_s * (2.0 * to_double(u) - 1.0);
}

}  // namespace heddle
