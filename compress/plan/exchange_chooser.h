// ExchangeChooser (--compress auto): exchanges each bucket dense or compressed, and some
// neighbouring buckets together, whichever makes the step shortest on this network. Both ways are
// tried for a few steps each. The end of a step with any mixture then follows from when its buckets
// become ready and how long the worker needs for each (the model of --headroom, see
// docs/benchmarks.md). A mixture or a choice with joined buckets is measured, too, and dropped if
// it is no better than the faster of the two ways. The ranks decide from the same means. Trials are
// longer if both ways take about the same time, as they then cost little; they are repeated, less
// often the more the other way costs. Residuals wait during dense trials; once a bucket is chosen
// to be dense, they are sent with its next gradient.
//
//   dense trial, compressed trial, dense trial, compressed trial -> choice -> check, if it is a
//   mixture -> waiting -> ...
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

// One bucket's times, seconds.
struct BucketTimes {
  double ready_s = 0;    // from the beginning of the step until its last gradient is final
  double code_s = 0;     // of its exchange outside of collectives
  double comm_s = 0;     // of its exchange in collectives
  double latencies = 0;  // number of messages, one after another, within comm_s
};

// The measured times of a step, seconds.
struct ExchangeTrial {
  double backward_s = 0;  // from the beginning of the step to the end of backward
  std::vector<BucketTimes> buckets = {};
  double rest_s = 0;  // all else, such as updates and waiting for a processor
};

// Returns when the worker, which exchanges one bucket after another, has finished the last.
double exchanges_end(const std::vector<BucketTimes>& buckets);
// Returns the seconds of a step, which ends rest_s after both backward and the last bucket.
double step_seconds(const ExchangeTrial& trial);

struct ExchangeChoice {
  int64_t step = 0;              // steps before it
  std::vector<bool> compressed;  // by bucket
  std::vector<bool> joined;      // by bucket: it is exchanged together with the one before it
  // Predicted seconds of a step from the start of backward: all dense, all compressed, as chosen.
  double dense_s = 0, compressed_s = 0, chosen_s = 0;
  double found_s = 0;    // measured seconds of the choice; 0 if it was one of the two trials
  bool dropped = false;  // it was no better than the faster of the two, which is used instead
  ExchangeTrial dense_trial, compressed_trial;       // measurements of both ways
  std::vector<std::vector<std::string>> parameters;  // of each bucket
  bool tried() const;                                // it is one of the two ways, nothing joined
  double used_s() const;                             // seconds of a step as it is used from now on
};

// Returns the choice. Compressed buckets must make the step shorter by `margin`, a fraction of it;
// a mixture must beat the pure way that would be used otherwise by the same fraction, and joined
// buckets the best choice without them. One message takes latency_s seconds. Throws InputError
// unless both trials have the same buckets, at least one.
ExchangeChoice choose_exchange(const ExchangeTrial& dense, const ExchangeTrial& coded,
                               double latency_s, double margin);

struct ExchangeChooserOptions {
  int64_t every = 0;     // least steps from one trial to the next; 0: nothing is chosen
  int64_t trial = 6;     // steps of each way, even, in two rounds whose first steps do not count
  double tie = 0.15;     // fraction of a step: closer ways are tried in up to eight rounds
  double margin = 0.02;  // fraction of a step, as in choose_exchange()
  double trial_cost = 0.01;  // fraction of all steps' time that trials of the slower way may cost
  double latency_s = 0;      // seconds of a message; ExchangeProbes measures it
  std::function<void(const ExchangeChoice&)> on_choice = {};
  std::function<double()> clock = steady_seconds;  // seconds, for backward
};

class ExchangeChooser {
 public:
  // `buckets`: the names of their parameters, in the order of backward. The reducer compresses from
  // step `start` on, and must outlive this object. Throws InputError for impossible options.
  ExchangeChooser(CompressedReducer& reducer, std::vector<std::vector<std::string>> buckets,
                  const ExchangeChooserOptions& options, int64_t start);

  // Begins a trial if one is due after `step` steps, an earlier process's included. Between steps.
  void resume(int64_t step);
  // Record the current step, from the main thread. Joined buckets count as one.
  void begin_step();
  void ready(size_t bucket);
  void backward_ended();
  // Records a bucket's exchange, from the worker's thread: seconds outside of collectives, seconds
  // in collectives by the communicator's clock, and the number of latencies in these.
  void exchanged(size_t bucket, double code_s, double comm_s, double latencies);
  // Ends a step, on all ranks: `step` steps have been made.
  void finish_step(int64_t step, const LayerPlanner::Collective& collective);
  // Returns whether the current steps are measured.
  bool measuring() const { return phase_ != Phase::waiting; }
  // Returns for each bucket whether it is exchanged together with the one before it. Changes in
  // resume() and finish_step().
  const std::vector<bool>& joined() const { return joined_; }

 private:
  enum class Phase { waiting, dense_trial, compressed_trial, check };
  struct Trial {  // by step
    std::vector<double> backward, step;
    std::vector<std::vector<BucketTimes>> buckets;
  };
  auto every_bucket(bool value) const { return std::vector<bool>(buckets_.size(), value); }
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
