// What a byte more costs in an exchange, from exchanges that were timed: the slope of a line, so
// that what every exchange costs (latency, waiting for other ranks) stays out of it.
#pragma once

#include <cstdint>
#include <vector>

namespace heddle {

struct TimedExchange {
  int64_t bytes;   // of payload, once, however often it travelled
  double seconds;  // in collectives
};

// b of the least-squares line seconds = a + b * bytes. All seconds over all bytes where there is
// only one size, or the line none that a network can have: b not above 0, a below. 0 where there
// are no bytes.
double seconds_per_byte(const std::vector<TimedExchange>& exchanges);

}  // namespace heddle
