// Reports of run folders that are incomplete, damaged or unlike any that heddle writes.
#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>

#include "apps/report/report_json.h"
#include "apps/report/report_page.h"
#include "apps/report/watch.h"
#include "tests/report_files.h"

using namespace heddle;

namespace {

using Json = RunRecord::Json;

// Returns the last of what was skipped.
std::string skipped_in(const std::string& folder) { return read_run(folder).skipped.back(); }

}  // namespace

TEST_CASE("report: missing parts are left out, broken ones are named") {
  const TempFolder temp;
  CHECK(contains(message_of([&] { read_run(temp.path); }), "expected metrics.jsonl"));
  const std::string young = temp.path + "/young";
  std::filesystem::create_directory(young);
  temp.write("young/metrics.jsonl",
             "{\"schema\":1}\n{\"step\":1,\"epoch\":1,\"split\":\"train\",\"loss\":null}\n{\"st");
  const RunRecord run = read_run(young);
  CHECK(run.steps.size() == 1);
  CHECK(std::isnan(run.steps[0].loss));
  const Json report = report_of(run);
  CHECK(report["status"].is_null());
  for (const char* figure :
       {"breakdown", "layers", "plans", "choices", "residuals", "quality", "timeline"})
    CHECK_MESSAGE(report[figure].is_null(), figure);
  CHECK(contains(watch_text(run, 60, true), "step 1"));
  temp.write("young/metrics.jsonl", "{\"schema\":1}\n{\"step\":\n");
  const RunRecord holed = read_run(young);
  REQUIRE(holed.skipped.size() == 1);
  const std::string why = "metrics.jsonl: lines that do not parse: 1; the first is line 2: ";
  CHECK(holed.skipped[0].starts_with(why));
  CHECK(contains(watch_text(holed, 60, true), "  skipped: " + why));
  temp.write("young/metrics.jsonl", "<\n5\n");
  CHECK(contains(message_of([&] { read_run(young); }), "metrics.jsonl:1: "));
  for (const char* schema : {"99", "\"1\"", "null"}) {
    temp.write("young/metrics.jsonl", concat("{\"schema\":", schema, "}\n{\"step\":1}\n"));
    CHECK(contains(message_of([&] { read_run(young); }), "expected schema 1, found "));
  }
  temp.write("young/metrics.jsonl", "{\"schema\":1}\n");
  CHECK(read_run(young).steps.empty());
  CHECK(contains(report_page({read_run(young)}), "</html>"));
  for (const char* content : {"[]", "{}", R"({"layers":5})", R"({"layers":[5]})"}) {
    temp.write("young/plan-3.json", content);
    CHECK(contains(skipped_in(young), "plan-3.json: no plan"));
  }
}

TEST_CASE("report: values of any type where numbers belong are left out") {
  const TempFolder temp;
  temp.write("metrics.jsonl",
             "{\"schema\":1}\n{\"step\":\"x\",\"split\":\"train\",\"loss\":[]}\n"
             "{\"step\":1e300,\"split\":\"train\",\"loss\":1}\n{\"quality\":5}\n"
             "{\"step\":{},\"quality\":{\"a\":{\"cosine\":\"x\"}}}\n{\"ledger\":{\"a\":[]}}\n"
             "{\"ledger\":{\"a\":{\"values\":7}}}\n{\"summary\":{},\"layers\":{\"a\":-1}}\n");
  temp.write("plan-1.json", R"({"step":[],"layers":[{"name":5,"setting":{}}]})");
  temp.write("exchange-1.json", R"({"buckets":[{"compressed":"x","dense":5,"parameters":{}}]})");
  temp.write("run.json", "[1]");
  temp.write("config.toml", "compress = none\ndata = \"a  # b\"  # default\n");
  const RunRecord run = read_run(temp.path);
  CHECK(contains(run.skipped.at(0), "do not parse: 2"));
  CHECK(run.setting("data") == "a  # b");
  CHECK(contains(report_page({run}), "</html>"));
}

TEST_CASE("report: a broken line is skipped, and the rest is shown") {
  const TempFolder temp;
  std::string metrics = FakeRun{}.metrics();
  const size_t third = metrics.find("{\"step\":3,");
  metrics.replace(third, metrics.find('\n', third) - third, "{\"step\":3,<b>\"ep");
  const std::string folder = FakeRun{}.write(temp, "holed");
  temp.write("holed/metrics.jsonl", metrics);
  const RunRecord run = read_run(folder);
  CHECK(run.steps.size() == 39);
  CHECK(contains(report_of(run)["skipped"].at(0), "metrics.jsonl: lines that do not parse: 1"));
  CHECK(contains(report_of(run)["skipped"].at(0), "the first is line 4: "));
  CHECK_FALSE(contains(report_page({run}), "3,<b>"));
  CHECK(report_of(read_run(FakeRun{}.write(temp, "whole")))["skipped"].empty());
  temp.write("holed/run.json", "{\"argv\":");  // a disk that was full
  CHECK(contains(skipped_in(folder), "run.json: is not JSON"));
}
