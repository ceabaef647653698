// What a run folder tells: metrics.jsonl, run.json, config.toml, the plans plan-<step>.json, the
// choices exchange-<step>.json and the trace, read back for people. Whatever is missing is left
// empty: a run may be young, or of an older version.
//
//   const RunRecord run = read_run("runs/a");
//   run.steps.back().loss
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace heddle {

// One update, as in a line of metrics.jsonl; seconds, and bytes of one rank. NaN: not in the line.
struct StepRecord {
  int64_t step = 0, epoch = 0;
  double loss = NAN, lr = NAN, rate = NAN;
  double data = NAN, forward = NAN, backward = NAN, update = NAN;
  double compress = NAN, comm = NAN, exposed = NAN;
  double sent = NAN, dense = NAN;

  double seconds() const { return data + forward + backward + update; }
};

// What the network was worth on "valid" or "test".
struct ScoreRecord {
  int64_t step = 0, epoch = 0;
  std::string split;
  std::map<std::string, double> values;  // "loss", and "acc1", "ppl" or "bpc"
};

struct PlanRecord {
  struct Layer {
    std::string name;
    int64_t elements = 0;
    double setting = 0, uniform = 0;
    double bytes = 0, uniform_bytes = 0;
  };
  int64_t step = 0;
  std::string family;
  double bytes = 0, uniform_bytes = 0, error = 0, budget = 0;
  std::vector<Layer> layers;
};

// What --compress auto has decided, and from which measurements; seconds.
struct ChoiceRecord {
  struct Times {
    double ready = NAN, code = NAN, comm = NAN;  // code, comm: encoding, and in collectives
  };
  struct Bucket {
    bool compressed = false, joined = false;  // joined: travels with the one before it
    Times dense, packed;                      // measured both ways
    std::vector<std::string> parameters;      // may be missing
  };
  int64_t step = 0;
  double dense = NAN, compressed = NAN, chosen = NAN;  // of a step behind forward, as predicted
  double found = NAN;    // as chosen, measured; of a choice that was measured already: no number
  bool dropped = false;  // as it was no better than one that was
  std::vector<Bucket> buckets;
};

// A look of the quality meter: of each layer the measures by name.
struct LookRecord {
  int64_t step = 0;
  double alike = NAN;
  std::vector<std::pair<std::string, std::map<std::string, double>>> layers;
};

// What one layer, or one kind of control message, has sent over the run.
struct LedgerRecord {
  std::string layer;
  int64_t elements = 0;                         // 0: unknown, or no layer
  std::map<std::string, double> payload, sent;  // bytes by kind: values, indices, scales, control
  double all_sent() const;
};

struct RunRecord {
  std::string folder, name;
  nlohmann::ordered_json info = nlohmann::ordered_json::object();     // run.json
  nlohmann::ordered_json summary = nlohmann::ordered_json::object();  // of a run that has ended
  std::vector<std::pair<std::string, std::string>> config;  // key and value, as they are written
  std::string rate_key;                                     // "samples_per_s", "tokens_per_s"
  std::vector<StepRecord> steps;
  std::vector<ScoreRecord> scores;
  std::vector<PlanRecord> plans;
  std::vector<ChoiceRecord> choices;
  std::vector<LookRecord> looks;
  std::vector<LedgerRecord> ledger;
  std::string trace;         // the file, where one is found
  int64_t broken_lines = 0;  // of metrics.jsonl, left out
  std::string first_broken;  // its number and what is wrong

  bool exchanges() const { return !steps.empty() && !std::isnan(steps.back().sent); }
  // The measure that people look at: "acc1", "ppl", "bpc", or "loss" where there is none of these.
  std::string score_key() const;
  // "" where the key is not set.
  std::string setting(const std::string& key) const;
};

// Throws InputError where there is no metrics.jsonl, where none of its lines is one of metrics, and
// for a schema that this version does not know. Lines that are no metrics are left out and counted;
// a last line without an end is still being written. `trace`: the file that was given to
// --trace; without it trace.json in the folder, or what the arguments in run.json name.
RunRecord read_run(const std::string& folder, const std::string& trace = "");

// Means over the second half of the steps, where a run has found its pace. A measure that is in no
// line is NaN. The rate is that of all these steps together, by their times.
StepRecord settled_step(const RunRecord& run);

}  // namespace heddle
