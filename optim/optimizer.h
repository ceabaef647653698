// Optimizer: turns final gradients into new weights while backward is still running.
// A parameter's update waits for two signals: ready (its gradient is final) and weights_free (the
// last closure that reads its value has returned). Clipping by the global norm and skipping whole
// steps need all gradients first: then everything happens in finish_step. Both ways give the same
// bits. ready, reject, mark_non_finite and weights_free may come from several threads; an update
// runs on the thread that brought the second signal, and two updates may run at once.
//
//   optimizer.begin_step(schedule.lr(step));
//   tape.backward(loss, [&](Parameter& p) { optimizer.ready(p); },
//                 [&](Parameter& p) { optimizer.weights_free(p); });
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
#include "optim/update_rule.h"

namespace heddle {

// What happens when a gradient holds NaN or Inf. bucket: what is finite is applied, parameter by
// parameter in one process. step: nothing of the step is applied.
enum class OnNonfinite : uint8_t { bucket, step };

struct OptimizerOptions {
  int accumulate = 1;         // micro-steps (begin, backward, finish) per update; their mean counts
  int learners = 1;           // ranks whose gradients are added up in the buffer; their mean counts
  double clip_grad_norm = 0;  // largest global norm of the mean gradient; 0: no clipping
  OnNonfinite on_nonfinite = OnNonfinite::bucket;
  std::function<void(const std::string&)> log = {};  // gets one line of text; may be empty
};

struct StepReport {
  bool due = false;                // false: a micro-step, more gradients are to come
  bool skipped = false;            // nothing was applied: the gradients were not finite
  int64_t skipped_parameters = 0;  // those with a gradient that is not finite, where known
  std::string first_skipped;       // of these the one that backward, or an exchange, came to first
  // Global norm of the mean gradient before clipping; NaN where updates did not wait for it.
  double grad_norm = std::numeric_limits<double>::quiet_NaN();
  double clip = 1;  // what it was scaled by
};

class Optimizer {
 public:
  // The store must be finalized and outlive the optimizer. Throws InputError for bad options.
  Optimizer(ParameterStore& store, std::unique_ptr<UpdateRule> rule,
            const OptimizerOptions& options = {});

  // Forgets the gradients, unless micro-steps are being added up. Throws InputError for a rate that
  // is negative or not finite.
  void begin_step(double lr);
  // p.grad is final for this backward pass. `from_residual`: see UpdateInput.
  void ready(Parameter& p, bool from_residual = false);
  // p.grad must not be applied in this step: some rank's gradient was non-finite.
  void reject(Parameter& p);
  // Names p in this step's report as the first with a non-finite gradient, unless one was named.
  void mark_non_finite(const Parameter& p);
  // No closure of this backward pass will read p.value again. Where it is not called, finish_step
  // updates p.
  void weights_free(Parameter& p);
  // Sets gradients that nobody has written to zero and names their parameters in the log, each
  // once. For finish_step, and before gradients are exchanged.
  void zero_missing_gradients();
  // Updates what is left. Parameters without a gradient get zero (weight decay and momentum still
  // apply) and are named once in the log.
  StepReport finish_step();

  // Calls `observer` after each update that a signal has set off, on the thread that made it.
  void on_update(std::function<void(const Parameter&)> observer) {
    on_update_ = std::move(observer);
  }

  double lr() const { return lr_; }                                       // of the last begin_step
  int64_t steps() const { return counters_.data<int64_t>()[0]; }          // applied
  int64_t skipped_steps() const { return counters_.data<int64_t>()[1]; }  // not applied
  const UpdateRule& rule() const { return *rule_; }
  // Everything that a checkpoint keeps, as views to copy from and into: the rule's state and the
  // counters. Only between updates, not between micro-steps.
  std::vector<std::pair<std::string, Tensor>> named_state() const;

 private:
  struct Progress {
    bool ready = false, free = false, updated = false;  // updated: or left alone, for this step
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
  double averaged_;  // gradients whose mean an update takes: micro-steps times learners
  bool deferred_;
  double lr_ = 0;
  int micro_step_ = 0;
  std::mutex mutex_;                      // of the next three lines
  int64_t updated_ = 0, non_finite_ = 0;  // parameters in this step
  std::string first_non_finite_;
  std::unordered_map<const Parameter*, Progress> progress_;
  std::vector<const Parameter*> in_memory_order_;
  std::set<std::string> named_missing_;
  std::function<void(const Parameter&)> on_update_;
  Tensor counters_;  // i64: steps applied, steps skipped
};

}  // namespace heddle
