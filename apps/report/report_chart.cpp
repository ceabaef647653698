#include "apps/report/report_chart.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "apps/report/svg.h"
#include "core/error.h"

namespace heddle {
namespace {

constexpr double kWidth = 460, kHeight = 270, kLeft = 54, kRight = 14, kTop = 10, kBottom = 38;

std::string tick_text(double value, bool bytes) {
  if (bytes) return scaled(value, "B");
  if (value != 0 && (std::abs(value) >= 1e5 || std::abs(value) < 1e-4)) {
    return std::abs(value) >= 1e5 ? scaled(value) : significant(value, 2);
  }
  return significant(value, 4);
}

struct Range {
  double low = INFINITY, high = -INFINITY;
  void add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool empty() const { return low > high; }
};

Scale y_scale(const LineChart& chart, Range y) {
  const double from = kHeight - kBottom, to = kTop;
  if (chart.log_y && y.low > 0) {
    const double room = y.high > y.low ? std::pow(y.high / y.low, 0.06) : 2;
    return Scale::logarithmic(y.low / room, y.high * room, from, to);
  }
  if (chart.from_zero) y.add(0);
  const double room = y.high > y.low ? (y.high - y.low) * 0.06 : std::abs(y.high) * 0.1 + 1e-9;
  return Scale::linear(chart.from_zero && y.low == 0 ? 0 : y.low - room, y.high + room, from, to);
}

std::string axes(const LineChart& chart, const Scale& x, const Scale& y) {
  std::string out = "<g class=\"axes\">";
  for (const double tick : y.ticks(5)) {
    const std::string at = fixed(y(tick), 1);
    out += concat("<line x1=\"", kLeft, "\" x2=\"", kWidth - kRight, "\" y1=\"", at, "\" y2=\"", at,
                  "\"/><text x=\"", kLeft - 7, "\" y=\"", fixed(y(tick) + 4, 1),
                  "\" text-anchor=\"end\">", tick_text(tick, chart.y_bytes), "</text>");
  }
  for (const double tick : x.ticks(4)) {
    const double at = x(tick);
    const char* anchor = at > kWidth - kRight - 16 ? "end" : "middle";
    out += concat("<text x=\"", fixed(at, 1), "\" y=\"", kHeight - kBottom + 17,
                  "\" text-anchor=\"", anchor, "\">", tick_text(tick, chart.x_bytes), "</text>");
  }
  const std::string base = fixed(kHeight - kBottom, 1);
  return out + concat("<line class=\"base\" x1=\"", kLeft, "\" x2=\"", kWidth - kRight, "\" y1=\"",
                      base, "\" y2=\"", base, "\"/><text class=\"name\" x=\"", kWidth - kRight,
                      "\" y=\"", kHeight - 4, "\" text-anchor=\"end\">", escape(chart.x_label),
                      "</text></g>");
}

std::string draw_series(const ChartSeries& series, const Scale& x, const Scale& y) {
  std::string line, band, back, dots;
  for (const ChartPoint& p : series.points) {
    if (y.is_logarithmic() && p.low <= 0) continue;
    const std::string at = fixed(x(p.x), 2), height = fixed(y(p.y), 2);
    line += concat(line.empty() ? "" : " ", at, ",", height);
    if (series.band) {
      band += concat(at, ",", fixed(y(p.high), 1), " ");
      back.insert(0, concat(at, ",", fixed(y(p.low), 1), " "));
    }
    if (series.dots || series.points.size() == 1)
      dots += concat("<circle cx=\"", at, "\" cy=\"", height, "\" r=\"3.2\"/>");
  }
  std::string out = concat("<g class=\"series c", series.colour, series.dashed ? " dashed" : "",
                           "\" data-label=\"", escape(series.label), "\">");
  if (series.band) out += "<polygon class=\"band\" points=\"" + band + back + "\"/>";
  return out + "<polyline points=\"" + line + "\"/>" + dots + "</g>";
}

std::string value_table(const LineChart& chart) {
  std::string out = concat("<table><thead><tr><th>series</th><th>", escape(chart.x_label),
                           "</th><th>", escape(chart.y_label.empty() ? chart.title : chart.y_label),
                           "</th></tr></thead><tbody>");
  for (const ChartSeries& series : chart.series)
    for (const ChartPoint& p : series.points)
      out += concat("<tr><td>", escape(series.label), "</td><td>", significant(p.x, 7), "</td><td>",
                    significant(p.y, 6), "</td></tr>");
  return out + "</tbody></table>";
}

}  // namespace

std::string legend(const std::vector<LegendKey>& keys) {
  std::string out = "<ul class=\"legend\">";
  for (const LegendKey& key : keys)
    out += concat("<li><i class=\"key ", key.css, "\"></i>", escape(key.label), "</li>");
  return out + "</ul>";
}

std::string figure(const std::string& id, const std::string& kind, const std::string& title,
                   const std::string& note, const std::string& content, const std::string& table) {
  std::string out = concat("<figure id=\"", id, "\" class=\"", kind, "\"><figcaption><h3>",
                           escape(title), "</h3>");
  if (!note.empty()) out += "<p>" + escape(note) + "</p>";
  out += "</figcaption>" + content;
  if (!table.empty())
    out += "<details><summary>Values</summary><div class=\"scroll\" tabindex=\"0\">" + table +
           "</div></details>";
  return out + "</figure>\n";
}

std::string draw_chart(const LineChart& chart) {
  Range xs, ys;
  for (const ChartSeries& series : chart.series)
    for (const ChartPoint& p : series.points) {
      if (chart.log_y && p.low <= 0) continue;
      xs.add(p.x);
      ys.add(series.band ? p.low : p.y);
      ys.add(series.band ? p.high : p.y);
    }
  if (xs.empty()) return "";
  for (const double end : {chart.x_first, chart.x_last})
    if (!std::isnan(end)) xs.add(end);
  const Scale x = Scale::linear(xs.low, xs.high, kLeft, kWidth - kRight);
  const Scale y = y_scale(chart, ys);
  std::string body;
  std::vector<LegendKey> keys;
  for (const ChartSeries& series : chart.series) {
    if (series.points.empty()) continue;
    body += draw_series(series, x, y);
    keys.push_back({series.label, concat("line c", series.colour, series.dashed ? " dashed" : "")});
  }
  std::string svg =
      concat("<div class=\"plot\"><svg viewBox=\"0 0 ", kWidth, " ", kHeight,
             "\" role=\"img\" tabindex=\"0\" aria-label=\"", escape(chart.title), " over ",
             escape(chart.x_label), "\" data-x=\"", significant(x.first(), 12), " ",
             significant(x.last(), 12), " ", kLeft, " ", kWidth - kRight, "\" data-y=\"",
             significant(y.first(), 12), " ", significant(y.last(), 12), " ", kHeight - kBottom,
             " ", kTop, y.is_logarithmic() ? " log" : "", "\">", axes(chart, x, y), body,
             "<line class=\"cursor\" y1=\"", kTop, "\" y2=\"", kHeight - kBottom,
             "\" x1=\"0\" x2=\"0\" visibility=\"hidden\"/></svg><div class=\"tip\" "
             "aria-live=\"polite\" hidden></div></div>");
  if (keys.size() > 1) svg += legend(keys);
  return figure(chart.id, "chart", chart.title, chart.note, svg, value_table(chart));
}

std::vector<ChartPoint> thin(const std::vector<std::pair<double, double>>& values, int64_t points) {
  std::vector<std::pair<double, double>> finite;
  for (const auto& value : values)
    if (std::isfinite(value.second)) finite.push_back(value);
  std::vector<ChartPoint> out;
  const auto count = std::ssize(finite);
  const int64_t buckets = std::min<int64_t>(count, points);
  for (int64_t b = 0; b < buckets; ++b) {
    const int64_t begin = b * count / buckets, end = (b + 1) * count / buckets;
    ChartPoint p{.x = 0, .y = 0, .low = INFINITY, .high = -INFINITY};
    for (int64_t i = begin; i < end; ++i) {
      const auto [x, y] = finite[static_cast<size_t>(i)];
      p.x += x / static_cast<double>(end - begin);
      p.y += y / static_cast<double>(end - begin);
      p.low = std::min(p.low, y);
      p.high = std::max(p.high, y);
    }
    out.push_back(p);
  }
  return out;
}

}  // namespace heddle
