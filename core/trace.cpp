#include "core/trace.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>

#include "core/context.h"
#include "core/error.h"
#include "core/scalar.h"
#include "core/streams.h"

#ifdef HEDDLE_CUDA
#include <cuda_profiler_api.h>
#endif
#if defined(HEDDLE_CUDA) && __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define HEDDLE_NVTX 1
#endif

namespace heddle {
namespace {

thread_local bool muted = false;

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string json_value(const Figure& figure) {
  if (figure.unit == Unit::none) return "true";
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", figure.value);
  return std::isfinite(figure.value) ? text : quoted(text);
}

}  // namespace

double steady_seconds() { return Trace::now() * 1e-6; }

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return to_double(now.tv_sec) + 1e-9 * to_double(now.tv_nsec);
}

double Trace::now() {
  using namespace std::chrono;
  return duration<double, std::micro>(steady_clock::now().time_since_epoch()).count();
}

void Trace::start(bool wait) {
#ifdef HEDDLE_CUDA
  if (Context::current().device().is_cuda()) (void)cudaProfilerStart();
#endif
  waits_.store(wait, std::memory_order_relaxed);
  enabled_.store(true, std::memory_order_relaxed);
}

void Trace::stop() {
  enabled_.store(false, std::memory_order_relaxed);
#ifdef HEDDLE_CUDA
  if (Context::current().device().is_cuda()) (void)cudaProfilerStop();
#endif
}

void Trace::push(Event event) {
  std::lock_guard lock(mutex_);
  if (events_.size() < kMaxEvents)
    events_.push_back(std::move(event));
  else
    ++dropped_;
}

void Trace::add(std::string name, const char* track, double begin, double end) {
  push({Event::Kind::range, std::move(name), track, begin, end});
}

void Trace::flow(Flow point, const char* track, int64_t id) {
  if (enabled()) push({Event::Kind::point, "gradient", track, now(), 0, id, point});
}

void Trace::memory(const char* pool, size_t in_use, size_t reserved) {
  {
    std::lock_guard lock(mutex_);
    const std::pair now_held(in_use, reserved);
    const auto [last, first] = memory_.emplace(pool, now_held);
    if (!first && std::exchange(last->second, now_held) == now_held) return;
  }
  push({.kind = Event::Kind::memory,
        .name = pool,
        .track = nullptr,
        .begin = now(),
        .arguments = concat("{\"in use\":", in_use, ",\"free\":", reserved - in_use, "}")});
}

void Trace::note(Note note) {
  Event mark{.kind = Event::Kind::mark, .name = {}, .track = "explain", .begin = 0};
  if (enabled()) {
    mark.name = concat(note.stage, ": ", note.subject);
    for (const Figure& figure : note.figures)
      mark.arguments += concat(quoted(figure.name), ":", json_value(figure), ",");
    mark.arguments = concat("{", mark.arguments, "\"place\":", quoted(note.place), "}");
  }
  {
    std::lock_guard lock(mutex_);
    mark.begin = note.time = now();
    notes_.push_back(std::move(note));
  }
  if (!mark.name.empty()) push(std::move(mark));
}

std::vector<Note> Trace::take_notes() {
  std::lock_guard lock(mutex_);
  return std::exchange(notes_, {});
}

std::string Trace::events(int rank, double shift) const {
  std::lock_guard lock(mutex_);
  std::vector<Track> tracks;
  std::vector<std::vector<double>> begins;  // of the ranges of each track, ascending
  const auto track_number = [&](const Event& e) {
    const auto found = std::find(tracks.begin(), tracks.end(), Track(e.track, e.thread));
    const auto number = to_size(found - tracks.begin());
    if (found == tracks.end()) tracks.emplace_back(e.track, e.thread), begins.emplace_back();
    return number;
  };
  for (const Event& e : events_)
    if (e.kind == Event::Kind::range) begins[track_number(e)].push_back(e.begin);
  for (auto& times : begins) std::sort(times.begin(), times.end());
  // Moves a `pass` or `end` point to just after the start of its range: viewers bind a point to the
  // range that is open then.
  const auto time_of = [&](const Event& point, size_t track) {
    constexpr double kInside = 0.001;
    const auto& times = begins[track];
    const auto next = std::upper_bound(times.begin(), times.end(), point.begin);
    if (point.point == Flow::pass && next != times.end()) return *next + kInside;
    if (point.point == Flow::end && next != times.begin()) return *(next - 1) + kInside;
    return point.begin;
  };
  std::string out;
  char text[200];
  const auto common = [&](const char* phase, const Event& e, double time) {
    std::snprintf(text, sizeof text, ",\"ph\":\"%s\",\"pid\":%d,\"ts\":%.3f", phase, rank,
                  time + shift);
    out += "{\"name\":" + quoted(e.name) + text;
    if (e.track != nullptr) out += concat(",\"tid\":", track_number(e));
  };
  for (const Event& e : events_) {
    switch (e.kind) {
      case Event::Kind::range:
        common("X", e, e.begin);
        std::snprintf(text, sizeof text, ",\"dur\":%.3f},\n", e.end - e.begin);
        out += text;
        break;
      case Event::Kind::point:  // an arrow's id is a hexadecimal number, unique over all ranks
        common(std::array{"s", "t", "f"}[to_size(e.point)], e, time_of(e, track_number(e)));
        std::snprintf(
            text, sizeof text, ",\"cat\":\"gradient\",\"id\":\"0x%llx\",\"bp\":\"e\"},\n",
            static_cast<unsigned long long>(rank) << 40 | static_cast<unsigned long long>(e.flow));
        out += text;
        break;
      case Event::Kind::mark:
        common("i", e, e.begin);
        out += concat(",\"s\":\"t\",\"args\":", e.arguments, "},\n");
        break;
      case Event::Kind::memory:
        common("C", e, e.begin);
        out += concat(",\"args\":", e.arguments, "},\n");
        break;
    }
  }
  const auto label = [&](const char* what, size_t track, const std::string& name) {
    std::snprintf(text, sizeof text, "{\"name\":\"%s\",\"ph\":\"M\",\"pid\":%d,\"tid\":%zu,", what,
                  rank, track);
    out += text + ("\"args\":{\"name\":" + quoted(name) + "}},\n");
  };
  for (size_t i = 0; i < tracks.size(); ++i) {
    size_t before = 0;
    for (size_t j = 0; j < i; ++j) before += tracks[j].first == tracks[i].first;
    label("thread_name", i, tracks[i].first + (before > 0 ? concat(" ", before + 1) : ""));
  }
  label("process_name", 0,
        concat("rank ", rank, dropped_ > 0 ? concat(", ", dropped_, " events left out") : ""));
  return out;
}

std::string Trace::json(const std::string& events) {
  return "{\"traceEvents\":[\n" + events.substr(0, events.rfind(',')) + "\n]}\n";
}

TraceRange::TraceRange(const char* track, std::string_view name) {
  Context& context = Context::current();
  if (muted || !context.trace().enabled()) return;
  context_ = &context;
  track_ = track;
  name_ = name;
  context.trace_memory();
#ifdef HEDDLE_NVTX
  nvtxRangePushA(concat(track, ": ", name).c_str());
#endif
  if (context.trace().waits()) wait_for_stream();
  begin_ = Trace::now();
}

TraceRange::~TraceRange() {
  if (context_ == nullptr) return;
  try {
    if (context_->trace().waits()) wait_for_stream();
  } catch (const Error&) {  // the next call on the stream reports it
  }
  context_->trace().add(std::move(name_), track_, begin_, Trace::now());
  context_->trace_memory();
#ifdef HEDDLE_NVTX
  nvtxRangePop();
#endif
}

void mute_trace(bool on) { muted = on; }

bool explaining() { return !muted && Context::current().trace().explaining(); }

std::string source_place(const char* file, int line) {
  const std::string_view path = file;
  const size_t name = path.rfind('/');
  const size_t folder = name == 0 || name == path.npos ? path.npos : path.rfind('/', name - 1);
  return concat(folder == path.npos ? path : path.substr(folder + 1), ":", line);
}

void take_note(Note note) { Context::current().trace().note(std::move(note)); }

}  // namespace heddle
