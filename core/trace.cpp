#include "core/trace.h"

#include <chrono>
#include <cstdio>

#include "core/context.h"

namespace heddle {
namespace {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20) continue;
    out += c;
  }
  return out + '"';
}

}  // namespace

double steady_seconds() { return Trace::now() * 1e-6; }

double Trace::now() {
  using namespace std::chrono;
  return duration<double, std::micro>(steady_clock::now().time_since_epoch()).count();
}

void Trace::add(std::string name, const char* track, double begin, double end) {
  std::lock_guard lock(mutex_);
  events_.push_back({std::move(name), track, begin, end});
}

std::string Trace::json(int rank) const {
  std::lock_guard lock(mutex_);
  std::vector<std::string> tracks;
  auto track_number = [&](const std::string& name) {
    for (size_t i = 0; i < tracks.size(); ++i)
      if (tracks[i] == name) return i;
    tracks.push_back(name);
    return tracks.size() - 1;
  };
  std::string out = "{\"traceEvents\":[\n";
  char number[160];
  for (const Event& e : events_) {
    std::snprintf(number, sizeof number,
                  ",\"ph\":\"X\",\"pid\":%d,\"tid\":%zu,\"ts\":%.3f,\"dur\":%.3f},\n", rank,
                  track_number(e.track), e.begin, e.end - e.begin);
    out += "{\"name\":" + quoted(e.name) + number;
  }
  for (size_t i = 0; i < tracks.size(); ++i)
    out += "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":" + std::to_string(rank) +
           ",\"tid\":" + std::to_string(i) + ",\"args\":{\"name\":" + quoted(tracks[i]) + "}},\n";
  out += "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":" + std::to_string(rank) +
         ",\"args\":{\"name\":\"rank " + std::to_string(rank) + "\"}}\n]}\n";
  return out;
}

TraceRange::TraceRange(const char* track, std::string_view name) {
  Trace& trace = Context::current().trace();
  if (!trace.enabled()) return;
  trace_ = &trace;
  track_ = track;
  name_ = name;
  begin_ = Trace::now();
}

TraceRange::~TraceRange() {
  if (trace_ != nullptr) trace_->add(std::move(name_), track_, begin_, Trace::now());
}

}  // namespace heddle
