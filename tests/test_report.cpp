// The report of a run: its figures say what metrics.jsonl says, the page is whole in itself, and
// bad folders are named.
#include <doctest/doctest.h>

#include <cstdlib>
#include <regex>
#include <set>
#include <sstream>

#include "apps/cli/format.h"
#include "apps/report/report_figures.h"
#include "apps/report/report_page.h"
#include "apps/report/svg.h"
#include "apps/report/watch.h"
#include "tests/report_files.h"

using namespace heddle;

namespace {

// The text of the figure with this identifier.
std::string figure_of(const std::string& page, const std::string& id) {
  const size_t begin = page.find("<figure id=\"" + id + "\"");
  if (begin == std::string::npos) return "";
  return page.substr(begin, page.find("</figure>", begin) - begin);
}

std::vector<double> numbers(const std::string& text) {
  std::istringstream in(text);
  std::vector<double> out;
  for (std::string word; in >> word;) out.push_back(std::atof(word.c_str()));
  return out;
}

std::string attribute(const std::string& text, const std::string& name, size_t from = 0) {
  const size_t begin = text.find(name + "=\"", from);
  REQUIRE_MESSAGE(begin != std::string::npos, name);
  const size_t start = begin + name.size() + 2;
  return text.substr(start, text.find('"', start) - start);
}

struct Drawn {
  double x, y;
};
// The points of a series, from places back to values.
std::vector<Drawn> drawn(const std::string& figure, const std::string& label) {
  const auto x = numbers(attribute(figure, "data-x")), y = numbers(attribute(figure, "data-y"));
  const size_t series = figure.find("data-label=\"" + label + "\"");
  REQUIRE(series != std::string::npos);
  std::string text = attribute(figure, "polyline points", series);
  for (char& c : text) c = c == ',' ? ' ' : c;
  const auto places = numbers(text);
  const bool log = attribute(figure, "data-y").ends_with("log");
  std::vector<Drawn> out;
  for (size_t i = 0; i + 1 < places.size(); i += 2) {
    const double part = (places[i + 1] - y[2]) / (y[3] - y[2]);
    out.push_back({x[0] + (places[i] - x[2]) / (x[3] - x[2]) * (x[1] - x[0]),
                   log ? y[0] * std::pow(y[1] / y[0], part) : y[0] + part * (y[1] - y[0])});
  }
  return out;
}

}  // namespace

TEST_CASE("report: a run's rate is what it did in all over the time that it took") {
  RunRecord run;
  for (const double seconds : {9.0, 9.0, 1.0, 3.0})  // 300 images in each
    run.steps.push_back({.rate = 300 / seconds,
                         .data = 0,
                         .forward = seconds / 2,
                         .backward = seconds / 2,
                         .update = 0});
  CHECK(settled_step(run).rate == doctest::Approx(600 / 4.0));
  CHECK(settled_step(run).seconds() == doctest::Approx(2));
}

TEST_CASE("report: every figure is there, and says what the metrics say") {
  const TempFolder temp;
  const FakeRun fake;
  const RunRecord run = read_run(fake.write(temp, "a<b"));
  const std::string page = report_page({run});
  for (const char* id : {"loss", "score", "lr", "bytes", "breakdown", "layer-bytes", "run1-plans",
                         "run1-choices", "run1-residuals", "run1-quality", "run1-timeline"})
    CHECK_MESSAGE(!figure_of(page, id).empty(), id);

  CHECK(contains(page, "<p class=\"note\">4 learners, scalecom:rate=100</p>"));

  const auto loss = drawn(figure_of(page, "loss"), "training");
  REQUIRE(loss.size() == 40);
  for (int s = 1; s <= 40; ++s) {
    CHECK(loss[static_cast<size_t>(s - 1)].x == doctest::Approx(s).epsilon(1e-3));
    CHECK(loss[static_cast<size_t>(s - 1)].y == doctest::Approx(fake.loss(s)).epsilon(1e-3));
    CHECK(contains(figure_of(page, "loss"), concat("<td>training</td><td>", s, "</td><td>",
                                                   significant(fake.loss(s), 6), "</td>")));
  }
  const auto score = drawn(figure_of(page, "score"), "a&lt;b");
  REQUIRE(score.size() == 2);
  CHECK(score[0].x == doctest::Approx(20));
  CHECK(score[1].y == doctest::Approx(60.25).epsilon(1e-3));
  const auto bytes = drawn(figure_of(page, "bytes"), "a&lt;b");
  REQUIRE(bytes.size() == 39);  // the first step also carries the weights
  CHECK(bytes[0].y == doctest::Approx(fake.dense_bytes()).epsilon(0.01));
  CHECK(bytes[38].y == doctest::Approx(fake.dense_bytes() / 50).epsilon(0.01));

  // Waiting is a part of what is booked as update.
  const std::string times = figure_of(page, "breakdown");
  CHECK(contains(times, "<td>exposed communication</td><td>0.03</td>"));
  CHECK(contains(times, "<td>update</td><td>0.02</td>"));
  CHECK(contains(times, "<td>backward</td><td>0.2</td>"));
  CHECK(contains(times, "<td>compress</td><td>0.02</td>"));

  // 100 bytes an element over 40 steps; dense 4 * 3/2.
  const std::string layers = figure_of(page, "layer-bytes");
  CHECK(contains(layers, "<td>layer2.weight</td><td>18000</td><td>7500</td><td>2.4</td>"));
  CHECK(contains(figure_of(page, "run1-plans"), "<tr><td>layer1.weight</td><td>50</td>"));
  CHECK(contains(figure_of(page, "run1-residuals"),
                 "<tr><td>layer1.weight</td><td>6</td><td>10</td>"));
  CHECK(contains(figure_of(page, "run1-quality"), ">0.65</td>"));
  for (const char* ratio : {"98.5×", "61.2×", "47.5×", "12.8×"})
    CHECK_MESSAGE(contains(page, ratio), ratio);
}

TEST_CASE("report: what --compress auto has chosen, bucket by bucket") {
  const TempFolder temp;
  const std::string folder = FakeRun{}.write(temp, "a");
  const std::string figure = draw_choices(read_run(folder));
  CHECK(contains(figure,
                 "After step 24: 1 of 3 buckets are compressed, and travel as 2 messages. Until "
                 "the last exchange a step takes 360 ms if all are dense, 310 ms if all are "
                 "compressed, and 324 ms as chosen"));
  CHECK(contains(figure, "then measured: 330 ms"));
  CHECK(contains(
      figure, "<td>bucket 2: layer2.weight … layer2.bias</td><td>dense, with the one before</td>"));
  CHECK(contains(figure,
                 "<td>bucket 1: layer1.weight … layer1.bias</td><td>compressed</td>"
                 "<td>0.2</td><td>0</td><td>0.04</td><td>0.2</td><td>0.005</td>"
                 "<td>0.001</td>"));
  CHECK(contains(figure,
                 "<td>12</td><td>1 of 3</td><td>0.312</td><td>–</td><td>0.36</td><td>0.31</td>"));
  // The chosen way is marked, and bars are as long as the seconds that they stand for.
  CHECK(contains(figure, ">40 ms</text>"));
  CHECK(contains(figure, "<text class=\"strong\""));
  CHECK(contains(figure, ">6 ms ✓</text>"));
  CHECK(contains(figure, ">60 ms ✓</text>"));
  const auto width = [&](const std::string& title) {
    const size_t end = figure.find("<title>" + title);
    REQUIRE(end != std::string::npos);
    return std::atof(attribute(figure, "width", figure.rfind("width=", end)).c_str());
  };
  CHECK(width("collectives: 20 ms") / width("collectives: 60 ms") ==
        doctest::Approx(1.0 / 3).epsilon(1e-3));
  // Without names of parameters, as earlier versions wrote it; and what is none.
  temp.write("a/exchange-36.json",
             R"({"step":36,"buckets":[{"compressed":true,"dense":{"code_s":0,"comm_s":1},)"
             R"("packed":{"code_s":0,"comm_s":0.5}}]})");
  CHECK(contains(draw_choices(read_run(folder)), "<td>bucket 0</td><td>compressed</td><td>–</td>"));
  // A choice that was no better than what had been tried.
  temp.write(
      "a/exchange-36.json",
      R"({"step":36,"dense_s":2,"compressed_s":3,"chosen_s":1.5,"found_s":2.5,"dropped":true,)"
      R"("buckets":[{"compressed":false,"joined":false,"dense":{"code_s":0,"comm_s":1},)"
      R"("packed":{"code_s":0,"comm_s":0.5}}]})");
  CHECK(contains(draw_choices(read_run(folder)),
                 "1.5 s were expected of another choice, which took 2.5 s and was dropped"));
  temp.write("a/exchange-36.json", "{}");
  CHECK(contains(message_of([&] { read_run(folder); }), "exchange-36.json: no choice"));
}

TEST_CASE("report: one step of the trace, with its arrows") {
  const TempFolder temp;
  const std::string figure = draw_timeline(read_run(FakeRun{}.write(temp, "a")));
  CHECK(contains(figure, "<td>forward</td><td>1</td><td>0.01</td>"));
  CHECK(contains(figure, "<td>comm</td><td>1</td><td>0.015</td>"));
  CHECK(contains(figure, "<td>compress</td><td>1</td><td>0.0195</td>"));  // its phases are inside
  CHECK(contains(figure, "bucket 0: 15 ms"));
  CHECK(contains(figure, "class=\"p-compress inner\""));
  CHECK(contains(figure, "compensate: 4 ms"));
  size_t arrows = 0;
  for (size_t at = 0; (at = figure.find("marker-end", at)) != std::string::npos; ++at) ++arrows;
  CHECK(arrows == 2);
}

TEST_CASE("report: several runs on a page, small and complete in itself") {
  const TempFolder temp;
  const FakeRun large{.steps = 3000, .layers = 160, .plans = 150, .looks = 150};
  std::vector<RunRecord> runs = {read_run(large.write(temp, "a"))};
  runs.push_back(read_run(FakeRun{.steps = 3000, .shift = 0.5}.write(temp, "b")));
  for (const char* name : {"c", "d", "e", "f", "g", "h"}) {
    runs.push_back(runs[1]);
    runs.back().name = name;
  }
  const std::string page = report_page(runs);
  CHECK(page.size() < 2'000'000);
  for (const char* id : {"loss-time", "loss-bytes", "run1-plans", "run8-timeline"})
    CHECK_MESSAGE(!figure_of(page, id).empty(), id);
  CHECK(contains(page, "id=\"comparison\""));
  for (const char* fetched : {"http:", "https:", "src=", "@import", "url(h", "url(/"})
    CHECK_FALSE_MESSAGE(contains(page, fetched), fetched);
  const std::regex id("[ <]id=\"([^\"]*)\"");
  std::set<std::string> seen;
  for (auto it = std::sregex_iterator(page.begin(), page.end(), id); it != std::sregex_iterator();
       ++it)
    CHECK_MESSAGE(seen.insert((*it)[1]).second, (*it)[1].str());
  // The second run has the same losses, half a nat higher, at every point.
  const auto a = drawn(figure_of(page, "loss"), "a"), b = drawn(figure_of(page, "loss"), "b");
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i)
    CHECK(b[i].y - a[i].y == doctest::Approx(0.5).epsilon(0.01));
  runs.push_back(runs[1]);
  CHECK(contains(message_of([&] { report_page(runs); }), "at most 8 runs"));
}

TEST_CASE("report: names and texts of others are text") {
  const TempFolder temp;
  const std::string page = report_page({read_run(FakeRun{}.write(temp, "<img onerror=x>&"))});
  CHECK_FALSE(contains(page, "<img"));
  CHECK_FALSE(contains(page, "<i>\""));
  CHECK(contains(page, "&lt;img onerror=x&gt;&amp;"));
}

TEST_CASE("report: what is missing is left out, what is broken is named") {
  const TempFolder temp;
  CHECK(contains(message_of([&] { read_run(temp.path); }), "expected metrics.jsonl"));
  const std::string young = temp.path + "/young";
  std::filesystem::create_directory(young);
  temp.write("young/metrics.jsonl",
             "{\"schema\":1}\n{\"step\":1,\"epoch\":1,\"split\":\"train\",\"loss\":null}\n{\"st");
  const RunRecord run = read_run(young);
  CHECK(run.steps.size() == 1);
  CHECK(std::isnan(run.steps[0].loss));
  CHECK(contains(report_page({run}), "young"));
  CHECK(contains(watch_text(run, 60, true), "step 1"));
  temp.write("young/metrics.jsonl", "{\"schema\":1}\n{\"step\":\n");
  const RunRecord holed = read_run(young);
  CHECK(holed.broken_lines == 1);
  CHECK(holed.first_broken.starts_with("2: "));
  CHECK(contains(watch_text(holed, 60, true),
                 "left out of metrics.jsonl: lines that are none, 1; line 2: "));
  temp.write("young/metrics.jsonl", "<\n5\n");
  CHECK(contains(message_of([&] { read_run(young); }), "metrics.jsonl:1: "));
  for (const char* schema : {"99", "\"1\"", "null"}) {
    temp.write("young/metrics.jsonl", concat("{\"schema\":", schema, "}\n{\"step\":1}\n"));
    CHECK(contains(message_of([&] { read_run(young); }), "expected schema 1, found "));
  }
  temp.write("young/metrics.jsonl", "{\"schema\":1}\n");
  CHECK(read_run(young).steps.empty());
  CHECK(contains(report_page({read_run(young)}), "</html>"));
  temp.write("young/plan-3.json", "[]");
  CHECK(contains(message_of([&] { read_run(young); }), "plan-3.json: no plan"));
}

TEST_CASE("report: a broken line is left out, and the rest is shown") {
  const TempFolder temp;
  std::string metrics = FakeRun{}.metrics();
  const size_t third = metrics.find("{\"step\":3,");
  metrics.replace(third, metrics.find('\n', third) - third, "{\"step\":3,<b>\"ep");
  const std::string folder = FakeRun{}.write(temp, "holed");
  temp.write("holed/metrics.jsonl", metrics);
  const RunRecord run = read_run(folder);
  CHECK(run.steps.size() == 39);
  CHECK(run.broken_lines == 1);
  const std::string page = report_page({run});
  CHECK(contains(
      page, "holed/metrics.jsonl: 1 of its lines are none of metrics and were left out; line 4: "));
  CHECK_FALSE(contains(page, "3,<b>"));
  CHECK_FALSE(contains(report_page({read_run(FakeRun{}.write(temp, "whole"))}), "were left out"));
}

TEST_CASE("report: losses as large as numbers get") {
  const TempFolder temp;
  RunRecord run = read_run(FakeRun{}.write(temp, "large"));
  const double most = std::numeric_limits<double>::max();
  for (const auto& [a, b] : std::vector<std::pair<double, double>>{{1e308, -1e308},
                                                                   {most, -most},
                                                                   {most, most},
                                                                   {1e20, 1e20},
                                                                   {most, 5e-324},
                                                                   {5e-324, 5e-324},
                                                                   {-1e18, -1e18}}) {
    for (size_t i = 0; i < run.steps.size(); ++i) run.steps[i].loss = i % 2 == 0 ? a : b;
    const std::string page = report_page({run});
    CHECK_FALSE(contains(page, "=\"nan"));
    CHECK_FALSE(contains(page, "=\"inf"));
    CHECK(contains(watch_text(run, 60, true), "step 40"));
    CHECK_FALSE(terminal_chart({{0, a}, {1, b}}, 40, 4, false).empty());
    for (const Scale& scale :
         {Scale::linear(std::min(a, b), std::max(a, b), 0, 1),
          Scale::linear(-INFINITY, INFINITY, 0, 1),
          Scale::logarithmic(std::max(1e-320, std::min(a, b)), std::max(a, b), 0, 1)}) {
      const std::vector<double> ticks = scale.ticks(5);
      CHECK(ticks.size() <= 12);
      for (const double tick : ticks) CHECK(std::isfinite(scale(tick)));
      CHECK(std::isfinite(scale(a > 0 ? a : 1)));
    }
  }
}

TEST_CASE("watch: what a run says of itself moves no cursor") {
  const TempFolder temp;
  RunRecord run = read_run(FakeRun{}.write(temp, "a"));
  run.folder = "runs/\033[2J";
  run.summary["summary"] = "\033[31mred\033]0;title\a";
  run.config = {{"steps", "\033[5A"}};
  for (ScoreRecord& score : run.scores) score.split = "va\033[7mlid";
  run.broken_lines = 1;
  const std::string text = watch_text(run, 60, true);
  CHECK(text.find('\033') == std::string::npos);
  CHECK(text.find('\a') == std::string::npos);
  CHECK(contains(text, "?[31mred"));
  run.summary["summary"] = 5;
  CHECK(contains(watch_text(run, 60, true), "step 40"));
}

TEST_CASE("svg: numbers and ticks for people") {
  CHECK(significant(0.0012345, 3) == "0.00123");
  CHECK(significant(60.25, 4) == "60.25");
  CHECK(significant(NAN) == "–");
  CHECK(scaled(1618332, "B") == "1.62 MB");
  CHECK(scaled(999.4, "B") == "999 B");
  CHECK(scaled(15147587520.0, "B") == "15.1 GB");
  CHECK(duration_text(0.0123) == "12.3 ms");
  CHECK(duration_text(7200) == "2 h");
  CHECK(Scale::linear(0, 9360, 0, 1).ticks(5) == std::vector<double>{0, 2000, 4000, 6000, 8000});
  CHECK(Scale::logarithmic(900, 2e6, 0, 1).ticks(5) == std::vector<double>{1e3, 1e4, 1e5, 1e6});
  CHECK(Scale::logarithmic(1, 100, 0, 200)(10) == doctest::Approx(100));
}

TEST_CASE("watch: where a run stands, and a chart") {
  const TempFolder temp;
  const std::string text = watch_text(read_run(FakeRun{}.write(temp, "a")), 60, true);
  for (const char* part : {"epoch 2  step 40  done", "loss 1.173", "100 images/s", "ratio 50",
                           "exposed 8.3 %", "valid acc1 60.25"})
    CHECK_MESSAGE(contains(text, part), text);
  // Nothing written for long, beside its steps and for a person; an ended run is silent for good.
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
}
