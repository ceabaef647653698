// report.html: one page on a run, or on several next to each other, complete in itself. The page is
// report.html with report.css, the library dygraphs, report.js and the figures (report_json.h) put
// in; nothing is fetched when it is opened. What a run says of itself is only ever JSON here, and
// text in the page.
//
//   write_file_atomically("report.html", report_page({read_run("runs/a"), read_run("runs/b")}));
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "apps/report/report_data.h"

namespace heddle {

constexpr size_t kMaxReportRuns = 8;         // as many as there are colours
constexpr size_t kMaxReportBytes = 1900000;  // maps have fewer columns rather than be larger

// Throws InputError for no runs or too many.
std::string report_page(const std::vector<RunRecord>& runs);

// Returns `json` as text that is safe within a <script> element.
std::string script_json(const RunRecord::Json& json);

// The page's parts as the build has embedded them: "report.html", "report.css", "report.js",
// "dygraph.min.js".
std::string_view report_file(std::string_view name);

}  // namespace heddle
