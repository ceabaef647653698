// Makes report.html: one self-contained page on a run, or on several next to each other. It is
// the embedded report.html with report.css, the library dygraphs, report.js and the figures
// (report_json.h) filled in; the page fetches nothing. Texts of a run are only ever JSON here, and
// textContent in the page.
//
//   write_file_atomically("report.html", report_page({read_run("runs/a"), read_run("runs/b")}));
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "apps/report/report_data.h"

namespace heddle {

constexpr size_t kMaxReportRuns = 64;
constexpr size_t kMaxReportBytes = 1900000;  // above, curves get fewer points, maps fewer columns

// Returns the page. With `renewed_s` above 0 it reloads so often, in seconds, and keeps part, zoom
// and settings. Throws InputError for no runs, too many, and a file that is not a trace.
std::string report_page(const std::vector<RunRecord>& runs, int renewed_s = 0);

// Returns a part of the page that the build has embedded: "report.html", "report.css", "report.js",
// "dygraph.min.js". Throws Error for another name.
std::string_view report_file(std::string_view name);

}  // namespace heddle
