// Derives the parts of a training run of any model from the common options: number of steps,
// schedule, recorded steps, and the texts of --dry-run and of the run's first line. Checks that
// options fit each other and this machine.
//
//   check_options(o);
//   const int learners = check_machine(o);
#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <string>

#include "apps/cli/common_options.h"
#include "apps/log/progress.h"
#include "apps/log/run_folder.h"
#include "comm/communicator.h"
#include "core/context.h"
#include "core/parameters.h"
#include "core/step_graph.h"
#include "core/tape.h"
#include "optim/schedule.h"

namespace heddle {

// Receives what a learner reports; null and empty on all ranks but the first.
struct RunOutput {
  const RunFolder* folder = nullptr;
  Logger log = {};
};

// Throws InputError for options of the exchange that contradict each other.
void check_options(const CommonOptions& o);
// Checks what depends on this machine and build: learners, --device, --precision, --graph. Returns
// the number of learners. Throws InputError.
int check_machine(const CommonOptions& o);

// Returns the type of activations.
DType activation_type(const CommonOptions& o);

// Updates, not batches: --accumulate batches make one update.
struct StepPlan {
  int64_t steps_per_epoch = 0, total_steps = 0;
  int64_t compress_start = -1;  // of the run that is resumed
  // With --compress topagg: votes of a learner in a step, or those expected; and the units.
  double voters = 1;
  int64_t units = 0;
};
// `what` describes a batch, "batches of 4 images", for the InputError if an epoch has fewer than
// --accumulate of them.
StepPlan plan_updates(const CommonOptions& o, int64_t batches_per_epoch, const std::string& what);
ScheduleOptions schedule_options(const CommonOptions& o, const StepPlan& plan);

// Returns the recorder of a learner's steps as CUDA graphs; null without a GPU or if --graph or
// another option excludes it. `log` gets a line if recording fails; with --graph on, that throws
// Error.
std::unique_ptr<StepGraph> make_step_graph(const CommonOptions& o, ParameterStore& store,
                                           int learners, const Logger& log);

// Returns "0.27 M parameters".
std::string describe_size(const ParameterStore& store);
// Returns " | 4 learners (threads), cpu, 2 threads, fp32, seed 1": the end of a run's first line.
std::string describe_machine_use(const CommonOptions& o, const ParameterStore& store,
                                 const Communicator& comm);

// Runs forward and backward once and returns the peak of the pool during it, in bytes, without the
// optimizer's state. `forward` returns the loss.
int64_t measure_step_bytes(Context& context, ParameterStore& store,
                           const std::function<Var(Tape&)>& forward);

// Describes a model's step for --dry-run. A row is a part of a batch of --batch-size rows: an
// image, or a column of tokens.
struct RunPlan {
  StepPlan steps;
  std::string model;       // the JSON key of the network, and
  std::string model_name;  // its value
  std::string unit;        // "image", "token"
  int64_t units_per_row = 1;
  int64_t rows = 1;                                         // the fewest to measure
  int64_t most_rows = std::numeric_limits<int64_t>::max();  // that a learner's data have
  std::function<int64_t(int64_t rows)> step_bytes = {};     // as measure_step_bytes()
};
// Returns the text of --dry-run, or one JSON object with --json. Memory is measured with `rows` and
// `rows` + 2 rows and extrapolated to the batch.
std::string format_plan(const CommonOptions& o, const ParameterStore& store, const RunPlan& plan);

// Returns the resolved configuration as TOML, with a remark on each default: `rule` names the rule
// that set it.
std::string format_config(const std::string& program, const std::string& rule,
                          const FlagTable& flags);

}  // namespace heddle
