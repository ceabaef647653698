// Learning-rate schedules, evaluated per step: a pure function of the step, except for plateau,
// which follows a metric. Every kind can begin with a linear warm-up of W steps (Goyal et al. 2017)
// towards the rate that the schedule has at step W; cosine and one-cycle use the remaining steps.
//
//   Schedule schedule({.kind = ScheduleKind::onecycle, .lr = 0.4, .total_steps = 9384,
//                      .steps_per_epoch = 391});
//   optimizer.begin_step(schedule.lr(step));
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace heddle {

enum class ScheduleKind : uint8_t { constant, step, multistep, cosine, onecycle, plateau };

// Returns the kind called "constant", "step", ... Throws InputError for any other text.
ScheduleKind parse_schedule_kind(const std::string& text);

struct ScheduleOptions {
  ScheduleKind kind = ScheduleKind::constant;
  double lr = 0.1;  // the highest learning rate
  int64_t total_steps = 1;
  int64_t steps_per_epoch = 1;
  double warmup_epochs = 0;
  double gamma = 0.1;                   // step, multistep, plateau: the factor of each reduction
  double step_epochs = 30;              // step: epochs between reductions
  std::vector<double> milestones = {};  // multistep: epochs of the reductions, ascending
  double min_lr = 0;                    // cosine, plateau: the lowest rate
  double pct_start = 0.3;               // onecycle: fraction of the steps in which the rate rises
  double div_factor = 25;               // onecycle: first rate = lr / div_factor
  double final_div_factor = 1e4;        // onecycle: last rate = first rate / final_div_factor
  int patience = 10;        // plateau: observations without improvement before a reduction
  double threshold = 1e-4;  // plateau: relative decrease that counts as an improvement
};

// The state for a checkpoint.
struct ScheduleState {
  double lr = 0;  // plateau: the current rate
  double best = std::numeric_limits<double>::infinity();
  int64_t bad = 0;  // observations since the best one or the last reduction
};

class Schedule {
 public:
  // Throws InputError for options out of range.
  explicit Schedule(const ScheduleOptions& options);

  // Returns the learning rate of step 0, 1, ...; after total_steps, cosine and one-cycle stay.
  // Formulas as in torch.optim.lr_scheduler: StepLR, MultiStepLR, CosineAnnealingLR (Loshchilov and
  // Hutter 2017, per step, not per epoch), OneCycleLR (Smith and Topin 2018), ReduceLROnPlateau.
  double lr(int64_t step) const;

  // Reports a metric, once per epoch, lower being better; only plateau uses it. NaN counts as
  // no improvement.
  void observe(double metric);

  const ScheduleState& state() const { return state_; }
  void restore(const ScheduleState& state) { state_ = state; }

 private:
  double base(int64_t step) const;  // without warm-up
  double onecycle(int64_t step) const;

  ScheduleOptions options_;
  ScheduleState state_;
  int64_t warmup_steps_ = 0;
};

}  // namespace heddle
