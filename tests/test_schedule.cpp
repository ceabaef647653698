// Learning-rate schedules. Expected numbers: torch.optim.lr_scheduler of torch 1.13.1.
#include "optim/schedule.h"

#include <doctest/doctest.h>

#include <cmath>

#include "core/error.h"

using namespace heddle;

namespace {

void check_rates(const ScheduleOptions& options, const std::vector<double>& expected) {
  const Schedule schedule(options);
  CAPTURE(static_cast<int>(options.kind));
  for (size_t i = 0; i < expected.size(); ++i) {
    CAPTURE(i);
    CHECK(schedule.lr(static_cast<int64_t>(i)) == doctest::Approx(expected[i]).epsilon(1e-8));
  }
}

}  // namespace

TEST_CASE("schedules: rates match PyTorch") {
  check_rates({.kind = ScheduleKind::onecycle, .lr = 0.4, .total_steps = 10},
              {0.016, 0.208, 0.4, 0.380193853, 0.324698262, 0.244504809, 0.155496791, 0.0753033384,
               0.0198077472, 1.6e-06});
  check_rates({.kind = ScheduleKind::cosine, .lr = 0.4, .total_steps = 6, .min_lr = 0.1},
              {0.4, 0.379903811, 0.325, 0.25, 0.175, 0.120096189});
  check_rates({.kind = ScheduleKind::multistep, .lr = 0.4, .milestones = {2, 5}},
              {0.4, 0.4, 0.04, 0.04, 0.04, 0.004, 0.004});
  check_rates({.kind = ScheduleKind::step, .lr = 0.4, .gamma = 0.5, .step_epochs = 3},
              {0.4, 0.4, 0.4, 0.2, 0.2, 0.2, 0.1, 0.1});
  check_rates({.lr = 0.4}, {0.4, 0.4, 0.4});
}

TEST_CASE("schedules: plateau watches a metric, and its state can be restored") {
  const ScheduleOptions options{
      .kind = ScheduleKind::plateau, .lr = 0.4, .min_lr = 0.01, .patience = 2};
  const std::vector<double> metrics{1.0, 0.9, 0.95, 0.96, 0.97, 0.89999, 0.9, 0.9, 0.5, 0.5, 0.5};
  const std::vector<double> expected{0.4,  0.4,  0.4,  0.4,  0.4,  0.04,
                                     0.04, 0.04, 0.01, 0.01, 0.01, 0.01};
  Schedule schedule(options);
  for (size_t i = 0; i < expected.size(); ++i) {
    CHECK(schedule.lr(static_cast<int64_t>(i)) == doctest::Approx(expected[i]).epsilon(1e-12));
    if (i == metrics.size()) break;
    Schedule restored(options);
    restored.restore(schedule.state());
    restored.observe(metrics[i]);
    schedule = restored;
  }
  for (int i = 0; i < 3; ++i) schedule.observe(NAN);
  CHECK(schedule.state().bad > 0);
  Schedule constant({.lr = 0.4});
  for (int i = 0; i < 30; ++i) constant.observe(1);
  CHECK(constant.lr(5) == 0.4);
}

TEST_CASE("schedules: epochs are counted in steps") {
  const Schedule schedule({.kind = ScheduleKind::multistep,
                           .lr = 1,
                           .total_steps = 40,
                           .steps_per_epoch = 10,
                           .milestones = {1, 2.5}});
  CHECK(schedule.lr(9) == 1);
  CHECK(schedule.lr(10) == doctest::Approx(0.1));
  CHECK(schedule.lr(24) == doctest::Approx(0.1));
  CHECK(schedule.lr(25) == doctest::Approx(0.01));
}

TEST_CASE("schedules: drops after parts of an epoch come at the right step") {
  const Schedule schedule({.kind = ScheduleKind::step,
                           .lr = 1,
                           .steps_per_epoch = 10,
                           .gamma = 0.5,
                           .step_epochs = 0.1});
  for (int64_t step = 0; step < 30; ++step)
    CHECK(schedule.lr(step) == doctest::Approx(std::pow(0.5, step)));
}

TEST_CASE("schedules: linear warm-up with every kind") {
  for (const ScheduleKind kind :
       {ScheduleKind::constant, ScheduleKind::step, ScheduleKind::multistep, ScheduleKind::cosine,
        ScheduleKind::onecycle, ScheduleKind::plateau}) {
    const Schedule schedule({.kind = kind,
                             .lr = 0.5,
                             .total_steps = 100,
                             .steps_per_epoch = 10,
                             .warmup_epochs = 0.4,
                             .milestones = {5}});
    const double top = schedule.lr(4);
    CHECK(top == doctest::Approx(kind == ScheduleKind::onecycle ? 0.02 : 0.5));
    for (int64_t step = 0; step < 4; ++step)
      CHECK(schedule.lr(step) == doctest::Approx(top * static_cast<double>(step + 1) / 5));
    if (kind == ScheduleKind::cosine) CHECK(schedule.lr(100) == doctest::Approx(0));
  }
}

TEST_CASE("schedules: short runs and steps after the end give sensible rates") {
  for (const ScheduleKind kind : {ScheduleKind::cosine, ScheduleKind::onecycle})
    for (int64_t total = 1; total <= 12; ++total)
      for (const double warmup : {0.0, 1.0, 3.0, 50.0}) {
        const Schedule schedule(
            {.kind = kind, .lr = 0.4, .total_steps = total, .warmup_epochs = warmup});
        for (int64_t step = 0; step < total + 5; ++step) {
          const double rate = schedule.lr(step);
          CHECK((rate >= 0 && rate <= 0.4 + 1e-12));
        }
        CHECK(schedule.lr(total + 5) <= 0.4 / 25);
      }
}

TEST_CASE("schedules: a warm-up as long as the run rises to the peak") {
  for (const double warmup : {11.0, 12.0, 50.0}) {
    const Schedule schedule(
        {.kind = ScheduleKind::onecycle, .lr = 0.4, .total_steps = 12, .warmup_epochs = warmup});
    CHECK(schedule.lr(10) == doctest::Approx(0.4 * 11 / (warmup > 11 ? 13 : 12)));
  }
}

TEST_CASE("schedules: invalid options are refused") {
  CHECK(parse_schedule_kind("onecycle") == ScheduleKind::onecycle);
  CHECK_THROWS_AS(parse_schedule_kind("linear"), InputError);
  CHECK_THROWS_AS(Schedule({.lr = NAN}), InputError);
  CHECK_THROWS_AS(Schedule({.lr = -1}), InputError);
  CHECK_THROWS_AS(Schedule({.total_steps = 0}), InputError);
  CHECK_THROWS_AS(Schedule({.milestones = {5, 2}}), InputError);
  CHECK_THROWS_AS(Schedule({.milestones = {NAN}}), InputError);
  CHECK_THROWS_AS(Schedule({.pct_start = 2}), InputError);
}
