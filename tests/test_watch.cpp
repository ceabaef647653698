// A run that somebody watches: in the terminal, and as a page that follows it.
#include <doctest/doctest.h>

#include <chrono>
#include <thread>

#include "apps/report/report_page.h"
#include "apps/report/watch.h"
#include "tests/report_files.h"

using namespace heddle;
using Json = RunRecord::Json;

TEST_CASE("watch: texts of a run cannot move the cursor") {
  const TempFolder temp;
  RunRecord run = read_run(FakeRun{}.write(temp, "a"));
  run.folder = "runs/\033[2J";
  run.summary["summary"] = "\033[31mred\033]0;title\a";
  run.config = {{"steps", "\033[5A"}};
  for (Json& score : run.scores) score["split"] = "va\033[7mlid";
  run.skipped = {"\033[7m"};
  const std::string text = watch_text(run, 60, true);
  CHECK(text.find('\033') == std::string::npos);
  CHECK(text.find('\a') == std::string::npos);
  CHECK(contains(text, "?[31mred"));
  run.summary["summary"] = 5;
  CHECK(contains(watch_text(run, 60, true), "step 40"));
  CHECK(contains(watch_text(run, 60, true), "  ratio "));
  for (StepRecord& step : run.steps) step.sent = 0;  // no round of local steps has ended
  CHECK_FALSE(contains(watch_text(run, 60, true), "  ratio "));
}

TEST_CASE("watch: a page that follows a run, and ends with it") {
  const TempFolder temp;
  const std::string folder = FakeRun{}.write(temp, "a"), page = temp.path + "/page.html";
  watch_page(folder, page, false);  // the run has ended
  CHECK(read(page) == report_page({read_run(folder)}));
  // One that has not ended is written again when it has new lines.
  const std::string metrics = read(folder + "/metrics.jsonl");
  const size_t half = metrics.find("{\"step\":20,"), end = metrics.find("{\"step\":31,");
  temp.write("a/metrics.jsonl", metrics.substr(0, half));
  std::thread run([&] {
    while (!contains(read(page), "\"renewed_s\":2"))
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CHECK(data_of(read(page))["runs"][0]["facts"]["steps"] == 19);
    temp.write("a/metrics.jsonl", metrics.substr(0, end));
    while (!contains(read(page), "\"steps\":30,"))
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    temp.write("a/metrics.jsonl", metrics);
  });
  watch_page(folder, page, false);
  run.join();
  CHECK(data_of(read(page))["renewed_s"] == 0);
  CHECK(data_of(read(page))["runs"][0]["facts"]["steps"] == 40);
}

TEST_CASE("watch: progress of a run, and a chart") {
  const TempFolder temp;
  const std::string text = watch_text(read_run(FakeRun{}.write(temp, "a")), 60, true);
  for (const char* part : {"epoch 2  step 40  done", "loss 1.173", "100 images/s", "ratio 50",
                           "exposed 8.3 %", "valid acc1 60.25"})
    CHECK_MESSAGE(contains(text, part), text);
  // If nothing has been written for a while, the text says so; a finished run needs no warning.
  RunRecord run = read_run(FakeRun{}.write(temp, "b"));
  CHECK(!contains(watch_text(run, 60, true, 3600), "nothing written"));
  run.summary = {};
  CHECK(contains(watch_text(run, 60, true, 150), "\n  nothing written for 2:30: "));
  CHECK(!contains(watch_text(run, 60, true, 25), "nothing written"));
  for (StepRecord& step : run.steps) step.forward += 20;
  CHECK(!contains(watch_text(run, 60, true, 150), "nothing written"));
  run.steps.clear();
  CHECK(contains(watch_text(run, 60, true, 31), "no step yet\n  nothing written for 0:31"));
  CHECK(terminal_chart({{0, 4}, {1, 3}, {2, 2}, {3, 1}}, 13, 4, false) ==
        "      4  *   \n         **  \n          ** \n      1    **\n");
  CHECK(contains(terminal_chart({{0, 1}, {1, 2}}, 13, 2, true), "\u2860\u280a"));
  CHECK(terminal_chart({{0, NAN}}, 40, 4, true).empty());
  // Small numbers are shortened, so that no line is longer than asked for.
  const std::string small = terminal_chart({{0, 1.2345e-5}, {1, 1.2341e-6}}, 13, 2, false);
  CHECK_MESSAGE(small.find('\n') == 13, small);
}
