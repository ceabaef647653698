// Holds the facts of one training step that metrics.jsonl and --explain-step report.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "core/trace.h"

namespace heddle {

// Seconds of one update, by phase. lap() returns the time since the last call, or since
// construction.
struct StepTimes {
  double data = 0, forward = 0, backward = 0, update = 0, last = steady_seconds();
  double lap() {
    const double now = steady_seconds(), seconds = now - last;
    last = now;
    return seconds;
  }
  double total() const { return data + forward + backward + update; }
};

struct StepFacts {
  double loss = 0, lr = 0;  // the loss of this rank
  int64_t units = 0;        // samples or tokens of this rank
  StepTimes times = {};
  std::vector<std::pair<const char*, double>> figures = {};  // the program's own, of this rank
};

// The exchange of gradients in one step: bytes of this rank, and seconds.
struct ExchangeFacts {
  int64_t sent = 0, received = 0, between = 0;  // between hosts, with two levels
  int64_t dense = 0;  // of dense exchanges: with local steps those of a round at its end
  double comm_s = 0, compress_s = 0, exposed_s = 0;
};

}  // namespace heddle
