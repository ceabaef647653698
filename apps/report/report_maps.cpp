#include <algorithm>
#include <cmath>
#include <map>

#include "apps/report/report_chart.h"
#include "apps/report/report_figures.h"
#include "apps/report/svg.h"
#include "core/error.h"

namespace heddle {
namespace {

constexpr double kWidth = 1160, kLeft = 180, kRight = 12, kTop = 6, kRow = 15;

// A table of classes: rows by columns, "" where there is nothing.
struct Cell {
  std::string css, title, value;
};
struct HeatMap {
  std::string id, title, note, label;
  std::vector<std::string> rows;
  std::vector<int64_t> columns;               // the steps at which they begin
  int64_t end = 0;                            // where the last one ends
  std::vector<std::vector<Cell>> cells = {};  // by row
  std::string key = {};                       // the legend
};

std::string map_table(const HeatMap& map) {
  std::string out = "<table><thead><tr><th>layer</th>";
  for (const int64_t step : map.columns) out += concat("<th>step ", step, "</th>");
  out += "</tr></thead><tbody>";
  for (size_t r = 0; r < map.rows.size(); ++r) {
    out += "<tr><td>" + escape(map.rows[r]) + "</td>";
    for (const Cell& cell : map.cells[r]) out += "<td>" + cell.value + "</td>";
    out += "</tr>";
  }
  return out + "</tbody></table>";
}

// Equal neighbours are one rectangle: plans that stay as they were cost nothing.
std::string map_row(const HeatMap& map, size_t r, const Scale& x, double y) {
  std::string out = concat("<text class=\"label\" x=\"", kLeft - 8, "\" y=\"", fixed(y + 11, 1),
                           "\" text-anchor=\"end\">", escape(map.rows[r]), "</text>");
  const auto& cells = map.cells[r];
  for (size_t c = 0; c < cells.size();) {
    size_t next = c + 1;
    while (next < cells.size() && cells[next].value == cells[c].value &&
           cells[next].css == cells[c].css)
      ++next;
    const double from = x(static_cast<double>(map.columns[c]));
    const double to = x(static_cast<double>(next < cells.size() ? map.columns[next] : map.end));
    if (!cells[c].css.empty())
      out += concat("<rect class=\"", cells[c].css, "\" x=\"", fixed(from, 2), "\" y=\"",
                    fixed(y, 1), "\" width=\"", fixed(std::max(to - from - 0.8, 0.5), 2),
                    "\" height=\"", kRow - 1, "\"><title>", escape(map.rows[r]), ", from step ",
                    map.columns[c], ": ", escape(cells[c].title), "</title></rect>");
    c = next;
  }
  return out;
}

std::string draw_map(const HeatMap& map) {
  if (map.rows.empty() || map.columns.empty()) return "";
  const Scale x = Scale::linear(static_cast<double>(map.columns.front()),
                                static_cast<double>(map.end), kLeft, kWidth - kRight);
  std::string svg;
  double y = kTop;
  for (size_t r = 0; r < map.rows.size(); ++r, y += kRow) svg += map_row(map, r, x, y);
  svg += "<g class=\"axes\">";
  for (const double tick : x.ticks(8))
    svg += concat("<text x=\"", fixed(x(tick), 1), "\" y=\"", fixed(y + 15, 1), "\" text-anchor=\"",
                  x(tick) > kWidth - 30 ? "end" : "middle", "\">", significant(tick, 7), "</text>");
  svg += concat("<text class=\"name\" x=\"", kLeft - 28, "\" y=\"", fixed(y + 15, 1),
                "\" text-anchor=\"end\">step</text></g>");
  return figure(map.id, "chart wide", map.title, map.note,
                concat("<div class=\"scroll\" tabindex=\"0\"><svg class=\"wide\" viewBox=\"0 0 ",
                       kWidth, " ", fixed(y + 22, 0), "\" role=\"img\" aria-label=\"",
                       escape(map.title), "\">", svg, "</svg></div>", map.key),
                map_table(map));
}

// As many columns as there may be cells, evenly, the last among them.
template <class Record>
std::vector<const Record*> some(const std::vector<Record>& all, int64_t cells) {
  const int64_t rows = std::max<int64_t>(1, std::ssize(all.back().layers));
  const size_t most = static_cast<size_t>(std::clamp<int64_t>(cells / rows, 1, 120));
  std::vector<const Record*> out;
  const size_t count = std::min(all.size(), most);
  for (size_t i = 0; i < count; ++i)
    out.push_back(&all[count == 1 ? all.size() - 1 : i * (all.size() - 1) / (count - 1)]);
  return out;
}

std::string steps_key(const char* low, const std::vector<std::string>& classes, const char* high) {
  std::string out = concat("<p class=\"ramp\">", low, " ");
  for (const std::string& css : classes) out += "<i class=\"" + css + "\"></i>";
  return out + concat(" ", high, "</p>");
}

Cell plan_cell(const PlanRecord::Layer& layer) {
  const double finer = std::log2(layer.bytes / layer.uniform_bytes);  // with two a factor of four
  const int shade = std::clamp(static_cast<int>(std::lround(finer * 2)), -4, 4);
  return {.css = concat("d", shade < 0 ? "m" : "p", std::abs(shade)),
          .title = concat("setting ", significant(layer.setting), ", uniform ",
                          significant(layer.uniform), "; ", scaled(layer.bytes, "B"), " of ",
                          scaled(layer.uniform_bytes, "B")),
          .value = significant(layer.setting)};
}

double backlog(const std::map<std::string, double>& layer) {
  const auto residual = layer.find("residual_norm"), gradient = layer.find("gradient_norm");
  if (residual == layer.end() || gradient == layer.end() || !(gradient->second > 0)) return NAN;
  return residual->second / gradient->second;
}

}  // namespace

std::string draw_plans(const RunRecord& run, int64_t cells) {
  if (run.plans.empty()) return "";
  HeatMap map{.id = "plans",
              .title = "Plans, layer by layer",
              .note = concat("The setting of ", run.plans.back().family,
                             " that each plan gave a layer, beside the uniform one. A plan holds "
                             "until the next"),
              .label = "",
              .rows = {},
              .columns = {},
              .end = run.steps.empty() ? 0 : run.steps.back().step};
  const auto plans = some(run.plans, cells);
  for (const auto& layer : plans.back()->layers) map.rows.push_back(layer.name);
  for (const PlanRecord* plan : plans) map.columns.push_back(plan->step);
  map.end = std::max(map.end, map.columns.back() + 1);
  for (const std::string& name : map.rows) {
    std::vector<Cell> row;
    for (const PlanRecord* plan : plans) {
      const auto layer = std::ranges::find(plan->layers, name, &PlanRecord::Layer::name);
      row.push_back(layer == plan->layers.end() ? Cell{} : plan_cell(*layer));
    }
    map.cells.push_back(row);
  }
  map.key =
      steps_key("a quarter of the uniform bytes",
                {"dm4", "dm3", "dm2", "dm1", "dp0", "dp1", "dp2", "dp3", "dp4"}, "four times");
  return draw_map(map);
}

std::string draw_residuals(const RunRecord& run, int64_t cells) {
  if (run.looks.empty()) return "";
  HeatMap map{.id = "residuals",
              .title = "Residuals",
              .note =
                  "Norm of what is held back, over the norm of a step's gradient: how many "
                  "steps' worth each layer owes",
              .label = "",
              .rows = {},
              .columns = {}};
  const auto looks = some(run.looks, cells);
  double most = 0;
  for (const auto& [name, values] : looks.back()->layers) map.rows.push_back(name);
  for (const LookRecord* look : looks) {
    map.columns.push_back(look->step);
    for (const auto& [name, values] : look->layers)
      if (const double owed = backlog(values); owed > most) most = owed;
  }
  map.end = map.columns.back() +
            (map.columns.size() > 1 ? map.columns.back() - map.columns[map.columns.size() - 2] : 1);
  for (const std::string& name : map.rows) {
    std::vector<Cell> row;
    for (const LookRecord* look : looks) {
      const auto layer =
          std::ranges::find(look->layers, name, [](const auto& x) { return x.first; });
      const double owed = layer == look->layers.end() ? NAN : backlog(layer->second);
      if (std::isnan(owed)) {
        row.push_back({});
        continue;
      }
      const int shade = most > 0 ? static_cast<int>(std::min(owed / most * 9, 8.0)) : 0;
      row.push_back({.css = concat("s", shade),
                     .title = concat(significant(owed, 4), " (norm ",
                                     significant(layer->second.at("residual_norm")), ")"),
                     .value = significant(owed, 4)});
    }
    map.cells.push_back(row);
  }
  const std::string top = significant(most, 3);
  map.key = steps_key("0", {"s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8"}, top.c_str());
  return draw_map(map);
}

std::string draw_quality(const RunRecord& run) {
  if (run.looks.empty()) return "";
  struct Column {
    const char *key, *name;
    bool bar;
  };
  constexpr Column kColumns[] = {{"contraction", "contraction", true},
                                 {"cosine", "cosine", true},
                                 {"backlog", "residual / gradient", false},
                                 {"alike", "alike", true},
                                 {"mismatch", "d / k", true},
                                 {"bound", "bound", true}};
  std::map<std::string, std::map<std::string, std::pair<double, int64_t>>> sums;
  double alike = 0;
  for (const LookRecord& look : run.looks) {
    alike += look.alike / static_cast<double>(run.looks.size());
    for (const auto& [name, values] : look.layers) {
      auto& sum = sums[name];
      for (const auto& [key, value] : values) sum[key].first += value, ++sum[key].second;
    }
  }
  std::string out =
      "<div class=\"scroll\" tabindex=\"0\"><table class=\"meter\"><thead><tr><th>"
      "layer</th>";
  for (const Column& column : kColumns) out += concat("<th>", column.name, "</th>");
  out += "</tr></thead><tbody>";
  for (const auto& [name, ignored] : run.looks.back().layers) {
    auto& sum = sums[name];
    out += "<tr><th scope=\"row\">" + escape(name) + "</th>";
    for (const Column& column : kColumns) {
      const auto mean = [&](const char* key) {
        return sum.contains(key) ? sum[key].first / static_cast<double>(sum[key].second) : NAN;
      };
      const bool owed = column.key == std::string("backlog");
      const double value = owed ? mean("residual_norm") / mean("gradient_norm") : mean(column.key);
      const std::string share =
          column.bar && !std::isnan(value)
              ? concat(" class=\"bar\" style=\"--v:", fixed(100 * std::clamp(value, 0.0, 1.0), 1),
                       "%\"")
              : "";
      out += concat("<td", share, ">", significant(value, 3), "</td>");
    }
    out += "</tr>";
  }
  return figure(
      "quality", "chart wide", "Quality meter",
      concat("Means over ", run.looks.size(),
             " looks. Contraction: the part of what was to be sent that was not, below 1 the "
             "residual can catch up. Cosine: of what was applied and the dense sum. Alike: "
             "correlation of the learners' gradients, over all layers ",
             significant(alike, 3),
             ". d / k: the part of the right selection that the leader did not choose; bound: the "
             "contraction that this allows"),
      out + "</tbody></table></div>", "");
}

}  // namespace heddle
