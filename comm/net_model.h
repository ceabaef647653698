// Network model: a slow network between ranks that are threads of one process. Each host is
// connected to a switch by one full-duplex link of a given bandwidth, and a message takes a given
// latency. Each rank is a host of its own, or several ranks share a host and its link, and talk to
// each other over faster ones. In real time the receiver sleeps until a message would have arrived;
// in virtual time nobody sleeps, and each rank's clock advances by what its messages would take, so
// that many ranks can be simulated on a small machine.
//
//   NetModel net = parse_net("100mbit,20ms,jitter=2ms");
//   NetModel two = parse_net("hosts=2;host=10gbit,20us;between=100mbit,1ms");
//
//            switch                            switch
//           /   |   \                        /      \         between
//   rank   0    1    2                    host 0    host 1
//                                         /  \      /  \      host
//                                        0    1    2    3
#pragma once

#include <algorithm>
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
  // Consecutive ranks share this many hosts, as equally as possible; 0: each rank is a host; -1:
  // the caller says how many. Within a host messages take this bandwidth and latency.
  int hosts = 0;
  double host_bytes_per_s = std::numeric_limits<double>::infinity(), host_latency_s = 0;
  bool active() const {
    return virtual_time || latency_s > 0 || jitter_s > 0 ||
           std::min(bytes_per_s, host_bytes_per_s) < 1e18 || host_latency_s > 0;
  }
  // Returns the host of a rank out of `ranks`.
  int host_of(int rank, int ranks) const {
    return hosts > 0 ? static_cast<int>(int64_t{rank} * hosts / ranks) : rank;
  }
};

// Parses "100mbit", "1gbit,5ms" or "10mbit,20ms,jitter=2ms": a rate (kbit, mbit, gbit: powers of
// 1000), then optionally the one-way latency and its jitter (us, ms, s); or such links by level,
// "host=10gbit,20us;between=100mbit,1ms", with the number of hosts as "hosts=2;" or hosts -1.
// Throws InputError naming `flag`.
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
// several ranks share the receiver's link, and that of their host, so that arrival depends little
// on which thread called first.
class NetClock {
 public:
  NetClock(const NetModel& model, int ranks);
  // Returns when the last byte of a message that is sent at `now` arrives. Seconds.
  double arrival(int from, int to, size_t bytes, double now);

 private:
  NetModel model_;
  int ranks_;
  std::mutex mutex_;
  // By host, then by rank for links within hosts.
  std::vector<double> up_free_;                       // when the link to the switch becomes idle
  std::vector<LinkTime> up_;                          // the same, where ranks share it
  std::vector<LinkTime> down_;                        // links from the switch
  std::map<std::pair<int, int>, uint64_t> messages_;  // sent so far, by (sender, receiver)
};

}  // namespace heddle
