// The report of a run: its figures match metrics.jsonl, the page is self-contained, and bad folders
// are named. test_report.sh tests in a browser how the page draws them.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "apps/cli/format.h"
#include "apps/report/report_json.h"
#include "apps/report/report_page.h"
#include "apps/report/watch.h"
#include "tests/report_files.h"

using namespace heddle;

namespace {

using Json = RunRecord::Json;

// The row of a list of objects in which `key` is `value`.
Json row(const Json& rows, const char* key, const std::string& value) {
  for (const Json& row : rows)
    if (row[key] == value) return row;
  FAIL("no row ", value);
  return {};
}

}  // namespace

TEST_CASE("report: a run's rate is its samples over their time") {
  RunRecord run;
  for (const double seconds : {9.0, 9.0, 1.0, 3.0})  // 300 images in each
    run.steps.push_back({.rate = 300 / seconds,
                         .data = 0,
                         .forward = seconds / 2,
                         .backward = seconds / 2,
                         .update = 0});
  CHECK(steady_step(run).rate == doctest::Approx(600 / 4.0));
  CHECK(steady_step(run).seconds() == doctest::Approx(2));
}

TEST_CASE("report: curves, scores and facts match the metrics") {
  const TempFolder temp;
  const FakeRun fake;
  const Json run = report_of(read_run(fake.write(temp, "a<b")));
  CHECK(run["name"] == "a<b");
  CHECK(run["learners"] == 4);
  CHECK(run["status"] == "done");
  const Json& curves = run["curves"];
  REQUIRE(curves["loss"].size() == 40);
  CHECK(curves["bins"] == false);
  double time = 0;
  for (size_t i = 0; i < 40; ++i) {
    const int step = static_cast<int>(i) + 1;
    CHECK(curves["step"][i] == step);
    for (const char* column : {"loss", "low", "high"})
      CHECK(curves[column][i].get<double>() == doctest::Approx(fake.loss(step)).epsilon(1e-6));
    time += 0.01 + fake.forward(step) + 0.2 + 0.05;
    CHECK(curves["time"][i].get<double>() == doctest::Approx(time).epsilon(1e-6));
  }
  CHECK(curves["sent"][0].is_null());  // the first step also sends the weights
  CHECK(curves["sent"][1] == fake.dense_bytes());
  CHECK(curves["sent"][39] == fake.dense_bytes() / 50);
  CHECK(curves["bytes"][1] == 2 * fake.dense_bytes());
  CHECK(curves["dense"] == fake.dense_bytes());
  CHECK(curves["norm"][3] == 0.25);
  CHECK(curves["epoch"][9] == 0.5);
  CHECK(curves["epoch"][39] == 2);
  REQUIRE(run["scores"].size() == 2);
  CHECK(run["score_key"] == "acc1");
  CHECK(run["scores"][0]["step"] == 20);
  CHECK(run["scores"][1]["acc1"] == 60.25);
  CHECK(run["facts"]["steps"] == 40);
  CHECK(run["facts"]["rate"] == 100);
  CHECK(run["facts"]["dense"] == 40 * fake.dense_bytes());
  CHECK(run["ratios"] == Json({{"ratio_layers", 98.5},
                               {"ratio_values", 61.25},
                               {"ratio_wire", 47.5},
                               {"ratio_run", 12.75}}));
  // Waiting is a part of what is booked as update.
  CHECK(run["breakdown"]["exposed"] == 0.03);
  CHECK(run["breakdown"]["update"] == 0.02);
  CHECK(run["breakdown"]["backward"] == 0.2);
  CHECK(run["breakdown"]["compress"] == 0.02);
}

TEST_CASE("report: an axis of epochs in a run that has not ended") {
  const TempFolder temp;
  RunRecord run = read_run(FakeRun{}.write(temp, "a"));
  run.steps.resize(30);  // ten of the second epoch, which has as many steps as the first
  run.summary["summary"] = "done";
  CHECK(report_of(run)["curves"]["epoch"][29] == 2);  // resumed with more learners
  run.config.emplace_back("steps", "30");
  CHECK(report_of(run)["curves"]["epoch"][29] == 1.5);
  run.summary["summary"] = "stopped";
  run.config.pop_back();
  CHECK(report_of(run)["curves"]["epoch"][29] == 1.5);
  run.steps.resize(10);
  run.scores.clear();
  CHECK(report_of(run)["curves"]["epoch"][9].is_null());
}

TEST_CASE("report: mistakes and texts") {
  const TempFolder temp;
  const std::string folder = FakeRun{.texts = 100}.write(temp, "a");
  CHECK(report_of(read_run(folder))["mistakes"].is_null());
  temp.write("a/mistakes.json",
             R"({"classes":["a","b"],"confusion":[[0,0,5],[0,1,3],[1,0,2]],)"
             R"("images":[{"image":7,"class":1,"guess":0}],"side":8,"sheet":"","epoch":2})");
  const RunRecord run = read_run(folder);
  CHECK(report_of(run)["mistakes"]["epoch"] == 2);
  CHECK(report_of(run)["mistakes"]["confusion"].size() == 3);
  CHECK(report_of(run)["mistakes"]["sizes"] == Json({{0, 8}, {1, 2}}));
  RunRecord wide = run;  // of many classes there are only the commonest mistakes
  for (int i = 2; i < 30; ++i) wide.mistakes["confusion"].push_back({i, 0, i});
  CHECK(report_of(wide)["mistakes"]["confusion"].size() == 30);
  CHECK(report_of(wide)["mistakes"]["confusion"][0] == Json({29, 0, 29}));
  CHECK(report_of(wide)["mistakes"]["sizes"].size() == 30);
  const Json texts = report_of(run)["texts"];
  REQUIRE(texts.size() == 12);
  CHECK(texts[0] == Json({{"epoch", 1}, {"text", "the cat 1"}}));
  CHECK(texts[11] == Json({{"epoch", 100}, {"text", "the cat 100"}}));
  // Next to others a run has no pictures; among many it has only curves.
  CHECK_FALSE(report_json({run, run}, 3000)["runs"][0].contains("mistakes"));
  CHECK(report_json({run, run}, 3000)["runs"][0].contains("layers"));
  const Json many = report_json(std::vector<RunRecord>(9, run), 600)["runs"];
  REQUIRE(many.size() == 9);
  CHECK_FALSE(many[8].contains("layers"));
  CHECK(many[8]["curves"]["loss"].size() == 40);
  for (const char* broken :
       {"{", "{}", R"({"classes":[],"confusion":[5],"images":[],"side":8,"sheet":""})",
        R"({"classes":[],"confusion":[[0,-1,1]],"images":[],"side":8,"sheet":""})",
        R"({"classes":[],"confusion":[],"images":[null],"side":8,"sheet":""})"}) {
    temp.write("a/mistakes.json", broken);
    CHECK(contains(read_run(folder).skipped.back(), "mistakes.json"));
  }
}

TEST_CASE("report: layers, plans, residuals and the quality meter match the run's files") {
  const TempFolder temp;
  const Json run = report_of(read_run(FakeRun{}.write(temp, "a")));
  // 100 bytes an element over 40 steps; dense 4 * 3/2.
  const Json bytes = row(run["layers"], "name", "layer2.weight");
  CHECK(bytes["dense"] == 18000);
  CHECK(bytes["sent"] == 7500);
  CHECK(bytes["kinds"] == Json({{"values", 4500}, {"indices", 3000}}));
  CHECK(run["plans"]["steps"] == Json({10, 20}));
  CHECK(run["plans"]["end"] == 40);
  CHECK(row(run["plans"]["rows"], "name", "layer1.weight")["cells"][1] ==
        Json({50, 100, 200, 100}));
  CHECK(row(run["residuals"]["rows"], "name", "layer1.weight")["cells"] == Json({{6, 3}, {10, 5}}));
  CHECK(run["quality"]["samples"] == 2);
  CHECK(run["quality"]["correlation"] == 0.125);
  CHECK(row(run["quality"]["rows"], "name", "layer0.weight")["contraction"] == 0.65);
}

TEST_CASE("report: many steps are reduced to means with minimum and maximum") {
  const TempFolder temp;
  RunRecord run = read_run(FakeRun{.steps = 3000}.write(temp, "a"));
  run.steps[1].loss = 1e9;
  run.steps[4].loss = NAN;
  const Json curves = report_of(run)["curves"];
  CHECK(curves["bins"] == true);
  REQUIRE(curves["loss"].size() == 1000);
  CHECK(curves["step"][0] == 2);
  CHECK(curves["high"][0] == 1e9);
  const double mean = (run.steps[0].loss + run.steps[1].loss + run.steps[2].loss) / 3;
  CHECK(curves["loss"][0].get<double>() == doctest::Approx(mean).epsilon(1e-6));
  CHECK(curves["loss"][1].get<double>() ==
        doctest::Approx((run.steps[3].loss + run.steps[5].loss) / 2).epsilon(1e-6));
}

TEST_CASE("report: the choices of --compress auto, bucket by bucket") {
  const TempFolder temp;
  const std::string folder = FakeRun{}.write(temp, "a");
  const Json choices = report_of(read_run(folder))["choices"];
  const Json &first = choices["decisions"][0], &last = choices["decisions"][1];
  CHECK(last["step"] == 24);
  CHECK(last["compressed"] == 1);
  CHECK(last["buckets"] == 3);
  CHECK(last["dense_s"] == 0.36);
  CHECK(last["compressed_s"] == 0.31);
  CHECK(last["chosen_s"] == 0.324);
  CHECK(last["found_s"] == 0.33);
  CHECK(first["found_s"].is_null());
  const Json& bucket = choices["buckets"][1];
  CHECK(bucket["compressed"] == true);
  CHECK(bucket["joined"] == false);
  CHECK(bucket["dense"] == Json({0.2, 0, 0.04}));
  CHECK(bucket["packed"] == Json({0.2, 0.005, 0.001}));
  CHECK(bucket["parameters"] == Json({"layer1.weight", "layer1.bias"}));
  CHECK(choices["buckets"][2]["joined"] == true);
  // Without names of parameters, as earlier versions wrote it.
  temp.write("a/exchange-36.json",
             R"({"step":36,"buckets":[{"compressed":true,"dense":{"code_s":0,"comm_s":1},)"
             R"("packed":{"code_s":0,"comm_s":0.5}}]})");
  const Json old = report_of(read_run(folder))["choices"]["buckets"][0];
  CHECK(old["dense"] == Json({nullptr, 0, 1}));
  CHECK_FALSE(old.contains("parameters"));
  temp.write("a/exchange-36.json", R"({"step":36,"dropped":true,"buckets":[{"compressed":0}]})");
  const Json dropped = report_of(read_run(folder))["choices"];
  CHECK(dropped["decisions"][2]["dropped"] == true);
  CHECK(dropped["buckets"][0]["compressed"] == false);
  temp.write("a/exchange-36.json", "{}");
  CHECK(contains(read_run(folder).skipped.back(), "exchange-36.json: no choice"));
}

TEST_CASE("report: one step of the trace, with its arrows") {
  const TempFolder temp;
  const Json step = report_of(read_run(FakeRun{}.write(temp, "a")))["timeline"];
  CHECK(step["seconds"] == 0.05);
  std::string order;
  for (const Json& track : step["rows"]) order += track["track"].get<std::string>() + ' ';
  CHECK(order == "forward backward compress comm update ");
  CHECK(row(step["rows"], "track", "forward")["busy"] == 0.01);
  CHECK(row(step["rows"], "track", "comm")["ranges"] == Json({{"bucket 0", 0.02, 0.015, 0}}));
  const Json compress = row(step["rows"], "track", "compress");
  CHECK(compress["count"] == 1);
  CHECK(compress["busy"] == 0.0195);  // its phases are inside
  CHECK(compress["ranges"] == Json({{"bucket 0", 0.016, 0.0195, 0},
                                    {"compensate", 0.016, 0.004, 1},
                                    {"select", 0.02, 0.001, 1}}));
  CHECK(step["arrows"] == Json({{1, 0.019, 3, 0.0200005}, {3, 0.0200005, 4, 0.0360005}}));
  temp.write("a/trace.json", R"({"traceEvents":[{"pid":0}]})");
  const std::string folder = temp.path + "/a", trace = folder + "/trace.json";
  CHECK(contains(message_of([&] { read_run(folder, trace); }), "trace.json: no trace"));
  const RunRecord run = read_run(folder);
  CHECK(contains(run.skipped.at(0), "trace.json: no trace"));
  CHECK(report_of(run)["timeline"].is_null());
}

TEST_CASE("report: a step of several micro-batches is drawn whole") {
  const TempFolder temp;
  std::string text;
  const auto range = [&](const char* track, int begin, int length) {
    text += concat(text.empty() ? "" : ",", R"({"ph":"X","pid":0,"tid":)", track[0] - 'a',
                   R"(,"name":"x","ts":)", begin, R"(,"dur":)", length, "}");
  };
  for (const int step : {0, 100, 200}) {
    for (const int micro : {0, 20}) {
      range("forward", step + micro, 5);
      range("backward", step + micro + 5, 10);
    }
    range(step == 0 ? "update" : "v", step + 60, 10);
  }
  for (const std::string track : {"forward", "backward", "update", "v"})
    text += concat(R"(,{"ph":"M","pid":0,"tid":)", track[0] - 'a',
                   R"(,"name":"thread_name","args":{"name":")", track == "v" ? "update 2" : track,
                   R"("}})");
  (void)FakeRun{}.write(temp, "a");
  temp.write("a/trace.json", R"({"traceEvents":[)" + text + "]}");
  const Json step = report_of(read_run(temp.path + "/a"))["timeline"];
  CHECK(step["seconds"] == doctest::Approx(1e-4));
  CHECK(row(step["rows"], "track", "forward")["count"] == 2);
  CHECK(row(step["rows"], "track", "update 2")["count"] == 1);
}

TEST_CASE("report: a round of local steps shares what its exchange has sent") {
  const TempFolder temp;
  const std::string folder = FakeRun{}.write(temp, "a");
  const std::vector<StepRecord> each = read_run(folder).steps;
  const auto mean = [&](size_t begin, size_t end) {
    double sum = 0;
    for (size_t i = begin; i < end; ++i) sum += each[i].sent;
    return doctest::Approx(sum / static_cast<double>(end - begin));
  };
  temp.write("a/config.toml", "local-steps = 16\n");
  std::vector<StepRecord> steps = read_run(folder).steps;
  REQUIRE(steps.size() == 40);
  CHECK(steps[0].sent == mean(0, 16));
  CHECK(steps[15].sent == mean(0, 16));
  CHECK(steps[16].sent == mean(16, 32));
  CHECK(steps[39].sent == mean(32, 40));  // the last step of the run ends a round
  // With a delay, what a round has sent is in the line of a later step.
  temp.write("a/config.toml", "local-steps = 16\nouter-delay = 3\n");
  steps = read_run(folder).steps;
  CHECK(steps[0].sent == mean(0, 19));
  CHECK(steps[18].sent == mean(0, 19));
  CHECK(steps[19].sent == mean(19, 35));
  CHECK(steps[39].sent == mean(35, 40));
  temp.write("a/config.toml", "local-steps = 16\n");
  // Nothing is known of a round that has not ended.
  const std::string metrics = read(folder + "/metrics.jsonl");
  temp.write("a/metrics.jsonl", metrics.substr(0, metrics.find("{\"step\":36,")));
  steps = read_run(folder).steps;
  REQUIRE(steps.size() == 35);
  CHECK(steps[34].sent == mean(16, 32));
}

TEST_CASE("report: names, traces and steps that are not what they seem") {
  const TempFolder temp;
  const std::string folder = FakeRun{}.write(temp, "a");
  CHECK(read_run(folder + "/.").name == "a");
  RunRecord run = read_run(folder);
  run.summary["step"] = "x";
  CHECK(!report_of(run)["layers"].is_null());
  temp.write("a/run.json",
             concat(R"({"argv":["train_lm","--trace",")", std::string(5000, 'x'), "\"]}"));
  CHECK(read_run(folder).name == "a");
}

TEST_CASE("report: several runs on one small self-contained page") {
  const TempFolder temp;
  const FakeRun large{.steps = 3000, .layers = 160, .plans = 150, .looks = 150};
  std::vector<RunRecord> runs = {read_run(large.write(temp, "a"))};
  runs.push_back(read_run(FakeRun{.steps = 3000, .shift = 0.5}.write(temp, "b")));
  for (const char* name : {"c", "d", "e", "f", "g"}) {
    runs.push_back(runs[1]);
    runs.back().name = name;
  }
  runs.push_back(runs[1]);  // of the same name
  const std::string page = report_page(runs);
  CHECK(page.size() < 2'000'000);
  const Json data = data_of(page)["runs"];
  REQUIRE(data.size() == 8);
  CHECK(data[0]["plans"]["steps"].back() == 1500);
  CHECK(data[7]["name"] == runs[1].folder);
  CHECK(data[2]["name"] == "c");
  // The second run has the same losses, half a nat higher, at every point.
  const Json &a = data[0]["curves"]["loss"], &b = data[1]["curves"]["loss"];
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i)
    CHECK(b[i].get<double>() - a[i].get<double>() == doctest::Approx(0.5).epsilon(1e-5));
  // No part of the page fetches anything, and the browser would not allow it; the library is
  // complete, with its licence.
  std::string own = page;
  const std::string library{report_file("dygraph.min.js")};
  CHECK(library.size() > 100'000);
  own.erase(own.find(library), library.size());
  for (size_t at = 0; (at = own.find("url(\"data:")) != std::string::npos;) own.erase(at, 5);
  for (const char* fetched : {"http:", "https:", "src=", "@import", "url(", "fetch("})
    CHECK_FALSE_MESSAGE(contains(own, fetched), fetched);
  CHECK(contains(own, "content=\"default-src 'none';"));
  CHECK(contains(own, "Permission is hereby granted, free of charge"));
  CHECK(data_of(page)["renewed_s"] == 0);
  CHECK(data_of(report_page({runs[1]}, 2))["renewed_s"] == 2);
  runs.resize(64, runs[1]);
  CHECK(report_page(runs).size() < 2'000'000);
  runs.push_back(runs[1]);
  CHECK(contains(message_of([&] { report_page(runs); }), "at most 64 runs"));
}

TEST_CASE("report: names and texts cannot end the script") {
  const TempFolder temp;
  RunRecord run = read_run(FakeRun{}.write(temp, "a"));
  const std::string hostile = "</script><script>alert(1)</script><!--\xff\u2028\033[2J";
  run.name = hostile;
  run.config.emplace_back("arch", hostile);
  run.info["argv"].push_back(hostile);
  const std::string page = report_page({run}), plain = report_page({read_run(temp.path + "/a")});
  const auto count = [](const std::string& text, const std::string& part) {
    int64_t found = 0;
    for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++found;
    return found;
  };
  for (const char* part : {"<script", "</script", "<!--"})
    CHECK_MESSAGE(count(page, part) == count(plain, part), part);
  const Json data = data_of(page)["runs"][0];
  CHECK(data["name"] == "</script><script>alert(1)</script><!--\ufffd\u2028\033[2J");
  CHECK(data["config"].back()[1] == data["name"]);
}

TEST_CASE("report: losses near the largest double") {
  const TempFolder temp;
  RunRecord run = read_run(FakeRun{.steps = 3000}.write(temp, "large"));
  const double most = std::numeric_limits<double>::max();
  for (const auto& [a, b] : std::vector<std::pair<double, double>>{{1e308, -1e308},
                                                                   {most, -most},
                                                                   {most, most},
                                                                   {1e20, 1e20},
                                                                   {most, 5e-324},
                                                                   {5e-324, 5e-324},
                                                                   {-1e18, -1e18}}) {
    for (size_t i = 0; i < run.steps.size(); ++i) run.steps[i].loss = i % 2 == 0 ? a : b;
    const Json curves = data_of(report_page({run}))["runs"][0]["curves"];
    for (size_t i = 0; i < curves["loss"].size(); ++i) {
      const double low = std::min(a, b), high = std::max(a, b);
      CHECK(curves["low"][i].get<double>() == doctest::Approx(low).epsilon(1e-6));
      CHECK(curves["high"][i].get<double>() == doctest::Approx(high).epsilon(1e-6));
      CHECK(std::isfinite(curves["loss"][i].get<double>()));
    }
    CHECK(contains(watch_text(run, 60, true), "step 3000"));
    CHECK_FALSE(terminal_chart({{0, a}, {1, b}}, 40, 4, false).empty());
  }
}

TEST_CASE("format: numbers for people") {
  CHECK(significant(0.0012345, 3) == "0.00123");
  CHECK(significant(60.25, 4) == "60.25");
  CHECK(significant(NAN) == "–");
  CHECK(scaled(1618332, "B") == "1.62 MB");
  CHECK(scaled(999.4, "B") == "999 B");
  CHECK(scaled(15147587520.0, "B") == "15.1 GB");
  CHECK(duration_text(0.0123) == "12.3 ms");
  CHECK(duration_text(7200) == "2 h");
}
