// From the common options to the things that a training run is made of, whatever it trains: update
// rule, schedule, optimizer options, the number of steps, and what --dry-run says of them.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "apps/cli/common_options.h"
#include "apps/log/progress.h"
#include "apps/log/run_folder.h"
#include "core/parameters.h"
#include "core/step_graph.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
#include "optim/update_rule.h"

namespace heddle {

// Where a learner reports: null and empty on all ranks but the first.
struct RunOutput {
  const RunFolder* folder = nullptr;
  Logger log = {};
};

std::unique_ptr<UpdateRule> make_rule(const CommonOptions& o);
ScheduleOptions schedule_options(const CommonOptions& o, int64_t total_steps,
                                 int64_t steps_per_epoch);
OptimizerOptions optimizer_options(const CommonOptions& o, const Logger& log);
// Returns the type of activations.
DType activation_type(const CommonOptions& o);

// Updates, not batches: --accumulate batches make one.
struct StepPlan {
  int64_t steps_per_epoch = 0, total_steps = 0;
};
// `what` a batch is, for the InputError when an epoch has fewer than --accumulate: "batches of 4
// images".
StepPlan plan_updates(const CommonOptions& o, int64_t batches_per_epoch, const std::string& what);

// Throws InputError for a --device that is not there, and for a --precision that it does not have.
void check_device(const CommonOptions& o);

// Throws InputError where steps are to be recorded (--graph on) and cannot be.
void check_graph(const CommonOptions& o);
// Records the steps of a learner on a GPU, as --graph says; null where they are not to be recorded.
// log gets a line should recording fail.
std::unique_ptr<StepGraph> make_step_graph(const CommonOptions& o, ParameterStore& store,
                                           int learners, const Logger& log);

// "cpu, 2 threads, fp32, seed 1": the end of the first line of every run.
std::string describe_machine_use(const CommonOptions& o, const ParameterStore& store);

// The findings of --dry-run.
struct RunPlan {
  StepPlan steps;
  std::string model;       // the JSON key of the network, and
  std::string model_name;  // its value
  std::string unit;        // of what a step works on: "image", "token"
  int64_t units_per_batch = 0;
  int64_t activation_bytes = 0;  // of one batch
  int64_t peak_bytes = 0;        // of the pool, without the optimizer's state
};
// Its text, or one JSON object with --json.
std::string format_plan(const CommonOptions& o, const ParameterStore& store, const RunPlan& plan);

// The resolved configuration as TOML, with a remark on each default: `rule` says what it is for.
std::string format_config(const std::string& program, const std::string& rule,
                          const FlagTable& flags);

}  // namespace heddle
