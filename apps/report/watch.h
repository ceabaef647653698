// Follows a run in the terminal: where it stands, and its loss as a small chart. On a terminal it
// redraws itself until the run ends; elsewhere, or with --once, it says it once.
//
//   ./run watch runs/a
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "apps/report/report_data.h"

namespace heddle {

// A line chart of `rows` lines of text and `columns` of them wide, the scale of y on the left; of
// Braille patterns, or of stars where the terminal has no UTF-8. Values that are not finite are
// left out.
std::string terminal_chart(const std::vector<std::pair<double, double>>& values, int columns,
                           int rows, bool utf8);

// What is shown, lines with their ends: name, step, loss, learning rate, rate, time left where
// --steps says how many there will be, ratio and exposed communication, the last validation, chart;
// and that nothing was written for `idle_s`, where that is long beside a step.
std::string watch_text(const RunRecord& run, int columns, bool utf8, double idle_s = 0);

// Returns when the run has ended, or at once where `once`.
void watch_run(const std::string& folder, bool once);

}  // namespace heddle
