#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>

#include "apps/cli/json.h"
#include "apps/report/report_data.h"
#include "apps/report/report_json.h"
#include "core/error.h"
#include "core/files.h"

namespace heddle {
namespace {

using Json = RunRecord::Json;

// Ranges shorter than this part of the step are invisible, and are merged with their neighbours.
constexpr double kThin = 1.0 / 2000;
constexpr std::array kTracks = {"data", "forward", "backward", "compress",
                                "comm", "update",  "wait",     "plan"};

struct Range {
  std::string track, name;
  double begin = 0, end = 0;  // microseconds
  bool inner = false;         // within an earlier range of its track
};
struct Point {
  std::string track;
  double at = 0;
};
struct Events {
  std::vector<Range> ranges;                         // by their begin
  std::map<std::string, std::vector<Point>> arrows;  // by id, each in the order of time
};

// Reads the events of the first rank. Throws nlohmann::json::exception for anything but a trace.
Events read_events(const nlohmann::json& trace) {
  Events out;
  std::map<int64_t, std::string> names;
  for (const auto& e : trace.at("traceEvents"))
    if (e.at("pid") == 0 && e.at("ph") == "M" && e.at("name") == "thread_name")
      names[whole(e.at("tid"))] = e.at("args").at("name").get<std::string>();
  for (const auto& e : trace.at("traceEvents")) {
    const std::string phase = e.at("ph");
    if (e.at("pid") != 0 || phase == "M" || phase == "C" || phase == "i") continue;
    const std::string& track = names[whole(e.at("tid"))];
    const double at = e.at("ts").get<double>();
    if (phase == "X")
      out.ranges.push_back({track, e.at("name"), at, at + e.at("dur").get<double>()});
    else
      out.arrows[e.at("id").get<std::string>()].push_back({track, at});
  }
  std::ranges::sort(out.ranges, {}, [](const Range& r) { return std::pair(r.begin, -r.end); });
  constexpr double kRounding = 0.01;    // times are in thousandths
  std::map<std::string, double> until;  // end of the outer range, by track
  for (Range& range : out.ranges) {
    double& end = until[range.track];
    range.inner = range.begin < end - kRounding;
    end = std::max(end, range.end);
  }
  for (auto& [id, points] : out.arrows) std::ranges::sort(points, {}, &Point::at);
  return out;
}

// Returns the last whole step, from one forward pass to the next; with a single pass, the rest of
// the trace.
std::optional<std::pair<double, double>> last_step(const Events& events) {
  std::vector<double> begins;
  bool updated = true;
  double end = 0;
  for (const Range& range : events.ranges) {
    if (range.track == "forward" && updated) begins.push_back(range.begin);
    const bool update = range.track.starts_with("update");  // or "update 2", of another thread
    if (range.track == "forward" || update) updated = update;
    end = std::max(end, range.end);
  }
  if (begins.empty()) return {};
  if (begins.size() == 1) return {{begins[0], end}};
  return {{begins[begins.size() - 2], begins.back()}};
}

// Returns a key that sorts tracks in the order of a step; those of further threads, "comm 2",
// follow the first.
auto track_order(const std::string& track) {
  const std::string base = track.substr(0, track.find(' '));
  return std::pair(std::ranges::find(kTracks, base) - kTracks.begin(), track);
}

// Returns [name, begin, seconds, inner] of each range, with thin neighbours merged.
Json ranges_json(const std::vector<Range>& ranges, double origin, double length) {
  Json out = Json::array();
  for (size_t i = 0, next = 0; i < ranges.size(); i = next) {
    const Range& first = ranges[i];
    double end = first.end;
    for (next = i + 1; next < ranges.size() && ranges[next].inner == first.inner &&
                       std::max(end, ranges[next].end) - first.begin < kThin * length;
         ++next)
      end = std::max(end, ranges[next].end);
    const std::string name =
        next - i == 1 ? first.name : concat(first.name, " and ", next - i - 1, " more");
    out.push_back({name, rounded((first.begin - origin) * 1e-6),
                   rounded((end - first.begin) * 1e-6), first.inner ? 1 : 0});
  }
  return out;
}

Json step_json(const Events& events, double begin, double end) {
  std::map<std::string, std::vector<Range>> tracks;
  for (Range range : events.ranges) {
    if (range.end <= begin || range.begin >= end) continue;
    range.begin = std::max(range.begin, begin);
    range.end = std::min(range.end, end);
    tracks[range.track].push_back(range);
  }
  std::vector<std::string> order;
  order.reserve(tracks.size());
  for (const auto& [track, ignored] : tracks) order.push_back(track);
  std::ranges::sort(order, {}, track_order);
  Json rows = Json::array(), arrows = Json::array();
  for (const std::string& track : order) {
    double busy = 0;
    int64_t count = 0;
    for (const Range& range : tracks[track])
      if (!range.inner) busy += range.end - range.begin, ++count;
    rows.push_back({{"track", track},
                    {"count", count},
                    {"busy", rounded(busy * 1e-6)},
                    {"ranges", ranges_json(tracks[track], begin, end - begin)}});
  }
  const auto row_of = [&](const Point& p) {
    return std::ranges::find(order, p.track) - order.begin();
  };
  for (const auto& [id, points] : events.arrows)
    for (size_t i = 0; i + 1 < points.size(); ++i) {
      const Point &a = points[i], &b = points[i + 1];
      if (a.at >= begin && b.at <= end && tracks.contains(a.track) && tracks.contains(b.track))
        arrows.push_back(
            {row_of(a), rounded((a.at - begin) * 1e-6), row_of(b), rounded((b.at - begin) * 1e-6)});
    }
  return {{"seconds", rounded((end - begin) * 1e-6)}, {"rows", rows}, {"arrows", arrows}};
}

}  // namespace

Json read_timeline(const std::string& trace) {
  return read_members(trace + ": no trace", [&] {
    const Events events = read_events(parse_json(read_text_file(trace), trace));
    const auto step = last_step(events);
    return step ? step_json(events, step->first, step->second) : Json();
  });
}

}  // namespace heddle
