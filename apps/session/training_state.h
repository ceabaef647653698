// The complete state of a training run in a checkpoint: weights, the optimizer's state, that of
// each rank, the log. A resumed run is bit-identical to an uninterrupted one.
//
//   restore_training(parts, checkpoint, own, note);
//   saver.after_step(step, [&] { return save_training(parts, batch, own); });
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "apps/checkpoint/checkpoint.h"
#include "apps/cli/common_options.h"
#include "apps/log/training_log.h"
#include "apps/session/run_plan.h"
#include "optim/learner_optimizer.h"
#include "optim/schedule.h"

namespace heddle {

// A program's description of its run.
struct RunSpec {
  TrainingLogOptions log = {};           // names, further metrics
  const char* unit = "images";           // of progress, per second
  int64_t units_per_batch = 1;           // samples or tokens over all ranks
  StepPlan plan = {};                    // updates per epoch and in all
  ScheduleOptions schedule = {};         // of the learning rate
  nlohmann::ordered_json identity = {};  // must be equal for a run to resume; compared in order
  std::string config = {};               // config.toml, which a resumed run may change
  // The content of model.safetensors: tensors (tied weights under each of their names), metadata.
  NamedTensors model = {};
  std::map<std::string, std::string> metadata = {};
};

// The parts of a training run on one rank.
struct TrainingParts {
  const CommonOptions& o;
  const RunSpec& spec;
  ParameterStore& store;
  LearnerOptimizer& optimizer;
  Schedule& schedule;
  TrainingLog& log;
  int rank;
};

// The state that a program adds.
struct OwnState {
  NamedTensors rank = {};    // differs between ranks: the state of its network
  NamedTensors shared = {};  // equal on all ranks
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
};

// Returns copies of this rank's files after `batch` batches of an epoch; the first rank's hold what
// all share. Collective. Returns nothing, on all ranks, if the run has diverged, the gradients of
// its last step were skipped, or its weights are not finite.
std::optional<CheckpointFiles> save_training(const TrainingParts& parts, int64_t batch,
                                             const OwnState& own);

// Fills the parts and own.shared, and own.rank if the number of learners is the same. If it is not,
// each learner gets the mean of the residuals, which preserves their contribution to the mean
// gradient, and the averaged statistics. Notes what else has changed; `note` may be empty. Throws
// an InputError that names the first difference in the tensors of the saved run and this one.
void restore_training(const TrainingParts& parts, const Checkpoint& checkpoint, const OwnState& own,
                      const Logger& note);

// Returns whether a checkpoint has an OwnState's shared tensors.
bool has_shared(const Checkpoint& checkpoint);

// Returns the json of the OwnState that a checkpoint was saved with. Throws InputError unless
// its "valid_loss" is a number and so is each of `keys`, or "valid_loss" is null, as before the
// first validation.
nlohmann::json own_json(const Checkpoint& checkpoint, std::initializer_list<const char*> keys);

}  // namespace heddle
