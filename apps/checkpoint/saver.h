// Decides when checkpoints are saved, and lets the ranks agree that one is complete: each reports
// in the control words of its gradients (LearnerOptimizer::set_control) whether its files are
// written, so that no step waits for a disk, and whether it has received a signal, so that all end
// after the same step.
//
//   Saver saver(o, {.folder = run_folder, .rank = rank, .steps_per_epoch = 400}, optimizer, note);
//   if (!saver.after_step(step, [&] { return my_files(); })) return;   // saved; exit code 75
//   saver.finish();
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "apps/checkpoint/checkpoint.h"
#include "apps/cli/common_options.h"
#include "optim/learner_optimizer.h"

namespace heddle {

struct SaverOptions {
  std::string folder;  // the first rank's run folder; all ranks must see it
  int rank = 0;
  int64_t steps_per_epoch = 1;
  const Checkpoint* start = nullptr;  // the one that the run resumes from
  int64_t ahead = 0;                  // as in Start: epochs end this many steps later
};

// Returns CheckpointWriterOptions::on_event. Only a test's program defines it
// (tests/save_hook.cpp).
[[gnu::weak]] std::function<void(const std::string&)> save_hook();

class Saver {
 public:
  // Collective. `note` gets lines for people; may be empty. Throws InputError if a rank does not
  // see what the first rank writes into the folder.
  Saver(const CommonOptions& o, const SaverOptions& options, LearnerOptimizer& optimizer,
        std::function<void(const std::string&)> note);

  // Called on all ranks after each update and before the next one begins. `files` copies what this
  // rank has to save, or returns nothing, on all ranks, if the state must not be saved; it may
  // communicate. The save is then made after the next step whose state is valid.
  // Returns false if a signal has asked the run to end: then everything is on disk. Throws Error if
  // saving has failed three times in a row, or once after a signal.
  bool after_step(int64_t step, const std::function<std::optional<CheckpointFiles>()>& files);
  // Waits until everything is on disk under its name. Called on all ranks.
  void finish();
  // Returns the newest checkpoint that this run has completed or resumed from; empty: none.
  const std::string& last() const { return last_; }

 private:
  // Commits or abandons the checkpoint: `written` ranks have written their files, `failed` could
  // not.
  void conclude(double written, double failed);
  std::string causes() const;
  void end_saving();
  void fail(const std::string& why);

  LearnerOptimizer& optimizer_;
  std::function<void(const std::string&)> note_;
  int64_t every_, ahead_;
  int failures_ = 0;                   // in a row
  bool due_ = false;                   // a save was postponed, as its step was not valid
  int64_t sealing_ = -1;               // the step whose checkpoint is being sealed
  std::string folder_, again_, last_;  // again_: the flags that resume the run
  std::string why_;                    // why the last save failed
  std::unique_ptr<CheckpointWriter> writer_;
};

}  // namespace heddle
