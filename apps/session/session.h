// The frame of a training program: everything around its inner loop, the same for every model. A
// program reads its options and data, then starts its learners:
//
//   return start_learners(o, [&](Communicator& started) {      // once per rank
//     Learner learner(o, started);                             // context, communicator, weights
//     ... the network in learner.store, --dry-run, --headroom ...
//     Session session(o, arguments, learner, spec);            // --resume, run folder, optimizer
//     session.run(loop);                                       // epochs, validation, checkpoints
//     Outcome out = session.finish();                          // trace, report.html
//     return report(o, spec.log.rate_key, learner, out);       // final JSON, exit code
//   });
//
// Its TrainingLoop holds the inner loop, from batch to finish_step(). A session belongs to one rank
// and is used by that rank's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/checkpoint/saver.h"
#include "apps/cli/common_options.h"
#include "apps/log/training_log.h"
#include "apps/session/learners.h"
#include "apps/session/open_run.h"
#include "apps/session/resume.h"
#include "apps/session/run_plan.h"
#include "apps/session/training_state.h"
#include "core/parameters.h"
#include "core/step_graph.h"
#include "optim/learner_optimizer.h"
#include "optim/schedule.h"

namespace heddle {

class Session;

// A program's part of a training run. The session calls it on every rank.
class TrainingLoop {
 public:
  explicit TrainingLoop(Session& session);
  TrainingLoop(const TrainingLoop&) = delete;
  TrainingLoop& operator=(const TrainingLoop&) = delete;
  virtual ~TrainingLoop() = default;
  // Trains from batch session.batch() of epoch session.log().epoch() until session.finish_step()
  // or session.log().check_loss() returns false.
  virtual void train_epoch() = 0;
  // Evaluates and calls session.log().evaluated(); returns the loss that the schedule observes.
  virtual double validate() = 0;
  // Returns what a checkpoint adds; its tensors are also those that a resumed run fills.
  virtual OwnState own_state() const = 0;

 protected:
  Session& session_;
  TrainingLog& log_;
  LearnerOptimizer& optimizer_;
  // For Tape::backward(): a gradient is complete, so it is exchanged; a weight is no longer read,
  // so it is updated once the exchange is done.
  const std::function<void(Parameter&)> ready_, weights_free_;
};

// The outcome of a program on one rank.
struct Outcome {
  TrainingResult run = {};
  std::string run_folder = {};             // empty: nothing was trained, or not the first rank
  nlohmann::ordered_json results = {};     // the program's keys of the final JSON object
  nlohmann::ordered_json appended = {};    // keys that end it
  std::string text = {};                   // the results in words; empty: not evaluated
  std::unique_ptr<RunFolder> folder = {};  // holds the folder's lock
};

class Session {
 public:
  // Finds where the run starts, opens its folder on the first rank and makes everything that
  // trains. Collective. Options and learner must outlive the session. Throws InputError for an
  // impossible --resume, and for a run folder that holds something else.
  Session(const CommonOptions& o, const std::vector<std::string>& arguments, Learner& learner,
          RunSpec spec);

  const Checkpoint* checkpoint() const { return start_.checkpoint ? &*start_.checkpoint : nullptr; }
  RunFolder* folder() const { return files_.folder.get(); }  // null on all ranks but the first
  TrainingLog& log() { return log_; }
  LearnerOptimizer& optimizer() { return *optimizer_; }
  // Returns own_json() of the checkpoint, or {"valid_loss": null} if another run saved it.
  nlohmann::json own_json(std::initializer_list<const char*> keys) const;
  StepGraph* graph() { return graph_.get(); }  // null: steps are not recorded as CUDA graphs

  // Returns the next batch of the epoch; finish_step() advances it by --accumulate.
  int64_t batch() const { return batch_; }
  // Returns the learning rate of the next update, or of the one `ago` updates earlier.
  double lr(int64_t ago = 0) const { return schedule_.lr(log_.step() - start_.plan_ahead - ago); }

  // Restores the checkpoint, if any, then trains, validates and saves until the plan is done, a
  // signal stops the run or it diverges. Collective. Throws Error if checkpoints cannot be saved.
  void run(TrainingLoop& loop);
  // Called by the loop after each update: writes its metrics and saves a checkpoint if one is due.
  // Returns false at the end of the epoch or run.
  bool finish_step(const StepReport& report, const StepFacts& facts);
  // Has the first rank save the weights, in the file that `save` gets, while the others wait for as
  // long as that takes. Collective.
  void save_weights(const std::function<void(const std::string&)>& save);
  // Ends the session, after the weights were saved and tested: writes trace and report.html.
  // Collective.
  Outcome finish();

 private:
  bool plan_done() const {
    return log_.step() >= spec_.plan.total_steps + start_.plan_ahead || budget_spent();
  }
  bool budget_spent() const;  // of --dp-epsilon-max
  void train();
  void account();
  void end_epoch();
  bool after_step();
  void write_report();
  Progress* progress() const { return files_.progress.get(); }  // null where folder() is

  const CommonOptions& o_;
  Learner& learner_;
  RunSpec spec_;
  const Start start_;
  RunFiles files_;
  // Discards the new folder of a run that was refused before it had logged anything, or it would
  // refuse the next try, with the right flags.
  struct Undo {
    RunFolder* folder;
    ~Undo() {
      if (folder != nullptr) folder->discard();
    }
  } undo_;
  TrainingLoop* loop_ = nullptr;
  int64_t batch_;
  Schedule schedule_;
  std::unique_ptr<LearnerOptimizer> optimizer_;
  std::unique_ptr<StepGraph> graph_;
  TrainingLog log_;
  std::optional<Saver> saver_;  // from run() on
  TrainingParts parts_;
};

// Prints the result on the first rank, for people on stderr and with --json as the last line of
// stdout. Returns the rank's exit code.
int report(const CommonOptions& o, const std::string& rate_key, const Learner& learner,
           const Outcome& out);

}  // namespace heddle
