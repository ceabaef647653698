// A model of a slow network for ranks that are threads of one process: every rank hangs on a switch
// by one link of a given bandwidth, both ways, and a message needs a given time to arrive. In real
// time the receiver sleeps until a message would be there; in virtual time nobody sleeps, and each
// rank's clock goes forward by what its messages would have taken, so that many ranks can be looked
// at on a small machine.
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
  double latency_s = 0, jitter_s = 0;  // jitter: uniform in ±, a function of the message's number
  bool virtual_time = false;
  bool active() const {
    return virtual_time || latency_s > 0 || jitter_s > 0 || bytes_per_s < 1e18;
  }
};

// "100mbit", "1gbit,5ms", "10mbit,20ms,jitter=2ms": rate (kbit, mbit, gbit: powers of 1000), delay
// one way (us, ms, s). Throws InputError that names `flag`.
NetModel parse_net(const std::string& text, const char* flag = "--net");

// When one link is busy. A message takes the time that is left from some moment on, in pieces where
// others have theirs already: packets of those that were announced later go between.
class LinkTime {
 public:
  // For `duration` from `from` on at the earliest; when it has ended. Seconds.
  double take(double from, double duration);

 private:
  std::map<double, double> busy_;  // from, to; no two overlap
  double known_ = 0;               // what is free before it is forgotten
};

// When messages arrive. Thread-safe. What a rank sends goes in the order of the calls; what it
// receives from several takes the time that is left of its link: little depends on who called
// first.
class NetClock {
 public:
  NetClock(const NetModel& model, int ranks);
  // A message that is handed over at `now` seconds: when its last byte has arrived.
  double arrival(int from, int to, size_t bytes, double now);

 private:
  NetModel model_;
  std::mutex mutex_;
  std::vector<double> up_free_;  // when each rank's link to the switch is idle again
  std::vector<LinkTime> down_;   // from it
  std::map<std::pair<int, int>, uint64_t> messages_;  // so far, from one to another
};

}  // namespace heddle
