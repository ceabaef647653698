#include <algorithm>
#include <array>
#include <cmath>

#include "apps/report/report_chart.h"
#include "apps/report/report_figures.h"
#include "apps/report/svg.h"
#include "core/error.h"

namespace heddle {
namespace {

constexpr double kWidth = 460, kLeft = 14, kRight = 14;
constexpr size_t kMaxLayers = 24;  // the smaller ones stand together in one row

struct Part {
  const char *name, *css;
  double seconds;
};

// The main thread waits for exchanges within what is booked as update.
std::vector<Part> main_parts(const StepRecord& s) {
  const double exposed = std::isnan(s.exposed) ? 0 : std::min(s.exposed, s.update);
  return {{"data", "p-data", s.data},
          {"forward", "p-forward", s.forward},
          {"backward", "p-backward", s.backward},
          {"exposed communication", "p-wait", exposed},
          {"update", "p-update", s.update - exposed}};
}

std::vector<Part> exchange_parts(const StepRecord& s) {
  if (std::isnan(s.comm)) return {};
  return {{"compress", "p-compress", s.compress}, {"collectives", "p-comm", s.comm}};
}

std::string bar(const std::vector<Part>& parts, const Scale& x, double top) {
  std::string out;
  double at = 0;
  for (const Part& part : parts) {
    const double wide = x(at + part.seconds) - x(at);
    if (wide > 0)
      out +=
          concat("<rect class=\"", part.css, "\" x=\"", fixed(x(at), 2), "\" y=\"", fixed(top, 1),
                 "\" width=\"", fixed(std::max(wide - 1, 0.4), 2), "\" height=\"18\"><title>",
                 part.name, ": ", duration_text(part.seconds), "</title></rect>");
    at += part.seconds;
  }
  return out + concat("<text class=\"value\" x=\"", fixed(x(at) + 6, 1), "\" y=\"",
                      fixed(top + 13.5, 1), "\">", duration_text(at), "</text>");
}

double sum(const std::vector<Part>& parts) {
  double total = 0;
  for (const Part& part : parts) total += part.seconds;
  return total;
}

struct Row {
  std::string layer;
  double dense = 0, sent = 0;
  std::string title;
};

// Bytes of a step, by layer, the largest first.
std::vector<Row> layer_rows(const RunRecord& run) {
  int64_t elements = 0;
  for (const LedgerRecord& record : run.ledger) elements += record.elements;
  if (elements == 0 || run.steps.empty()) return {};
  const auto steps = static_cast<double>(run.steps.size());
  std::vector<Row> rows;
  for (const LedgerRecord& record : run.ledger) {
    if (record.elements == 0) continue;
    Row row{.layer = record.layer,
            .dense = run.steps.back().dense * static_cast<double>(record.elements) /
                     static_cast<double>(elements),
            .sent = record.all_sent() / steps,
            .title = ""};
    for (const auto& [kind, bytes] : record.sent)
      row.title += concat("; ", kind, " ", scaled(bytes / steps, "B"));
    rows.push_back(row);
  }
  std::ranges::stable_sort(rows, std::greater<>(), &Row::dense);
  if (rows.size() > kMaxLayers + 1) {
    Row rest{.layer = concat(rows.size() - kMaxLayers, " smaller tensors"), .title = ""};
    for (size_t i = kMaxLayers; i < rows.size(); ++i) {
      rest.dense += rows[i].dense;
      rest.sent += rows[i].sent;
    }
    rows.resize(kMaxLayers);
    rows.push_back(rest);
  }
  return rows;
}

std::string layer_row(const Row& row, const Scale& x, double y, int colour) {
  const std::string at = fixed(y, 1);
  return concat("<g><title>", escape(row.layer), ": dense ", scaled(row.dense, "B"), ", sent ",
                scaled(row.sent, "B"), escape(row.title),
                "</title><text class=\"label\" x=\"132\" "
                "y=\"",
                fixed(y + 3.5, 1), "\" text-anchor=\"end\">", escape(row.layer),
                "</text><line class=\"thread\" x1=\"", fixed(x(row.sent), 1), "\" x2=\"",
                fixed(x(row.dense), 1), "\" y1=\"", at, "\" y2=\"", at,
                "\"/><circle class=\"hollow\" cx=\"", fixed(x(row.dense), 1), "\" cy=\"", at,
                "\" r=\"3.6\"/><circle class=\"f", colour, "\" cx=\"", fixed(x(row.sent), 1),
                "\" cy=\"", at, "\" r=\"4\"/><text class=\"value\" x=\"", kWidth - 4, "\" y=\"",
                fixed(y + 3.5, 1), "\" text-anchor=\"end\">", significant(row.dense / row.sent, 3),
                "×</text></g>");
}

}  // namespace

std::string draw_breakdown(const std::vector<RunRecord>& runs) {
  double longest = 0;
  bool exchanging = false;
  for (const RunRecord& run : runs) {
    const StepRecord s = settled_step(run);
    if (std::isnan(s.seconds())) return "";
    longest = std::max({longest, sum(main_parts(s)), sum(exchange_parts(s))});
    exchanging = exchanging || !exchange_parts(s).empty();
  }
  const Scale x = Scale::linear(0, longest, kLeft, kWidth - kRight - 48);
  std::string svg, table =
                       "<table><thead><tr><th>run</th><th>part</th><th>seconds</th></tr></thead>"
                       "<tbody>";
  double y = 6;
  for (const RunRecord& run : runs) {
    const StepRecord s = settled_step(run);
    const auto computing = main_parts(s), exchange = exchange_parts(s);
    if (runs.size() > 1) {
      svg += concat("<text class=\"strong\" x=\"", kLeft, "\" y=\"", fixed(y + 10, 1), "\">",
                    escape(run.name), "</text>");
      y += 17;
    }
    const auto row = [&](const char* name, const std::vector<Part>& parts) {
      svg += concat("<text class=\"label\" x=\"", kLeft, "\" y=\"", fixed(y + 9, 1), "\">", name,
                    "</text>", bar(parts, x, y + 13));
      y += 38;
      for (const Part& part : parts)
        table += concat("<tr><td>", escape(run.name), "</td><td>", part.name, "</td><td>",
                        significant(part.seconds, 6), "</td></tr>");
    };
    row("computing thread", computing);
    if (!exchange.empty()) row("exchanging thread, at the same time", exchange);
    y += 8;
  }
  std::vector<LegendKey> keys = {
      {"data", "p-data"}, {"forward", "p-forward"}, {"backward", "p-backward"}};
  if (exchanging) keys.push_back({"exposed communication", "p-wait"});
  keys.push_back({"update", "p-update"});
  if (exchanging) keys.insert(keys.end(), {{"compress", "p-compress"}, {"collectives", "p-comm"}});
  return figure(
      "breakdown", "chart", "Where a step's time goes",
      "Mean over the second half of the run. Communication is exposed where the computing "
      "thread has to wait for it; the rest hides behind backward",
      concat("<svg viewBox=\"0 0 ", kWidth, " ", fixed(y, 0),
             "\" role=\"img\" aria-label=\"Where a step's time goes\">", svg, "</svg>",
             legend(keys)),
      table + "</tbody></table>");
}

std::string draw_layer_bytes(const RunRecord& run, int colour) {
  const std::vector<Row> rows = layer_rows(run);
  if (rows.empty()) return "";
  double low = INFINITY, high = 0;
  for (const Row& row : rows) {
    if (row.sent > 0) low = std::min({low, row.dense, row.sent});
    high = std::max({high, row.dense, row.sent});
  }
  const Scale x = Scale::logarithmic(low / 1.3, high * 1.3, 142, kWidth - 48);
  const double bottom = 14.0 + 15.0 * static_cast<double>(rows.size());
  std::string svg = "<g class=\"axes\">",
              table =
                  "<table><thead><tr><th>layer</th><th>dense, bytes"
                  "</th><th>sent, bytes</th><th>ratio</th></tr></thead><tbody>";
  for (const double tick : x.ticks(4))
    svg +=
        concat("<line x1=\"", fixed(x(tick), 1), "\" x2=\"", fixed(x(tick), 1), "\" y1=\"4\" y2=\"",
               fixed(bottom - 4, 1), "\"/><text x=\"", fixed(x(tick), 1), "\" y=\"",
               fixed(bottom + 10, 1), "\" text-anchor=\"middle\">", scaled(tick, "B"), "</text>");
  svg += "</g>";
  double y = 12;
  for (const Row& row : rows) {
    if (row.sent > 0) svg += layer_row(row, x, y, colour);
    y += 15;
    table += concat("<tr><td>", escape(row.layer), "</td><td>", significant(row.dense, 7),
                    "</td><td>", significant(row.sent, 7), "</td><td>",
                    significant(row.dense / row.sent, 4), "</td></tr>");
  }
  return figure(
      "layer-bytes", "chart", "Bytes by layer, before and after",
      "What one learner sends for a layer in a step, mean over the run with its dense "
      "beginning; logarithmic",
      concat("<svg viewBox=\"0 0 ", kWidth, " ", fixed(bottom + 16, 0),
             "\" role=\"img\" aria-label=\"Bytes by layer, dense and sent\">", svg, "</svg>",
             legend({{"dense", "hollow-key"}, {"sent", concat("dot f", colour)}})),
      table + "</tbody></table>");
}

}  // namespace heddle
