// Follows a run in the terminal: its position, and its loss as a small chart. On a terminal it
// redraws itself until the run ends; elsewhere, or with --once, it prints once.
//
//   ./run watch runs/a
//   ./run watch --html runs/a     # keeps its report.html up to date instead
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "apps/report/report_data.h"

namespace heddle {

// Returns a line chart of `rows` lines and `columns` columns, with the scale of y on the left; of
// Braille patterns, or of stars if the terminal has no UTF-8. Values that are not finite are
// omitted.
std::string terminal_chart(const std::vector<std::pair<double, double>>& values, int columns,
                           int rows, bool utf8);

// Returns the lines to show: name, step, loss, learning rate, rate, remaining time if --steps
// limits the run, ratio and exposed communication, the last validation, chart; and a remark if
// nothing was written for `idle_s` seconds, which is long compared with a step.
std::string watch_text(const RunRecord& run, int columns, bool utf8, double idle_s = 0);

// Shows the run until it has ended, or `once`. Throws InputError as read_run(), and Error if stdout
// cannot be written.
void watch_run(const std::string& folder, bool once);

// Writes the report of the run to `output` when it has new lines, at most every two seconds, until
// the run has ended, been killed or, where that cannot be seen, been idle for half a minute; with
// `once`, writes it once. Throws as watch_run(), and Error if `output` cannot be written.
void watch_page(const std::string& folder, const std::string& output, bool once);

}  // namespace heddle
