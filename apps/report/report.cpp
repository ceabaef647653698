// Looks at runs: ./run report makes one page of one run, or compares several; ./run watch follows
// one in the terminal.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstring>

#include "apps/cli/program.h"
#include "apps/report/report_page.h"
#include "apps/report/watch.h"
#include "core/error.h"
#include "core/files.h"

namespace heddle {
namespace {

int run(const Arguments& arguments, const Arguments& /*environment*/) {
  CLI::App app("Makes report.html of a run folder, or one page that compares several",
               "./run report");
  std::vector<std::string> folders;
  std::string output, trace;
  bool watch = false, once = false;
  app.add_option("DIR", folders, "run folders")->required();
  app.add_option("--output", output,
                 "the page (default: report.html in the folder; of several runs, here)");
  app.add_option("--trace", trace, "what --trace wrote, of a single run");
  app.add_flag("--watch", watch, "follow the run in the terminal instead, until it ends");
  app.add_flag("--once", once, "with --watch: show it once");
  std::vector<std::string> words(arguments.rbegin(), arguments.rend() - 1);
  try {
    app.parse(words);
  } catch (const CLI::CallForHelp&) {
    return print(app.help()), 0;
  } catch (const CLI::ParseError& error) {
    throw InputError(error.what());
  }
  if (watch) {
    check(folders.size() == 1, "--watch follows one run, found ", folders.size());
    return watch_run(folders[0], once), 0;
  }
  check(!once, "--once needs --watch");
  check(trace.empty() || folders.size() == 1, "--trace belongs to a single run");
  std::vector<RunRecord> runs;
  for (const std::string& folder : folders) {
    runs.push_back(read_run(folder, trace));
    if (runs.back().broken_lines > 0)
      std::fprintf(stderr, "report: warning: %s/metrics.jsonl: skipped lines: %lld; line %s\n",
                   folder.c_str(), static_cast<long long>(runs.back().broken_lines),
                   runs.back().first_broken.c_str());
  }
  if (output.empty()) output = runs.size() == 1 ? runs[0].folder + "/report.html" : "report.html";
  write_file_atomically(output, report_page(std::move(runs)));
  std::fprintf(stderr, "report: %s\n", output.c_str());
  return 0;
}

}  // namespace
}  // namespace heddle

int main(int argc, char** argv) {
  const bool watch = argc > 1 && std::strcmp(argv[1], "--watch") == 0;  // as ./run watch begins
  return heddle::run_program(watch ? "watch" : "report", argc, argv, heddle::run);
}
