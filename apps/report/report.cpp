// Reports on runs: ./run report makes a page about one run, or compares several; ./run watch
// follows one in the terminal.
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "apps/cli/flags.h"
#include "apps/cli/program.h"
#include "apps/report/report_page.h"
#include "apps/report/watch.h"
#include "core/error.h"
#include "core/files.h"

namespace heddle {
namespace {

int run(const Arguments& arguments, const Arguments& /*environment*/) {
  std::vector<std::string> folders;
  std::string output, trace;
  bool watch = false, html = false, once = false, help = false;
  FlagTable flags("./run report DIR...",
                  "Writes report.html for a run folder, or one page that compares several runs.");
  flags.group("Flags");
  flags.collect_words(&folders);
  flags.add("output", &output, "FILE", "the page to write",
            otherwise("report.html in the run folder; for several runs, in the current folder"));
  flags.add("trace", &trace, "FILE", "the trace that --trace wrote; for a single run");
  flags.add("watch", &watch, "", "follow the run in the terminal instead, until it ends",
            not_saved);
  flags.add("html", &html, "",
            "with --watch: keep report.html up to date instead, for a browser that shows it",
            not_saved);
  flags.add("once", &once, "", "with --watch: print, or write the page, once and exit", not_saved);
  flags.add("help", &help, "", "print this text", not_saved);
  flags.parse({arguments.begin() + 1, arguments.end()}, {});
  if (help) return print(flags.help()), 0;
  check(!folders.empty(), "expected a run folder");
  if (watch) {
    check(folders.size() == 1, "--watch follows one run, found ", folders.size());
    check(trace.empty() && (output.empty() || html), "--watch takes no --trace, and --output only ",
          "with --html");
    if (html)
      watch_page(folders[0], output.empty() ? folders[0] + "/report.html" : output, once);
    else
      watch_run(folders[0], once);
    return 0;
  }
  check(!once && !html, "--once and --html need --watch");
  check(trace.empty() || folders.size() == 1, "--trace belongs to a single run");
  check(trace.empty() || std::filesystem::is_regular_file(trace), "--trace ", trace,
        ": no such file");
  std::vector<RunRecord> runs;
  for (const std::string& folder : folders) {
    runs.push_back(read_run(folder, trace));
    for (const std::string& what : runs.back().skipped)
      std::fprintf(stderr, "report: warning: %s: skipped: %s\n", folder.c_str(), what.c_str());
  }
  if (output.empty()) output = runs.size() == 1 ? runs[0].folder + "/report.html" : "report.html";
  write_file_atomically(output, report_page(runs));
  std::fprintf(stderr, "report: %s\n", output.c_str());
  return 0;
}

}  // namespace
}  // namespace heddle

int main(int argc, char** argv) {
  const bool watch =
      argc > 1 && std::strcmp(argv[1], "--watch") == 0;  // ./run watch passes it first
  return heddle::run_program(watch ? "watch" : "report", argc, argv, heddle::run);
}
