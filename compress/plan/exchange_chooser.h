// --compress auto: for each bucket dense or compressed, and which neighbours travel together,
// whatever makes the step shorter here. Both ways are tried for a few steps; a step's end follows
// from when its buckets become ready and what the worker needs for each (the model that --headroom
// has, docs/benchmarks.md). What was not tried as it is, a mixture or joined buckets, is then
// measured, and dropped where it is no better than what was. The ranks decide from the same means.
// Tried for longer where both ways take about the same, which costs little; tried again from time
// to time, rarely where the other way is dear.
//
//   ExchangeChooser chooser(reducer, {{"fc.weight"}, {"conv1.weight"}}, {.every = 1000}, 0);
//   chooser.begin_step(); …ready(bucket)… …exchanged(bucket, …)… chooser.backward_ended();
//   chooser.finish_step(step, collective);
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "compress/compressed_reducer.h"
#include "compress/plan/layer_planner.h"
#include "core/trace.h"

namespace heddle {

// Seconds; ready counts from the beginning of the step.
struct BucketTimes {
  double ready_s = 0;    // backward has made its last gradient
  double code_s = 0;     // of its exchange, what is not in collectives
  double comm_s = 0;     // in collectives
  double latencies = 0;  // of messages, one behind the other, within comm_s
};

// What was measured of steps: when backward ends, beside the worker, and each bucket; and what the
// step takes besides, as updates and waiting for a processor.
struct ExchangeTrial {
  double backward_s = 0;
  std::vector<BucketTimes> buckets = {};
  double rest_s = 0;  // in the step, neither backward nor an exchange that is waited for
};

// Returns when the worker, which takes one bucket after the other, has done the last.
double exchanges_end(const std::vector<BucketTimes>& buckets);
// Returns the seconds of a step, which ends rest_s after both backward and the last bucket.
double step_seconds(const ExchangeTrial& trial);

struct ExchangeChoice {
  int64_t step = 0;              // steps that were made before it
  std::vector<bool> compressed;  // by bucket
  std::vector<bool> joined;      // by bucket: it travels with the one before it
  // From backward's begin to the end of the step: if all buckets were dense, compressed, as chosen.
  double dense_s = 0, compressed_s = 0, chosen_s = 0;
  double found_s = 0;    // as chosen, measured; 0: it was one of the two that had been tried
  bool dropped = false;  // as it was no better than the pure way that is used then
  ExchangeTrial dense_trial, compressed_trial;       // measurements of both ways
  std::vector<std::vector<std::string>> parameters;  // of each bucket
  bool tried() const;                                // one of the two ways, nothing joined
  double used_s() const;                             // measured, of what is used from now on
};

// Compressed buckets must make the step shorter by `margin`, a part of it; a mixture must be better
// than both pure ways by as much, and joined buckets better than without. A message takes
// latency_s.
ExchangeChoice choose_exchange(const ExchangeTrial& dense, const ExchangeTrial& coded,
                               double latency_s, double margin);

struct ExchangeChooserOptions {
  int64_t every = 0;         // steps from one trial to the next, at least; 0: nothing is chosen
  int64_t trial = 6;         // steps each way, even, in two turns whose first steps do not count
  double tie = 0.15;         // part of a step: ways that are closer are tried in up to eight turns
  double margin = 0.02;      // of a step, for which bytes are changed
  double trial_cost = 0.01;  // of all steps' time, that trials of the dearer way may take
  double latency_s = 0;      // of a message; DataParallelOptimizer measures it
  std::function<void(const ExchangeChoice&)> on_choice = {};
  std::function<double()> clock = steady_seconds;  // of backward
};

class ExchangeChooser {
 public:
  // `buckets`: names of their parameters. The reducer compresses from step `start` on, and must
  // outlive this object.
  ExchangeChooser(CompressedReducer& reducer, std::vector<std::vector<std::string>> buckets,
                  const ExchangeChooserOptions& options, int64_t start);

  // `step` have been made, by an earlier process too: a trial begins if it is time. Between steps.
  void resume(int64_t step);
  // Of the current step, on the main thread. Buckets are counted as they travel, joined ones as
  // one.
  void begin_step();
  void ready(size_t bucket);
  void backward_ended();
  // On the worker's thread: what a bucket's exchange took in collectives, by the communicator's
  // clock, and besides; and how many latencies that were.
  void exchanged(size_t bucket, double code_s, double comm_s, double latencies);
  // Between steps: `step` have been made.
  void finish_step(int64_t step, const LayerPlanner::Collective& collective);
  // Whether the steps are a trial now.
  bool measuring() const { return phase_ != Phase::waiting; }
  // By bucket: from now on it travels with the one before it. Changes in resume() and
  // finish_step().
  const std::vector<bool>& joined() const { return joined_; }

 private:
  enum class Phase { waiting, dense_trial, compressed_trial, check };
  struct Trial {  // by step
    std::vector<double> backward, step;
    std::vector<std::vector<BucketTimes>> buckets;
  };
  std::vector<bool> every_bucket(bool value) const {
    return std::vector<bool>(buckets_.size(), value);
  }
  void start(Phase phase, const std::vector<bool>& compressed, const std::vector<bool>& joined);
  void try_all(Phase way) {
    start(way, every_bucket(way == Phase::compressed_trial), every_bucket(false));
  }
  ExchangeTrial mean_of_ranks(Phase phase, const LayerPlanner::Collective& collective) const;
  void check_choice(double found_s);
  void adopt(int64_t step);

  CompressedReducer& reducer_;
  std::vector<std::vector<std::string>> buckets_;
  ExchangeChooserOptions options_;
  int64_t next_trial_;  // the step before which it begins
  Phase phase_ = Phase::waiting;
  int64_t steps_ = 0;         // of this phase
  int rounds_ = 0;            // of the two ways
  std::vector<bool> joined_;  // by bucket
  double begin_ = 0, backward_s_ = 0;
  std::vector<BucketTimes> now_;   // of this step
  std::map<Phase, Trial> trials_;  // since the last choice
  ExchangeChoice choice_;
};

}  // namespace heddle
