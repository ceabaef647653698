#include "apps/report/report_page.h"

#include <algorithm>
#include <utility>

#include "apps/report/report_json.h"
#include "core/error.h"
#include "data/text.h"

namespace heddle {

const std::vector<EmbeddedFile>& report_files();  // written by the build

std::string_view report_file(std::string_view name) {
  const auto found = std::ranges::find(report_files(), name, &EmbeddedFile::name);
  if (found == report_files().end()) throw Error(concat(name, " is not embedded"));
  return found->text;
}

namespace {

// Returns `json` as text that is safe within a <script> element: without "<" no text can end the
// element or begin a comment. Invalid UTF-8 is replaced.
std::string script_json(const RunRecord::Json& json) {
  std::string out;
  for (const char c : json.dump(-1, ' ', false, RunRecord::Json::error_handler_t::replace)) {
    if (c == '<')
      out += "\\u003c";
    else
      out += c;
  }
  return out;
}

}  // namespace

std::string report_page(const std::vector<RunRecord>& runs, int renewed_s) {
  check(!runs.empty(), "a report needs a run folder");
  check(runs.size() <= kMaxReportRuns, "a report holds at most ", kMaxReportRuns, " runs, found ",
        runs.size());
  const std::string_view library = report_file("dygraph.min.js");
  std::string data;
  for (int64_t cells = 6000 / std::ssize(runs); cells > 0; cells /= 2) {
    RunRecord::Json json = report_json(runs, cells);
    json["renewed_s"] = renewed_s;
    data = script_json(json);
    if (data.size() + library.size() <= kMaxReportBytes) break;
  }
  const std::pair<std::string_view, std::string_view> parts[] = {
      {"@style@", report_file("report.css")},
      {"@library@", library},
      {"@data@", data},
      {"@script@", report_file("report.js")}};
  std::string_view rest = report_file("report.html");
  std::string page;
  for (const auto& [mark, text] : parts) {  // in the order in which the page has them
    const size_t at = rest.find(mark);
    page += rest.substr(0, at);
    page += text;
    rest.remove_prefix(at + mark.size());
  }
  return page += rest;
}

}  // namespace heddle
