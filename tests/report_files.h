// A run folder with known numbers, for tests of its readers.
#pragma once

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/report/report_data.h"
#include "apps/report/report_json.h"
#include "core/error.h"
#include "tests/app_helpers.h"

namespace heddle {

inline RunRecord::Json report_of(const RunRecord& run) {
  return report_json({run}, 6000)["runs"][0];
}

struct FakeRun {
  int steps = 40, layers = 3, plans = 2, looks = 2, choices = 2, texts = 2;
  double shift = 0;  // of the losses

  double loss(int step) const { return 2.5 * std::exp(-0.02 * step) + 0.01 * (step % 7) + shift; }
  double forward(int step) const { return 0.1 + 0.001 * (step % 5); }
  static std::string layer(int i) { return concat("layer", i, ".weight"); }
  static int64_t elements(int i) { return 1000 * (i + 1); }
  int64_t dense_bytes() const {
    int64_t sum = 0;
    for (int i = 0; i < layers; ++i) sum += elements(i);
    return sum * 4 * 3 / 2;
  }

  std::string metrics() const {
    using Json = nlohmann::ordered_json;
    std::string out = "{\"schema\":1,\"program\":\"heddle 0.1.0\"}\n";
    for (int s = 1; s <= steps; ++s)
      out += Json{{"step", s},
                  {"epoch", s > steps / 2 ? 2 : 1},
                  {"split", "train"},
                  {"loss", loss(s)},
                  {"lr", 0.1 * s / steps},
                  {"samples_per_s", 100},
                  {"t_data", 0.01},
                  {"t_forward", forward(s)},
                  {"t_backward", 0.2},
                  {"t_update", 0.05},
                  {"bytes_sent", s < 5 ? dense_bytes() : dense_bytes() / 50},
                  {"bytes_received", 1},
                  {"bytes_dense", dense_bytes()},
                  {"ratio", 50},
                  {"t_comm", 0.06},
                  {"t_compress", 0.02},
                  {"t_exposed", 0.03},
                  {"grad_norm", 1.0 / s}}
                 .dump() +
             "\n";
    for (int e = 1; e <= 2; ++e)
      out += Json{{"step", steps / 2 * e},   {"epoch", e}, {"split", "valid"}, {"loss", 2.0 / e},
                  {"acc1", 30.0 * e + 0.25}, {"acc5", 90}}
                 .dump() +
             "\n";
    for (int e = 1; e <= texts; ++e)
      out += Json{{"step", e}, {"epoch", e}, {"sample", concat("the cat ", e)}}.dump() + "\n";
    for (int k = 1; k <= looks; ++k) {
      Json quality = Json::object();
      for (int i = 0; i < layers; ++i)
        quality[layer(i)] = {{"contraction", 0.5 + 0.1 * k},
                             {"cosine", 0.25},
                             {"residual_norm", 2.0 * k + i},
                             {"gradient_norm", 0.5},
                             {"alike", 0.125}};  // check_words: quoted
      Json line{{"step", 10 * k}, {"quality", quality}};
      line["alike"] = 0.125;  // check_words: quoted
      out += line.dump() + "\n";
    }
    Json names = Json::object(), ledger = Json::object();
    for (int i = 0; i < layers; ++i) {
      names[layer(i)] = elements(i);
      ledger[layer(i)] = {{"values", {{"payload", 8}, {"sent", 60 * elements(i)}}},
                          {"indices", {{"payload", 4}, {"sent", 40 * elements(i)}}}};
    }
    out += Json{{"summary", "done"},    {"step", steps},
                {"epoch", 2},           {"world_size", 4},
                {"bytes_sent", 1},      {"bytes_dense", dense_bytes() * steps},
                {"ratio_layers", 98.5}, {"ratio_values", 61.25},
                {"ratio_wire", 47.5},   {"ratio_run", 12.75},
                {"layers", names}}
               .dump() +
           "\n";
    return out + Json{{"ledger", ledger}, {"sent", 1}, {"received", 1}}.dump() + "\n";
  }

  std::string plan(int step) const {
    using Json = nlohmann::ordered_json;
    Json rows = Json::array();
    for (int i = 0; i < layers; ++i)
      rows.push_back({{"name", layer(i)},
                      {"elements", elements(i)},
                      {"setting", 25 * (i + 1)},
                      {"uniform", 100},
                      {"bytes", 400 / (i + 1)},
                      {"uniform_bytes", 100}});
    return Json{{"step", step}, {"family", "scalecom"}, {"budget", 1},   {"error", 0.9},
                {"bytes", 700}, {"uniform_bytes", 900}, {"layers", rows}}
        .dump();
  }

  // Returns a choice with one bucket for each layer; every second one is compressed.
  std::string choice(int step) const {
    using Json = nlohmann::ordered_json;
    Json buckets = Json::array();
    for (int i = 0; i < layers; ++i) {
      Json names = {layer(i), concat("layer", i, ".bias")};
      buckets.push_back(
          {{"compressed", i % 2 == 1},
           {"joined", i == 2},
           {"dense", {{"ready_s", 0.1 * (i + 1)}, {"code_s", 0}, {"comm_s", 0.02 * (i + 1)}}},
           {"packed", {{"ready_s", 0.1 * (i + 1)}, {"code_s", 0.005}, {"comm_s", 0.001}}},
           {"parameters", names}});
    }
    return Json{{"step", step},
                {"dense_s", 0.36},
                {"compressed_s", 0.31},
                {"chosen_s", 0.3 + 0.001 * step},
                {"found_s", step > 20 ? Json(0.3 + 0.00125 * step) : Json()},
                {"dropped", false},
                {"buckets", buckets}}
        .dump();
  }

  // Two forward and backward passes of rank 0, each with an exchange whose compressor has two
  // phases, and an arrow to one; memory and a note, which are not ranges.
  static std::string trace() {
    const auto range = [](int track, double begin, double length, const char* name) {
      return concat("{\"name\":\"", name, "\",\"ph\":\"X\",\"pid\":0,\"tid\":", track,
                    ",\"ts\":", begin, ",\"dur\":", length, "},\n");
    };
    const auto point = [](char kind, int track, double at) {
      return concat("{\"name\":\"gradient\",\"cat\":\"gradient\",\"ph\":\"", kind,
                    "\",\"id\":\"0x1\",\"pid\":0,\"tid\":", track, ",\"ts\":", at, "},\n");
    };
    std::string out = "{\"traceEvents\":[\n";
    for (const double at : {1000.0, 51000.0})
      out += range(0, at, 10000, "conv1.weight") + range(1, at + 10000, 20000, "conv1.weight") +
             range(2, at + 20000, 15000, "bucket 0") + range(3, at + 36000, 2000, "conv1.weight") +
             range(4, at + 16000, 4000, "compensate") + range(4, at + 20000.001, 1000, "select") +
             range(4, at + 16000, 19500, "bucket 0");
    out +=
        "{\"name\":\"host memory\",\"ph\":\"C\",\"pid\":0,\"ts\":1000,\"args\":{\"in use\":1}},\n"
        "{\"name\":\"final: "
        "conv1\",\"ph\":\"i\",\"s\":\"t\",\"pid\":0,\"tid\":1,\"ts\":1000,\"args\":{}},\n";
    out += point('s', 1, 20000) + point('t', 2, 21000.5) + point('f', 3, 37000.5);
    const char* names[] = {"forward", "backward", "comm", "update", "compress"};
    for (int i = 0; i < 5; ++i)
      out += concat("{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":0,\"tid\":", i,
                    ",\"args\":{\"name\":\"", names[i], "\"}}", i < 4 ? ",\n" : "\n]}\n");
    return out;
  }

  // Writes the run under the given name in the folder; returns its path.
  std::string write(const TempFolder& temp, const std::string& name) const {
    std::filesystem::create_directory(temp.path + "/" + name);
    temp.write(name + "/metrics.jsonl", metrics());
    temp.write(name + "/config.toml",
               "# a run\nlearners = 4\ncompress = \"scalecom:rate=100\"\nlr = 0.1  # default\n");
    temp.write(name + "/run.json",
               R"({"program":"heddle 0.1.0","start_time":"2026-01-02T03:04:05+0000",)"
               R"("argv":["train_resnet","--x","<i>"],"seed":1,"threads":2,"device":"cpu",)"
               R"("precision":"fp32","build":{"git_revision":"abc"},"machine":{"cpu":"Z80",)"
               R"("cores":2,"memory_bytes":64000000000}})");
    for (int p = 1; p <= plans; ++p)
      temp.write(concat(name, "/plan-", 10 * p, ".json"), plan(10 * p));
    for (int c = 1; c <= choices; ++c)
      temp.write(concat(name, "/exchange-", 12 * c, ".json"), choice(12 * c));
    temp.write(name + "/trace.json", trace());
    return temp.path + "/" + name;
  }
};

// The data that a page holds, as a browser reads it.
inline RunRecord::Json data_of(const std::string& page) {
  const std::string mark = "<script type=\"application/json\" id=\"data\">";
  const size_t begin = page.find(mark) + mark.size();
  return RunRecord::Json::parse(page.substr(begin, page.find("</script>", begin) - begin));
}

}  // namespace heddle
