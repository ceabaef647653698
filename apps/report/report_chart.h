// Line charts of the report: SVG that is complete without a script, with the values as a table
// behind a fold, from which the page's script reads what it shows under the pointer.
//
//   out += draw_chart({.id = "loss", .title = "Training loss", .series = {...}});
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace heddle {

struct ChartPoint {
  double x, y;
  double low, high;  // of what the point stands for; equal to y for a single value
};

struct ChartSeries {
  std::string label;
  int colour = 0;  // which of the page's eight
  std::vector<ChartPoint> points;
  bool dots = false;  // a mark at every point
  bool dashed = false;
  bool band = false;  // from low to high
};

struct LineChart {
  std::string id, title;
  std::string note = "";  // a sentence on what is shown and how it was made
  std::string x_label = "step", y_label = "";
  bool log_y = false, from_zero = false;
  bool x_bytes = false, y_bytes = false;  // units of the ticks
  double x_first = NAN, x_last = NAN;     // what the axis shows at least
  std::vector<ChartSeries> series = {};
};

// Empty without a finite point.
std::string draw_chart(const LineChart& chart);

// Steps are put together to about so many points, each their mean, with the least and the largest.
// Values that are not finite are left out.
std::vector<ChartPoint> thin(const std::vector<std::pair<double, double>>& values, int64_t points);

// The frame of a figure: its title, note, content and the table of its values behind a fold.
std::string figure(const std::string& id, const std::string& kind, const std::string& title,
                   const std::string& note, const std::string& content, const std::string& table);
// Coloured keys with names; a dashed one for dashed lines.
struct LegendKey {
  std::string label, css;  // css: a class
};
std::string legend(const std::vector<LegendKey>& keys);

}  // namespace heddle
