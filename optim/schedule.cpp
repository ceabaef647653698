#include "optim/schedule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "core/error.h"
#include "core/scalar.h"

namespace heddle {
namespace {

constexpr std::array<const char*, 6> kNames{"constant", "step",     "multistep",
                                            "cosine",   "onecycle", "plateau"};

// Interpolates from `begin` at 0 to `end` at 1 along half a cosine.
double anneal(double begin, double end, double part) {
  return end + (begin - end) / 2 * (1 + std::cos(std::numbers::pi * std::clamp(part, 0.0, 1.0)));
}

void check_range(double value, double low, double high, const char* name) {
  check(value >= low && value <= high, name, ": expected a number from ", low, " to ", high,
        ", found ", value);
}

}  // namespace

ScheduleKind parse_schedule_kind(const std::string& text) {
  const auto found = std::find(kNames.begin(), kNames.end(), text);
  check(found != kNames.end(),
        "schedule: expected constant, step, multistep, cosine, onecycle or plateau, found '", text,
        "'");
  return static_cast<ScheduleKind>(found - kNames.begin());
}

Schedule::Schedule(const ScheduleOptions& options) : options_(options) {
  constexpr double kMost = 1e9;
  check_range(options.lr, 0, kMost, "learning rate");
  check(options.total_steps > 0, "schedule: expected at least one step, found ",
        options.total_steps);
  check(options.steps_per_epoch > 0, "schedule: expected at least one step per epoch, found ",
        options.steps_per_epoch);
  check_range(options.warmup_epochs, 0, kMost, "warm-up epochs");
  check_range(options.gamma, 0, 1, "learning rate gamma");
  check_range(options.step_epochs, 1e-15, kMost, "epochs between reductions");
  check_range(options.min_lr, 0, kMost, "lowest learning rate");
  check_range(options.pct_start, 0, 1, "one-cycle: rising part");
  check_range(options.div_factor, 1, kMost, "one-cycle: div_factor");
  check_range(options.final_div_factor, 1, kMost, "one-cycle: final_div_factor");
  check(options.patience >= 0,
        "plateau: expected at least 0 observations without improvement, found ", options.patience);
  check_range(options.threshold, 0, 1, "plateau: threshold");
  for (size_t i = 0; i < options.milestones.size(); ++i)
    check(
        options.milestones[i] >= 0 && (i == 0 || options.milestones[i] > options.milestones[i - 1]),
        "learning rate milestones: expected ascending epochs, found ", options.milestones[i]);
  state_.lr = options.lr;
  const double steps = options.warmup_epochs * to_double(options.steps_per_epoch);
  warmup_steps_ = std::llround(std::min(steps, to_double(options.total_steps)));
}

double Schedule::lr(int64_t step) const {
  if (step >= warmup_steps_) return base(step);
  // If the warm-up leaves no steps for the cycle, it rises to the peak.
  const bool none =
      options_.kind == ScheduleKind::onecycle && warmup_steps_ >= options_.total_steps - 1;
  return (none ? options_.lr : base(warmup_steps_)) * to_double(step + 1) /
         to_double(warmup_steps_ + 1);
}

double Schedule::base(int64_t step) const {
  const double epoch = to_double(step) / to_double(options_.steps_per_epoch);
  switch (options_.kind) {
    case ScheduleKind::constant:
      return options_.lr;
    case ScheduleKind::step:
      return options_.lr *
             std::pow(options_.gamma, std::floor(epoch / options_.step_epochs + 1e-9));
    case ScheduleKind::multistep: {
      const auto& m = options_.milestones;
      const auto passed = std::upper_bound(m.begin(), m.end(), epoch) - m.begin();
      return options_.lr * std::pow(options_.gamma, to_double(passed));
    }
    case ScheduleKind::cosine:
      return anneal(options_.lr, std::min(options_.min_lr, options_.lr),
                    to_double(step - warmup_steps_) /
                        to_double(std::max<int64_t>(options_.total_steps - warmup_steps_, 1)));
    case ScheduleKind::onecycle:
      return onecycle(step);
    case ScheduleKind::plateau:
      return state_.lr;
  }
  return options_.lr;
}

double Schedule::onecycle(int64_t step) const {
  const double length = to_double(options_.total_steps - warmup_steps_);
  const double first = options_.lr / options_.div_factor;
  const double peak = options_.pct_start * length - 1, end = length - 1;
  const double at = std::min(to_double(step - warmup_steps_), end);
  if (at <= peak && peak > 0) return anneal(first, options_.lr, at / peak);
  // If the run is too short for a rise, the rate begins at the peak.
  const double from = std::max(peak, 0.0);
  return anneal(options_.lr, first / options_.final_div_factor,
                end > from ? (at - from) / (end - from) : 1.0);
}

void Schedule::observe(double metric) {
  if (options_.kind != ScheduleKind::plateau) return;
  if (metric < state_.best * (1 - options_.threshold)) {
    state_.best = metric;
    state_.bad = 0;
    return;
  }
  if (++state_.bad <= options_.patience) return;
  state_.bad = 0;
  const double reduced = std::max(state_.lr * options_.gamma, options_.min_lr);
  // Below 1e-8 a change is noise: PyTorch stops there too.
  if (state_.lr - reduced > 1e-8) state_.lr = reduced;
}

}  // namespace heddle
