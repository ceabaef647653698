// Bookkeeping of a training run, for any model: counts steps, averages losses over the ranks,
// writes metrics.jsonl, shows progress, traces the requested steps and declares divergence. The
// inner loop stays with the program.
//
//   TrainingLog log({.program = "train_lm", .rate_key = "tokens_per_s"}, o, store, optimizer,
//                   folder, progress);
//   ... backward, optimizer.finish_step() ...
//   if (!log.finish_step(report, {.loss = loss, .lr = lr, .units = n, .times = t})) return;
//
// All ranks make the same calls, each on the thread that computes. Context, options, store,
// optimizer, folder and progress must outlive the log.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/cli/common_options.h"
#include "apps/log/progress.h"
#include "apps/log/quality_report.h"
#include "apps/log/run_folder.h"
#include "apps/log/step_facts.h"
#include "apps/log/summary.h"
#include "core/safetensors.h"
#include "optim/learner_optimizer.h"

namespace heddle {

struct TrainingLogOptions {
  std::string program;
  std::string rate_key;  // "samples_per_s", "tokens_per_s"
  // Returns further metrics of a step, computed from its mean loss over the ranks.
  std::function<nlohmann::ordered_json(double loss)> metrics = {};
};

class TrainingLog {
 public:
  // `folder` and `progress` are null on all ranks but the first. Losses of several ranks are
  // averaged in one collective for many steps: --print-freq of them, or those of a few seconds.
  TrainingLog(const TrainingLogOptions& options, const CommonOptions& o,
              const ParameterStore& store, LearnerOptimizer& optimizer, RunFolder* folder,
              Progress* progress);

  const TrainingResult& result() const { return result_; }
  int64_t step() const { return result_.step; }
  int64_t epoch() const { return result_.epoch; }
  bool running() const { return result_.status == "done"; }  // neither diverged nor stopped
  // Returns the number of consecutive steps, up to the last one, whose gradients were not finite;
  // the same on all ranks.
  int64_t skipped_steps() const { return skipped_; }

  // Records p.grad for --dump-gradients. Call it before optimizer.ready(p): the gradient of this
  // batch is complete then, and not yet exchanged.
  void record_gradient(const Parameter& p);
  // Records an update. Returns false and marks the run as diverged after more than --max-skipped
  // consecutive steps whose gradients were not finite.
  bool finish_step(const StepReport& report, const StepFacts& facts);
  // Returns false and marks the run as diverged for a loss that is not finite or above --max-loss.
  // Several ranks check when losses are averaged, so that all of them stop together.
  bool check_loss(double loss, double lr);
  // Ends the epoch; result().train_loss is its mean loss from then on.
  void finish_epoch();
  // Ends the run: final totals and ratios, the ledger as a line of metrics, and as a table with
  // --ledger. `last_checkpoint` (empty: none) is named if the run has diverged.
  void finish(const std::string& last_checkpoint);
  // Returns what the run has revealed so far; nothing where learners do not vote. Between steps.
  std::optional<PrivacyResult> privacy() const;
  // Averages the pending losses. Collective. Returns running().
  bool flush_losses();
  // Return and restore the log's part of a checkpoint. save() comes after flush_losses().
  nlohmann::ordered_json save();
  void restore(int64_t step, int64_t epoch, const nlohmann::json& saved);
  // Marks the run as stopped by a signal, unless it has diverged.
  void stop() {
    if (running()) result_.status = "stopped";
  }
  // Records an evaluation on `split`, "valid" or "test": a line of metrics, and `text` for people.
  // The run has diverged if the loss is not finite.
  void evaluated(const char* split, double loss, const nlohmann::ordered_json& metrics,
                 const std::string& text);

 private:
  struct Pending {
    StepFacts facts;
    ExchangeFacts exchange;
    std::map<std::string, double> figures;  // of the reducer
    double skipped = 0;                     // 1: a gradient of this rank's was not finite
  };
  struct LossSum {
    double loss = 0, units = 0, skipped = 0;  // skipped: ranks
  };
  std::vector<LossSum> sum_losses();
  void prepare_step(int64_t step);
  void explain(const Pending& step);
  void dump_gradients();
  void compare_bytes();
  ExchangeFacts exchange_since_last();
  void update_totals();
  void write_step(int64_t step, double loss, double units, const Pending& facts);
  void note_missed_steps() const;
  void print_table(const std::string& table) const;
  bool is_divergent(double loss) const;
  // Ends the run and prints why, in one line on stderr, once.
  void diverge(int64_t step, double lr, const std::string& why);

  TrainingLogOptions options_;
  const CommonOptions& o_;
  Trace& trace_;
  const ParameterStore& store_;
  LearnerOptimizer& optimizer_;
  RunFolder* folder_;
  Progress* progress_;
  TrainingResult result_;
  QualityReport quality_;
  bool dumping_ = false;                  // this step's gradients are dumped
  NamedTensors gradients_;                // to be dumped, in backward's order
  std::vector<Pending> pending_;          // steps whose loss is not averaged yet
  LearnerOptimizer::Totals seen_;         // of all exchanges, at the last step
  LearnerOptimizer::Totals before_;       // of those in earlier processes
  double loss_sum_ = 0, loss_units_ = 0;  // of the epoch, over all ranks
  double lr_ = NAN;                       // of the last step
  int64_t skipped_ = 0, steps_here_ = 0;  // counted in this process
  double units_ = 0, seconds_ = 0, flushed_at_ = steady_seconds();
};

}  // namespace heddle
