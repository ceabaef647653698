// Optimizer: turns final gradients into new weights while backward is still running.
// A parameter's update waits for two signals: ready (its gradient is final) and weights_free (the
// last closure that reads its value has returned). finish_step does all updates if clipping by the
// global norm or skipping whole steps needs all gradients first, and on a GPU. Same bits both ways.
//
//   backward of layer 3:  writes grad 3 -> ready    reads weight 3 -> weights_free -> update 3
//   backward of layer 2:  writes grad 2 -> ready    reads weight 2 -> weights_free -> update 2
//
// ready, reject, mark_non_finite and weights_free may be called from several threads; an update
// runs on the thread that gave the second signal, and two updates may run at once.
//
//   optimizer.begin_step(schedule.lr(step));
//   optimizer.backward(tape, loss);
//   StepReport report = optimizer.finish_step();
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/parameters.h"
#include "core/tape.h"
#include "optim/update_rule.h"

namespace heddle {

// Decides what a gradient with NaN or Inf makes the optimizer skip. bucket: the parameters of its
// bucket where a reducer compresses, and that parameter alone where gradients are summed densely;
// other gradients are applied, unless gradients are clipped by their norm, which is not known then.
// step: the whole step.
enum class OnNonfinite : uint8_t { bucket, step };

struct OptimizerOptions {
  int accumulate = 1;  // micro-steps (begin, backward, finish) per update, which averages them
  // Ranks whose gradients the buffer sums; the update averages them. DataParallelOptimizer sets it.
  int learners = 1;
  double clip_grad_norm = 0;  // largest global norm of the mean gradient; 0: no clipping
  OnNonfinite on_nonfinite = OnNonfinite::bucket;
  std::function<void(const std::string&)> log = {};  // called with one line of text; may be empty
};

struct StepReport {
  bool due = false;                // false: a micro-step, the update has yet to come
  bool skipped = false;            // nothing was applied: gradients were non-finite
  int64_t skipped_parameters = 0;  // with a non-finite gradient, or rejected with their bucket
  std::string first_skipped;       // the first of these that backward or an exchange reached
  // Global norm of the mean gradient before clipping; NaN where no update waited for all gradients.
  double grad_norm = std::numeric_limits<double>::quiet_NaN();
  double clip = 1;  // the factor by which clipping scaled it
};

class Optimizer {
 public:
  // Allocates the rule's state on the store's device. The store must be finalized and outlive the
  // optimizer. Throws InputError for options out of range, and without a rule.
  Optimizer(ParameterStore& store, std::unique_ptr<UpdateRule> rule,
            const OptimizerOptions& options = {});

  // Forgets the gradients, except between the micro-steps of one update. Before backward; forward
  // may have run. Throws InputError for a learning rate that is negative or non-finite.
  void begin_step(double lr);
  // Signals that p.grad is final for this backward pass; parameters of other stores are left to
  // their own optimizers, here and in weights_free(). `from_residual`: see UpdateInput. Throws
  // InputError if p has already been updated in this step, since what a second pass adds would be
  // lost; with clipping and on a GPU all updates come at the end, and passes add up.
  void ready(Parameter& p, bool from_residual = false);
  // Discards p.grad in this step: some rank's gradient was non-finite.
  void reject(Parameter& p);
  // Names p in this step's report as the first with a non-finite gradient, unless one was named.
  void mark_non_finite(const Parameter& p);
  // Signals that no closure of this backward pass will read p.value again. Without it, finish_step
  // updates p.
  void weights_free(Parameter& p);
  // Runs the backward pass, with both signals.
  void backward(Tape& tape, const Var& loss) {
    tape.backward(
        loss, [this](Parameter& p) { ready(p); }, [this](Parameter& p) { weights_free(p); });
  }
  // Sets unwritten gradients to zero and logs the names of their parameters, each once. For
  // finish_step, and before gradients are exchanged.
  void zero_missing_gradients();
  // Makes the remaining updates, after backward, when no other thread signals any more. A missing
  // gradient counts as zero, so that weight decay and momentum still apply. Throws InputError
  // without a begin_step since the last one.
  StepReport finish_step();

  // Calls `observer` after each update that a signal has triggered, on the thread that made it.
  void on_update(std::function<void(const Parameter&)> observer) {
    on_update_ = std::move(observer);
  }

  double lr() const { return lr_; }                                       // of the last begin_step
  int64_t steps() const { return counters_.data<int64_t>()[0]; }          // updates applied
  int64_t skipped_steps() const { return counters_.data<int64_t>()[1]; }  // updates skipped
  const UpdateRule& rule() const { return *rule_; }
  // Returns the state for a checkpoint, as views to copy from and into: the rule's tensors, named
  // as in UpdateRule::named_state(), and the counters. Between updates, not between micro-steps.
  std::vector<std::pair<std::string, Tensor>> named_state() const;

 private:
  struct Progress {
    bool ready = false, free = false, updated = false;  // updated: or rejected, in this step
    bool from_residual = false;
  };

  bool last_micro_step() const { return micro_step_ + 1 == options_.accumulate; }
  UpdateInput input(bool from_residual, double clip = 1) const;
  void signal(Parameter& p, const Progress& news);
  void update_rest();
  void update_one(Parameter& p, bool from_residual);
  void count_non_finite(const Parameter& p);
  void finish_deferred(StepReport& report);
  void update_all(double clip);

  ParameterStore& store_;
  std::unique_ptr<UpdateRule> rule_;
  OptimizerOptions options_;
  double averaged_;  // number of gradients in an update's mean: micro-steps times learners
  bool deferred_;
  double lr_ = 0;
  bool begun_ = false;  // begin_step was called after the last finish_step
  int micro_step_ = 0;
  std::mutex mutex_;                      // guards the next three lines
  int64_t updated_ = 0, non_finite_ = 0;  // parameters in this step
  std::string first_non_finite_;
  std::unordered_map<const Parameter*, Progress> progress_;
  std::vector<const Parameter*> in_memory_order_;
  std::set<std::string> named_missing_;
  std::function<void(const Parameter&)> on_update_;
  Tensor counters_;  // i64: steps applied, steps skipped
};

}  // namespace heddle
