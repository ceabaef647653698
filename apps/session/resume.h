// --resume: finds where a run starts, at its first step or at a checkpoint, and whether it is
// already complete.
//
//   const Start start = find_start(o, spec, comm);
//   if (start.checkpoint) restore_training(parts, *start.checkpoint, own, note);
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "apps/checkpoint/checkpoint.h"
#include "apps/cli/common_options.h"
#include "apps/log/summary.h"
#include "apps/session/training_state.h"
#include "comm/communicator.h"

namespace heddle {

struct Start {
  std::optional<Checkpoint> checkpoint = {};
  int64_t batch = 0;  // the next batch of the epoch
  // Updates made beyond those that this run's epochs count: with a different number of learners an
  // epoch has a different number of steps. Steps count on; epochs follow the data seen, as do end
  // and schedule of the run (plan_ahead), unless --steps sets its end.
  int64_t ahead = 0, plan_ahead = 0;
  int64_t step() const { return checkpoint ? checkpoint->step : 0; }
};

// Finds the checkpoint that --resume names; with `auto`, the first step if the run folder has none.
// The first rank reports on stderr which checkpoints were skipped and why. Collective. Throws
// InputError for a rank with other data than the first, for a path without a checkpoint,
// and for one of another run or compression. Until the checkpoint is restored nothing in a run
// folder is changed. Sets spec.plan.compress_start to that of a run that is resumed.
Start find_start(const CommonOptions& o, RunSpec& spec, Communicator& comm);

// A complete run that --resume auto finds: its result, and its lines of metrics on the validation
// and the test set, each null if there is none.
struct FinishedRun {
  TrainingResult result;
  nlohmann::json valid, test;
};
// Returns the run in --output-dir, which only the first rank needs to see, and fills `weights` with
// its own, if it has the same configuration, is complete and has left no checkpoint to resume from;
// reports it on stderr. `best`: its best validation instead of its last. Collective. Throws
// InputError if a rank has other flags than the first.
std::optional<FinishedRun> find_finished(const CommonOptions& o, const std::string& config,
                                         bool best, const NamedTensors& weights,
                                         Communicator& comm);

}  // namespace heddle
