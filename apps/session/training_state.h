// What both programs save in a checkpoint and restore from it: weights, the optimizer's state, what
// each rank has for itself, the books of the run.
//
//   const Start start = find_start(o, plan, units, identity, comm);
//   restore_training(parts, start, own);
//   saver.after_step(step, [&] { return save_training(parts, batch, own); });
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/checkpoint/checkpoint.h"
#include "apps/cli/common_options.h"
#include "apps/log/training_log.h"
#include "apps/session/run_plan.h"
#include "optim/data_parallel.h"
#include "optim/schedule.h"

namespace heddle {

// Where a run begins: at the first step, or at a checkpoint.
struct Start {
  // What must be equal in the run that goes on: program, network, data. In order, for messages.
  nlohmann::ordered_json identity;
  std::optional<Checkpoint> checkpoint = {};
  int64_t batch = 0;  // of the epoch
  // Updates that were made beyond those that this run's plan counts: with another number of
  // learners an epoch has other steps. The steps of a run are counted on, its plan goes by what was
  // seen.
  int64_t ahead = 0;
  int64_t step() const { return checkpoint ? checkpoint->step : 0; }
};

// What --resume asks for; with `auto`, the beginning where the run folder holds no checkpoint.
// `units`: images or tokens of a batch over all ranks. Says on stderr, on the first rank, which
// checkpoints were passed over and why. Collective. Throws InputError for a path without one, and
// for a checkpoint of another run or compression, before anything in a run folder is touched.
Start find_start(const CommonOptions& o, const StepPlan& plan, int64_t units,
                 const nlohmann::ordered_json& identity, Communicator& comm);

// What --resume auto finds of a run with this configuration that is complete and has left no
// checkpoint to go on from: its result, and the last lines of its metrics on the validation and the
// test set (of the validation the best, where asked for), null without. Collective; says so on
// stderr. Nothing for any other folder.
struct FinishedRun {
  TrainingResult result;
  nlohmann::json valid, test;
  // NaN without.
  static double number(const nlohmann::json& line, const char* key);
};
std::optional<FinishedRun> find_finished(const CommonOptions& o, const std::string& config,
                                         bool best, Communicator& comm);

struct TrainingParts {
  const CommonOptions& o;
  ParameterStore& store;
  DataParallelOptimizer& optimizer;
  Schedule& schedule;
  TrainingLog& log;
  int rank;
  int64_t units;                    // of a batch over all ranks
  nlohmann::ordered_json identity;  // as in Start
  std::string config;               // of which may differ what a user may change; as config.toml
  // Of model.safetensors: names (the store's and for tied weights more) and metadata.
  std::vector<std::pair<std::string, Tensor>> model;
  std::map<std::string, std::string> metadata;
};

// What a program adds.
struct OwnState {
  std::vector<std::pair<std::string, Tensor>> rank = {};    // of each rank: its network's state
  std::vector<std::pair<std::string, Tensor>> shared = {};  // equal on all
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
};

// This rank's files behind batch `batch` of an epoch; the first rank's hold what all share.
// Collective. Nothing, on all ranks, where the run has diverged, the gradients of its last step
// were refused, or its weights are not finite.
std::optional<CheckpointFiles> save_training(const TrainingParts& parts, int64_t batch,
                                             const OwnState& own);

// Fills the parts and own.shared, and own.rank unless the number of learners has changed. Then each
// gets the mean of the residuals, so that what is still owed to the mean gradient is what it was,
// and the averaged statistics. Notes what else has changed. Throws InputError that names the first
// difference in their tensors between the run that was saved and this one.
void restore_training(const TrainingParts& parts, const Checkpoint& checkpoint, const OwnState& own,
                      const std::function<void(const std::string&)>& note);

}  // namespace heddle
