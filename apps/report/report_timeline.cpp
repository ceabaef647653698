#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/cli/json.h"
#include "apps/report/report_chart.h"
#include "apps/report/report_figures.h"
#include "apps/report/svg.h"
#include "core/error.h"
#include "core/files.h"

namespace heddle {
namespace {

constexpr double kWidth = 1160, kLeft = 84, kRight = 12, kTop = 8, kBar = 26, kInner = 7, kRow = 42;
constexpr std::array kTracks = {"data", "forward", "backward", "compress",
                                "comm", "update",  "wait",     "plan"};

struct Range {
  std::string track, name;
  double begin = 0, end = 0;  // microseconds
  bool inner = false;         // a part of the range before it on its track
};
struct Point {
  std::string track;
  double at = 0;
};
// What the first rank did.
struct Events {
  std::vector<Range> ranges;                         // by their begin
  std::map<std::string, std::vector<Point>> arrows;  // by id, each in the order of time
};

std::string base(const std::string& track) { return track.substr(0, track.find(' ')); }

size_t place(const std::string& track) {
  return static_cast<size_t>(std::ranges::find(kTracks, base(track)) - kTracks.begin());
}

Events read_events(const std::string& file) {
  Events out;
  const auto json = parse_json(read_text_file(file), file);
  std::map<int64_t, std::string> names;
  for (const auto& e : json.at("traceEvents"))
    if (e.at("pid") == 0 && e.at("ph") == "M" && e.at("name") == "thread_name")
      names[e.at("tid").get<int64_t>()] = e.at("args").at("name").get<std::string>();
  for (const auto& e : json.at("traceEvents")) {
    const std::string phase = e.at("ph");
    if (e.at("pid") != 0 || phase == "M" || phase == "C" || phase == "i") continue;
    const std::string& track = names[e.at("tid").get<int64_t>()];
    const double at = e.at("ts").get<double>();
    if (phase == "X")
      out.ranges.push_back(
          {track, e.at("name").get<std::string>(), at, at + e.at("dur").get<double>()});
    else
      out.arrows[e.at("id").get<std::string>()].push_back({track, at});
  }
  std::ranges::sort(out.ranges, [](const Range& a, const Range& b) {
    return std::pair(a.begin, -a.end) < std::pair(b.begin, -b.end);
  });
  constexpr double kRounded = 0.01;     // times are in thousandths
  std::map<std::string, double> until;  // the end of the outer range, by track
  for (Range& range : out.ranges) {
    double& end = until[range.track];
    range.inner = range.begin < end - kRounded;
    end = std::max(end, range.end);
  }
  for (auto& [id, points] : out.arrows) std::ranges::sort(points, {}, &Point::at);
  return out;
}

// From one forward pass to the next; of the passes that are whole the last, else what there is.
std::optional<std::pair<double, double>> one_step(const Events& events) {
  std::vector<double> begins;
  bool behind = true;  // the last of the two was a backward range, or none
  double end = 0;
  for (const Range& range : events.ranges) {
    if (range.track == "forward" && behind) begins.push_back(range.begin);
    if (range.track == "forward" || range.track == "backward") behind = range.track == "backward";
    end = std::max(end, range.end);
  }
  if (begins.empty()) return {};
  if (begins.size() == 1) return {{begins[0], end}};
  return {{begins[begins.size() - 2], begins.back()}};
}

// Ranges that are too thin to be seen are drawn as one with their neighbours. Of inner ones the
// lower half is seen.
std::string draw_ranges(const std::vector<Range>& ranges, const Scale& x, double top) {
  std::string out;
  for (size_t i = 0; i < ranges.size();) {
    double end = ranges[i].end;
    size_t next = i + 1;
    while (next < ranges.size() && ranges[next].inner == ranges[i].inner &&
           x(end) - x(ranges[i].begin) < 1 && x(ranges[next].end) - x(ranges[i].begin) < 1) {
      end = std::max(end, ranges[next].end);
      ++next;
    }
    const Range& range = ranges[i];
    const double wide = std::max(x(end) - x(range.begin), 0.6);
    const std::string name =
        next - i == 1 ? range.name : concat(range.name, " and ", next - i - 1, " more");
    const double high = range.inner ? kInner : kBar;
    out += concat("<rect class=\"p-", base(range.track), range.inner ? " inner" : "", "\" x=\"",
                  fixed(x(range.begin), 2), "\" y=\"", fixed(top + kBar - high, 1), "\" width=\"",
                  fixed(std::max(wide - 0.4, 0.4), 2), "\" height=\"", high, "\"><title>",
                  escape(name), ": ", duration_text((end - range.begin) * 1e-6), "</title></rect>");
    if (!range.inner && wide > 6.4 * static_cast<double>(range.name.size()) + 8 && next - i == 1)
      out += concat("<text class=\"inside\" x=\"", fixed(x(range.begin) + 5, 1), "\" y=\"",
                    fixed(top + 17, 1), "\">", escape(range.name), "</text>");
    i = next;
  }
  return out;
}

std::string draw_arrows(const Events& events, const std::vector<std::string>& tracks,
                        const Scale& x) {
  std::string out = "<g class=\"arrows\">";
  const auto row = [&](const std::string& track) {
    return kTop + kRow * static_cast<double>(std::ranges::find(tracks, track) - tracks.begin());
  };
  for (const auto& [id, points] : events.arrows)
    for (size_t i = 0; i + 1 < points.size(); ++i) {
      const Point &a = points[i], &b = points[i + 1];
      if (a.at < x.first() || b.at > x.last()) continue;
      const double from = row(a.track), to = row(b.track);
      const double y0 = from < to ? from + kBar : from, y1 = from < to ? to : to + kBar;
      const double bend = (y0 + y1) / 2;
      out += concat("<path d=\"M", fixed(x(a.at), 1), " ", fixed(y0, 1), "C", fixed(x(a.at), 1),
                    " ", fixed(bend, 1), " ", fixed(x(b.at), 1), " ", fixed(bend, 1), " ",
                    fixed(x(b.at), 1), " ", fixed(y1, 1), "\" marker-end=\"url(#tip)\"/>");
    }
  return out + "</g>";
}

std::string busy_table(const std::vector<Range>& shown) {
  std::map<std::string, std::pair<double, int64_t>> busy;
  for (const Range& range : shown) {
    if (range.inner) continue;
    busy[range.track].first += (range.end - range.begin) * 1e-6;
    ++busy[range.track].second;
  }
  std::string out =
      "<table><thead><tr><th>track</th><th>ranges</th><th>seconds</th></tr></thead>"
      "<tbody>";
  for (const auto& [track, sum] : busy)
    out += concat("<tr><td>", escape(track), "</td><td>", sum.second, "</td><td>",
                  significant(sum.first, 5), "</td></tr>");
  return out + "</tbody></table>";
}

}  // namespace

std::string draw_timeline(const RunRecord& run) {
  if (run.trace.empty()) return "";
  Events events;
  try {
    events = read_events(run.trace);
  } catch (const nlohmann::json::exception& error) {
    throw InputError(concat(run.trace, ": no trace: ", printable(error.what(), 200)));
  }
  const auto step = one_step(events);
  if (!step) return "";
  const auto [begin, end] = *step;
  std::vector<Range> shown;
  std::vector<std::string> tracks;
  for (const Range& range : events.ranges) {
    if (range.end <= begin || range.begin >= end) continue;
    shown.push_back(range);
    shown.back().begin = std::max(range.begin, begin);
    shown.back().end = std::min(range.end, end);
    if (std::ranges::find(tracks, range.track) == tracks.end()) tracks.push_back(range.track);
  }
  std::ranges::sort(tracks, [](const std::string& a, const std::string& b) {
    return std::pair(place(a), a) < std::pair(place(b), b);
  });
  const Scale x = Scale::linear(begin, end, kLeft, kWidth - kRight);
  const double bottom = kTop + kRow * static_cast<double>(tracks.size());
  std::string svg =
      "<defs><marker id=\"tip\" viewBox=\"0 0 6 6\" refX=\"5\" refY=\"3\" "
      "markerWidth=\"5\" markerHeight=\"5\" orient=\"auto\"><path d=\"M0 0L6 3L0 6z\""
      "/></marker></defs><g class=\"axes\">";
  const Scale from_begin = Scale::linear(0, (end - begin) * 1e-6, kLeft, kWidth - kRight);
  for (const double tick : from_begin.ticks(8))
    svg += concat("<line x1=\"", fixed(from_begin(tick), 1), "\" x2=\"", fixed(from_begin(tick), 1),
                  "\" y1=\"", kTop, "\" y2=\"", fixed(bottom - 8, 1), "\"/><text x=\"",
                  fixed(from_begin(tick), 1), "\" y=\"", fixed(bottom + 8, 1),
                  "\" text-anchor=\"middle\">", tick == 0 ? "0" : duration_text(tick), "</text>");
  svg += "</g>";
  for (size_t t = 0; t < tracks.size(); ++t) {
    const double top = kTop + kRow * static_cast<double>(t);
    std::vector<Range> own;
    for (const Range& range : shown)
      if (range.track == tracks[t]) own.push_back(range);
    svg +=
        concat("<text class=\"label\" x=\"", kLeft - 8, "\" y=\"", fixed(top + 17, 1),
               "\" text-anchor=\"end\">", escape(tracks[t]), "</text>", draw_ranges(own, x, top));
  }
  svg += draw_arrows(events, tracks, x);
  return figure(
      "timeline", "chart wide", "One step, as it ran",
      "Of the first learner, from the run's trace. Arrows follow each bucket of gradients "
      "from backward to its exchange to its update",
      concat("<div class=\"scroll\" tabindex=\"0\"><svg class=\"wide\" viewBox=\"0 0 ", kWidth, " ",
             fixed(bottom + 16, 0), "\" role=\"img\" aria-label=\"One step, as it ran\">", svg,
             "</svg></div>"),
      busy_table(shown));
}

}  // namespace heddle
