// Network model: a slow network between ranks that are threads of one process. Each rank is
// connected to a switch by one full-duplex link of a given bandwidth, and a message takes a given
// latency. In real time the receiver sleeps until a message would have arrived; in virtual time
// nobody sleeps, and each rank's clock advances by what its messages would take, so that many ranks
// can be simulated on a small machine.
//
//   NetModel net = parse_net("100mbit,20ms,jitter=2ms");
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace heddle {

struct NetModel {
  double bytes_per_s = std::numeric_limits<double>::infinity();
  double latency_s = 0;  // one way
  double jitter_s = 0;   // uniform in ±jitter_s, a function of sender, receiver and message number
  bool virtual_time = false;
  bool active() const {
    return virtual_time || latency_s > 0 || jitter_s > 0 || bytes_per_s < 1e18;
  }
};

// Parses "100mbit", "1gbit,5ms" or "10mbit,20ms,jitter=2ms": a rate (kbit, mbit, gbit: powers of
// 1000), then optionally the one-way latency and its jitter (us, ms, s). Throws InputError naming
// `flag`.
NetModel parse_net(const std::string& text, const char* flag = "--net");

// The busy intervals of one link. A message is scheduled into the free time from its start on, in
// several parts if others are scheduled already: its packets interleave with theirs.
class LinkTime {
 public:
  // Schedules `duration` seconds, not before `from`; returns when they end.
  double reserve(double from, double duration);

 private:
  std::map<double, double> busy_;  // begin, end; disjoint
  double horizon_ = 0;             // free time before it is forgotten
};

// Computes when messages arrive. Thread-safe. A rank's sends leave in call order; messages from
// several ranks share the receiver's link, so that arrival depends little on which thread called
// first.
class NetClock {
 public:
  NetClock(const NetModel& model, int ranks);
  // Returns when the last byte of a message that is sent at `now` arrives. Seconds.
  double arrival(int from, int to, size_t bytes, double now);

 private:
  NetModel model_;
  std::mutex mutex_;
  std::vector<double> up_free_;  // when each rank's link to the switch becomes idle
  std::vector<LinkTime> down_;   // links from the switch
  std::map<std::pair<int, int>, uint64_t> messages_;  // sent so far, by (sender, receiver)
};

}  // namespace heddle
