// When checkpoints are saved, and how the ranks agree that one is whole: each says in the control
// words of its gradients (DataParallelOptimizer::set_control) whether its files are written, so
// that no step waits for a disk, and whether a signal has come, so that all end after the same
// step.
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
#include "optim/data_parallel.h"

namespace heddle {

struct SaverOptions {
  // The run folder, which all ranks must see. The first rank tells it to the others.
  std::string folder;
  int rank = 0;
  int64_t steps_per_epoch = 1;
  const Checkpoint* start = nullptr;  // from which the run resumes
  int64_t ahead = 0;                  // as in Start: epochs end at this many steps more
};

// Told what is written, as CheckpointWriterOptions::on_event. Only a test's program defines it
// (tests/save_hook.cpp).
[[gnu::weak]] std::function<void(const std::string&)> save_hook();

class Saver {
 public:
  // Collective. `note` gets lines for people; may be empty. Throws InputError where a rank does not
  // see what the first writes into the folder.
  Saver(const CommonOptions& o, const SaverOptions& options, DataParallelOptimizer& optimizer,
        std::function<void(const std::string&)> note);

  // After each update and before the next begins, on all ranks. `files` copies what this rank has
  // to save, or returns nothing, on all ranks, where the state must not be saved; it may
  // communicate. The save is then made after the next step whose state is valid.
  // Returns false when a signal has asked the run to end: then everything is on disk. Throws Error
  // when saving has failed three times in a row, and when it has failed at a signal.
  bool after_step(int64_t step, const std::function<std::optional<CheckpointFiles>()>& files);
  // Waits until everything is on disk under its name. On all ranks.
  void finish();
  // Returns the newest checkpoint that this run has completed, or has resumed from; empty: none.
  const std::string& last() const { return last_; }

 private:
  // Sums over the ranks, of those whose files are written and of those that could not write them.
  void conclude(double written, double failed);
  std::string causes() const;
  void end_saving();
  void fail(const std::string& why);

  DataParallelOptimizer& optimizer_;
  std::function<void(const std::string&)> note_;
  int64_t every_, ahead_;
  int failures_ = 0;                   // in a row
  bool due_ = false;                   // a save, which was not fit when its step came
  int64_t sealing_ = -1;               // the step whose checkpoint is being sealed
  std::string folder_, again_, last_;  // again_: the flag that resumes the run
  std::string why_;                    // the last save has failed
  std::unique_ptr<CheckpointWriter> writer_;
};

}  // namespace heddle
