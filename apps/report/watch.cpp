#include "apps/report/watch.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <thread>

#include "apps/cli/format.h"
#include "apps/cli/json.h"
#include "apps/cli/program.h"
#include "apps/log/progress.h"
#include "apps/log/run_folder.h"
#include "apps/report/report_page.h"
#include "core/error.h"
#include "core/files.h"
#include "core/scalar.h"
#include "core/trace.h"

namespace heddle {
namespace {

constexpr int kChartRows = 9, kScaleWidth = 9;
constexpr int64_t kRecentSteps = 20;
constexpr int kMostFailures = 5;                      // one after the other
constexpr int kRenewSeconds = 2;                      // of the page
constexpr double kLongSteps = 10, kLongSeconds = 30;  // without a line

// Returns whether the locale is UTF-8.
bool has_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"})
    if (const char* value = std::getenv(name); value != nullptr && *value != '\0') {
      const std::string_view text = value;
      return text.find("UTF-8") != text.npos || text.find("utf8") != text.npos;
    }
  return false;
}

// Holds the dots of a chart; a Braille character has two by four.
class Canvas {
 public:
  Canvas(int columns, int rows, bool utf8)
      : columns_(columns), utf8_(utf8), cells_(to_size(columns * rows)) {}

  void dot(int x, int y) {
    static constexpr int kBits[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    cells_[to_size(y / 4 * columns_ + x / 2)] |= kBits[y % 4][x % 2];
  }
  void line(int x0, int y0, int x1, int y1) {
    const int steps = std::max({std::abs(x1 - x0), std::abs(y1 - y0), 1});
    for (int i = 0; i <= steps; ++i) dot(x0 + (x1 - x0) * i / steps, y0 + (y1 - y0) * i / steps);
  }
  std::string row(int number) const {
    std::string out;
    for (int c = 0; c < columns_; ++c) {
      const int bits = cells_[to_size(number * columns_ + c)];
      if (!utf8_) {
        out += bits != 0 ? '*' : ' ';
        continue;
      }
      out += "\xe2";  // U+2800 + bits
      out += static_cast<char>(0xa0 | bits >> 6);
      out += static_cast<char>(0x80 | (bits & 0x3f));
    }
    return out;
  }

 private:
  int columns_;
  bool utf8_;
  std::vector<int> cells_;
};

// Returns the dot of a value, from dot 0 at `low` to dot `dots` at `high`.
int dot_at(double value, double low, double high, int dots) {
  const double part = (value / 2 - low / 2) / (high / 2 - low / 2);  // halves do not overflow
  return std::isfinite(part) ? to_int(std::clamp(part, 0.0, 1.0) * dots) : 0;
}

std::string scale_text(double value) {
  std::string text = significant(value, 4);
  if (text.size() > kScaleWidth - 2) {
    char exponent[16];
    std::snprintf(exponent, sizeof exponent, "%.2g", value);  // 1.2e-05
    text = exponent;
  }
  return pad_left(text, kScaleWidth - 2) + "  ";
}

// Returns the seconds since the last line was written; 0 if unknown.
double idle_seconds(const std::string& folder) {
  std::error_code error;
  const auto written =
      std::filesystem::last_write_time(std::filesystem::path(folder) / "metrics.jsonl", error);
  if (error) return 0;
  const auto now = std::filesystem::file_time_type::clock::now();
  return std::chrono::duration<double>(now - written).count();
}

// Returns a remark on a run that has written nothing for a long time: it may have been killed, or
// be evaluating.
std::string idle_text(const RunRecord& run, double step_s, double idle_s) {
  if (!run.summary.empty() || idle_s < std::max(kLongSeconds, kLongSteps * step_s)) return "";
  return "  nothing written for " + format_duration(idle_s) + ": evaluating, waiting or killed\n";
}

std::string recent_text(const RunRecord& run, double idle_s) {
  const auto begin = run.steps.end() - std::min<int64_t>(kRecentSteps, std::ssize(run.steps));
  double seconds = 0, exposed = 0, sent = 0, dense = 0, rate = 0;
  for (auto s = begin; s != run.steps.end(); ++s) {
    seconds += s->seconds();
    exposed += s->exposed;
    sent += s->sent;
    dense += s->dense;
    rate += s->rate * s->seconds();
  }
  const double step_s = seconds / to_double(run.steps.end() - begin);
  const StepRecord& last = run.steps.back();
  std::string out = concat("  loss ", significant(last.loss, 4), "  lr ", significant(last.lr, 3),
                           "  ", scaled(rate / seconds), " ", run.unit(), "/s");
  if (const std::string steps = run.setting("steps"); !steps.empty() && run.summary.empty()) {
    const double left = std::atof(steps.c_str()) - to_double(last.step);
    if (left > 0) out += "  " + format_duration(left * step_s) + " left";
  }
  if (sent > 0)
    out += concat("\n  ratio ", significant(dense / sent, 3), "  exposed ",
                  significant(100 * exposed / seconds, 2), " % of a step");
  return out + '\n' + idle_text(run, step_s, idle_s);
}

// Long runs take long to read: no more than a tenth of a core goes into it.
std::chrono::duration<double> pause_after(double work_s, double least_s) {
  return std::chrono::duration<double>(std::max(least_s, 9 * work_s));
}

}  // namespace

std::string terminal_chart(const std::vector<std::pair<double, double>>& values, int columns,
                           int rows, bool utf8) {
  std::vector<std::pair<double, double>> finite;
  for (const auto& value : values)
    if (std::isfinite(value.second)) finite.push_back(value);
  const int wide = columns - kScaleWidth;
  if (finite.empty() || wide < 4 || rows < 2) return "";
  double low = INFINITY, high = -INFINITY;
  for (const auto& [x, y] : finite) low = std::min(low, y), high = std::max(high, y);
  const double room = high > low ? 0 : std::abs(high) * 0.1 + 1e-6;
  const double first = finite.front().first, last = finite.back().first;
  Canvas canvas(wide, rows, utf8);
  int x = -1, y = 0;
  for (const auto& [at, value] : finite) {
    const int next_x = dot_at(at, first, last, 2 * wide - 1);
    const int next_y = 4 * rows - 1 - dot_at(value, low - room, high + room, 4 * rows - 1);
    canvas.line(x < 0 ? next_x : x, x < 0 ? next_y : y, next_x, next_y);
    x = next_x;
    y = next_y;
  }
  std::string out;
  for (int r = 0; r < rows; ++r) {
    const bool first = r == 0, last = r == rows - 1;
    out += first ? scale_text(high + room)
                 : (last ? scale_text(low - room) : std::string(kScaleWidth, ' '));
    out += canvas.row(r) + '\n';
  }
  return out;
}

std::string watch_text(const RunRecord& run, int columns, bool utf8, double idle_s) {
  std::string out = printable(run.folder, 400);
  std::string skipped;
  for (const std::string& what : run.skipped)
    skipped += concat("  skipped: ", printable(what, 400), '\n');
  if (run.steps.empty()) return out + "\n  no step yet\n" + skipped + idle_text(run, 0, idle_s);
  const StepRecord& last = run.steps.back();
  out += concat("  epoch ", last.epoch, "  step ", last.step);
  if (const std::string steps = run.setting("steps"); !steps.empty()) out += "/" + printable(steps);
  if (const std::string status = text_at(run.summary, "summary"); !status.empty())
    out += "  " + printable(status);
  out += '\n' + recent_text(run, idle_s) + skipped;
  const std::string key = run.score_key();
  for (auto score = run.scores.rbegin(); score != run.scores.rend(); ++score)
    if (const double value = number_at(*score, key); !std::isnan(value)) {
      out += concat("  ", printable(text_at(*score, "split")), " ", key, " ", significant(value),
                    " after epoch ", whole_at(*score, "epoch"), '\n');
      break;
    }
  std::vector<std::pair<double, double>> losses;  // a mean for each column
  const auto count = std::ssize(run.steps);
  const int64_t points = std::min<int64_t>(count, std::max(columns - kScaleWidth, 4));
  for (int64_t p = 0; p < points; ++p) {
    const int64_t begin = p * count / points, end = (p + 1) * count / points;
    double sum = 0, known = 0;
    for (int64_t i = begin; i < end; ++i)
      if (const double loss = run.steps[to_size(i)].loss; std::isfinite(loss)) sum += loss, ++known;
    losses.emplace_back(to_double(p), sum / known);
  }
  return out + terminal_chart(losses, columns, kChartRows, utf8);
}

void watch_run(const std::string& folder, bool once) {
  for (bool again = false;; again = true) {
    const double begin = steady_seconds();
    const RunRecord run = read_run(folder);
    const std::string text =
        watch_text(run, terminal_columns(stdout), has_utf8(), idle_seconds(folder));
    print((again ? "\033[H\033[J" : "") + text);
    if (once || !can_redraw(stdout) || !run.summary.empty()) return;
    std::this_thread::sleep_for(pause_after(steady_seconds() - begin, 1));
  }
}

void watch_page(const std::string& folder, const std::string& output, bool once) {
  size_t shown = 0;
  int failed = 0;
  while (true) {
    const double begin = steady_seconds();
    // A run that cannot be seen to use its folder, on another host perhaps, has time to begin.
    const bool in_use = RunFolder::in_use(folder);
    try {
      const RunRecord run = read_run(folder);
      const bool lasts =
          !once && (in_use || (run.summary.empty() && idle_seconds(folder) < kLongSeconds));
      const size_t lines = run.steps.size() + run.scores.size() + run.texts.size() + 1;
      if (lines != shown || !lasts)
        write_file_atomically(output, report_page({run}, lasts ? kRenewSeconds : 0));
      if (shown == 0) print("open " + output + (lasts ? ", which follows the run\n" : "\n"));
      if (!lasts) return;
      shown = lines;
      failed = 0;
    } catch (const Error&) {  // a file that is being replaced, perhaps
      if (shown == 0 || ++failed == kMostFailures) throw;
    }
    std::this_thread::sleep_for(pause_after(steady_seconds() - begin, kRenewSeconds));
  }
}

}  // namespace heddle
