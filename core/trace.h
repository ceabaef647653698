// Trace ranges: what ran when, on which track, written as Chrome/Perfetto JSON. Off, a range costs
// one load and a branch.
//
//   TraceRange range("forward", "layer1.0.conv1");
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace heddle {

double steady_seconds();  // of the steady clock

class Trace {
 public:
  void start() { enabled_.store(true, std::memory_order_relaxed); }
  void stop() { enabled_.store(false, std::memory_order_relaxed); }
  bool enabled() const { return enabled_.load(std::memory_order_relaxed); }

  // begin and end in microseconds of the steady clock.
  void add(std::string name, const char* track, double begin, double end);
  // The JSON text of everything recorded: one process, one track per name in `track`.
  std::string json(int rank = 0) const;

  static double now();  // microseconds

 private:
  struct Event {
    std::string name;
    const char* track;
    double begin, end;
  };
  std::atomic<bool> enabled_ = false;
  mutable std::mutex mutex_;
  std::vector<Event> events_;
};

// Records its own lifetime in the trace of the thread's Context. Tracks: data, forward, backward,
// compress, comm, update.
class TraceRange {
 public:
  TraceRange(const char* track, std::string_view name);
  ~TraceRange();
  TraceRange(const TraceRange&) = delete;
  TraceRange& operator=(const TraceRange&) = delete;

 private:
  Trace* trace_ = nullptr;
  const char* track_ = nullptr;
  std::string name_;
  double begin_ = 0;
};

}  // namespace heddle
