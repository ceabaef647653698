// Reads a run folder back: metrics.jsonl, run.json, config.toml, the plans plan-<step>.json, the
// choices exchange-<step>.json, and the trace. Only steps are typed; everything else stays
// JSON, which the report reduces (report_json.h). Whatever is missing is left empty: a run may be
// young, or of an older version.
//
//   const RunRecord run = read_run("runs/a");
//   run.steps.back().loss
#pragma once

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace heddle {

// One update, as in a line of metrics.jsonl; seconds, and bytes of one rank. NaN: not in the line.
struct StepRecord {
  int64_t step = 0, epoch = 0;
  double loss = NAN, lr = NAN, rate = NAN;  // rate: samples or tokens per second
  double data = NAN, forward = NAN, backward = NAN, update = NAN;
  double compress = NAN, comm = NAN, exposed = NAN;
  double sent = NAN, dense = NAN;  // bytes; with --hosts, between hosts
  double decoder_error = NAN;      // of LGC
  double epsilon = NAN;            // of topagg
  double grad_norm = NAN;          // of the mean gradient, where the run clips

  double seconds() const { return data + forward + backward + update; }
};

struct RunRecord {
  using Json = nlohmann::ordered_json;

  std::string folder, name;
  Json info = Json::object();     // run.json
  std::string samples;            // the newest sheet of generated pictures, a PNG file in base 64
  Json summary = Json::object();  // empty until the run has ended
  std::vector<std::pair<std::string, std::string>> config;  // key and value, as written
  const char* unit() const {                                // of what the rate counts
    if (rate_key == "nodes_per_s") return "nodes";
    return rate_key == "tokens_per_s" ? "tokens" : "images";
  }
  std::string rate_key;  // "samples_per_s", "tokens_per_s", "nodes_per_s"
  std::vector<StepRecord> steps;
  std::vector<Json> scores;          // evaluations: step, epoch, split, and loss, acc1, ppl or bpc
  std::vector<Json> plans, choices;  // the files' contents, by step
  Json mistakes;                     // mistakes.json; null if there is none
  std::vector<Json> texts;           // written by a language model: step, epoch, sample
  std::vector<Json> qualities;   // lines of the quality meter: step, correlation, quality by layer
  Json ledger = Json::object();  // {layer: {kind: {payload, sent}}}, bytes over the run
  Json timeline;                 // one step of the trace; null where there is none
  std::vector<std::string> skipped;  // files, and lines of metrics.jsonl, with what is wrong there

  bool exchanges() const { return !steps.empty() && !std::isnan(steps.back().sent); }
  // Returns "acc1", "ppl" or "bpc", whichever was evaluated, otherwise "loss".
  std::string score_key() const;
  // Returns the value of a key of config.toml; "" if it is not set.
  std::string setting(const std::string& key) const;
};

// Reads `folder`. Lines of metrics.jsonl that do not parse, and other files whose content is not as
// expected, are skipped; a last line without a newline is still being written and is ignored.
// `trace` names the trace file; by default it is trace.json in the folder, or the file that --trace
// names in run.json's arguments. Throws InputError if there is no metrics.jsonl, if none of its
// lines parses, for an unknown schema, and if `trace` is not a trace.
RunRecord read_run(const std::string& folder, const std::string& trace = "");

// Returns one step of the first rank from the file `trace`: ranges by track and the arrows that
// follow buckets, in seconds since its begin; null if no step is whole. Throws InputError.
RunRecord::Json read_timeline(const std::string& trace);

// Returns means over the second half of the steps, after caches and schedules have warmed up. The
// rate is all their samples over all their seconds; a measure that no line has is NaN.
StepRecord steady_step(const RunRecord& run);

}  // namespace heddle
