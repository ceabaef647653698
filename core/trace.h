// Trace ranges: what ran when, on which track, written as Chrome/Perfetto JSON, and arrows that
// follow one thing from range to range (a bucket of gradients from backward to its exchange to its
// update). Changes in the pools' memory use are recorded at both ends of a range. While the
// trace is off, a range costs one load and a branch.
//
//   backward  |fc|layer3.2.conv2|layer3.2.conv1|layer3.1.conv2|      time ──▶
//                            begin ╲
//   comm                            |bucket 0   |   |bucket 1 |
//                                        pass ╲
//   update                                      |bucket 0|  end
//
//   TraceRange range("forward", "layer1.0.conv1");
//
// Notes explain one step (--explain-step): what happened, with figures and the source line that
// reports it. Their figures are computed in that step only. If the step is traced too, they are
// marks in the trace, on a track "explain" of each thread.
//
//   explain("final", p.name, [&] { return Figures{{"gradient norm", norm(p.grad)}}; });
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace heddle {

class Context;

double steady_seconds();  // the steady clock, in seconds
double thread_seconds();  // CPU time that this thread has used, in seconds

enum class Unit : uint8_t { number, count, bytes, seconds, percent, none };  // none: a remark

struct Figure {
  const char* name;
  double value = 0;
  Unit unit = Unit::number;
};
using Figures = std::vector<Figure>;

struct Note {
  const char* stage;  // final, bucket, compensate, select, exchange, residual, summed, update, …
  std::string subject;  // a parameter, a bucket
  Figures figures;
  std::string place;  // "core/tape.cpp:56"
  double time = 0;    // microseconds of the steady clock
  std::thread::id thread = std::this_thread::get_id();
};

class Trace {
 public:
  // If the current Context computes on a GPU, they also start and stop CUDA's profiler, for
  // `ncu --profile-from-start off` and `nsys profile -c cudaProfilerApi`. A range then shows when
  // its work was started there; with `wait`, it begins and ends when the thread's stream is idle.
  void start(bool wait = false);
  void stop();
  bool enabled() const { return enabled_.load(std::memory_order_relaxed); }
  bool waits() const { return waits_.load(std::memory_order_relaxed); }

  // Records a range, begin and end in microseconds of the steady clock. Events beyond kMaxEvents
  // are only counted.
  void add(std::string name, const char* track, double begin, double end);
  // Records a point of the arrow `id` (below 2^40) in a range of this thread on this track. begin:
  // the open range; pass: the range opened next; end: the range opened last. Arrows lead from point
  // to point. Does nothing while the trace is off.
  enum class Flow : uint8_t { begin, pass, end };
  void flow(Flow point, const char* track, int64_t id);
  // Records a memory pool ("host memory"): bytes in use, and reserved from the system.
  void memory(const char* pool, size_t in_use, size_t reserved);

  // Switches notes on or off; between steps only.
  void explain(bool on) { explaining_.store(on, std::memory_order_relaxed); }
  bool explaining() const { return explaining_.load(std::memory_order_relaxed); }
  void note(Note note);
  // Returns the notes in the order of recording and clears them.
  std::vector<Note> take_notes();

  // Returns everything recorded as one process of a trace, with a track per name in `track` and
  // thread that used it ("update", "update 2"): JSON objects that end in commas. `shift`
  // (microseconds) is added to all times, to correct for another machine's clock.
  std::string events(int rank = 0, double shift = 0) const;
  // Returns the JSON text of a trace of one or several of these.
  static std::string json(const std::string& events);

  static constexpr size_t kMaxEvents = 200000;  // about 30 MB of text

  static double now();  // microseconds

 private:
  struct Event {
    enum class Kind : uint8_t { range, point, mark, memory };
    Kind kind;
    std::string name;
    const char* track;      // null: the process itself
    double begin, end = 0;  // only ranges have a length
    int64_t flow = -1;      // of a point of an arrow
    Flow point = Flow::begin;
    std::string arguments = {};  // of a mark and of memory, JSON
    std::thread::id thread = std::this_thread::get_id();
  };
  using Track = std::pair<std::string, std::thread::id>;
  void push(Event event);
  std::atomic<bool> enabled_ = false, waits_ = false, explaining_ = false;
  mutable std::mutex mutex_;
  std::vector<Event> events_;
  std::vector<Note> notes_;
  int64_t dropped_ = 0;
  std::map<std::string, std::pair<size_t, size_t>> memory_;  // as last recorded
};

// Records its own lifetime in the trace of the thread's Context. Tracks: forward, backward,
// compress, comm, plan, update; wait: for exchanges that backward did not hide. In a CUDA build it
// is also an NVTX range, "forward: conv1.weight", for NVIDIA's profilers.
class TraceRange {
 public:
  TraceRange(const char* track, std::string_view name);
  ~TraceRange();
  TraceRange(const TraceRange&) = delete;
  TraceRange& operator=(const TraceRange&) = delete;

 private:
  Context* context_ = nullptr;
  const char* track_ = nullptr;
  std::string name_;
  double begin_ = 0;
};

// Keeps the ranges and notes of this thread out of every trace, until called again with false.
void mute_trace(bool on);
// Returns whether the current Context's trace takes this thread's notes.
bool explaining();
// Returns "core/tape.cpp:56": the last folder and the name of a file, and the line.
std::string source_place(const char* file, int line);

void take_note(Note note);  // in the current Context's trace

// Takes a note if the step is being explained; only then is figures() called, which must change
// nothing. The recorded source line is that of the call.
template <class Call>
void explain(const char* stage, std::string_view subject, const Call& figures,
             const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  if (explaining()) take_note({stage, std::string(subject), figures(), source_place(file, line)});
}

}  // namespace heddle
