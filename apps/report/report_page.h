// report.html: one page on one run, or several beside each other, complete in itself: figures as
// inline SVG, a style for light and dark, a script that shows values under the pointer and is not
// needed for anything else. Nothing is fetched.
//
//   write_file_atomically("report.html", report_page({read_run("runs/a"), read_run("runs/b")}));
#pragma once

#include <string>
#include <vector>

#include "apps/report/report_data.h"

namespace heddle {

constexpr size_t kMaxReportRuns = 8;         // as many as there are colours
constexpr size_t kMaxReportBytes = 1900000;  // maps show fewer columns rather than be larger

// Throws InputError for no runs or too many.
std::string report_page(std::vector<RunRecord> runs);

// Of report_page, in a file of their own.
extern const char* const kReportStyle;
extern const char* const kReportScript;

}  // namespace heddle
