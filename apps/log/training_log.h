// The books of a training run, whatever is trained: counts steps, writes metrics.jsonl, shows
// progress, traces the steps that were asked for, and declares the run diverged. The inner loop
// stays with the program.
//
//   TrainingLog log({.program = "train_lm", .rate_key = "tokens_per_s"}, o, context, store,
//                   optimizer, folder, progress);
//   ... backward, finish_step ...
//   if (!log.finish_step(report, {.loss = loss, .lr = lr, .units = n, .times = t})) return;
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/checkpoint/checkpoint.h"
#include "apps/cli/common_options.h"
#include "apps/log/progress.h"
#include "apps/log/quality_report.h"
#include "apps/log/run_folder.h"
#include "apps/session/exchange.h"
#include "core/context.h"
#include "core/error.h"
#include "core/files.h"
#include "core/trace.h"
#include "optim/data_parallel.h"

namespace heddle {

// How a run stands; what both programs put into their final JSON object.
struct TrainingResult {
  std::string status = "done";  // or "diverged", "stopped"
  int64_t epoch = 0, step = 0;  // complete ones
  double train_loss = NAN;      // mean over the last epoch
  double rate = NAN;            // units a second, without validation
  double first_step_s = NAN;
  int world_size = 1;
  // Of rank 0, over the run; dense: what a plain exchange of all gradients would have sent.
  int64_t bytes_sent = 0, bytes_received = 0, bytes_dense = 0;
  Ratios ratios;
  // Of gradients, in the mean over the compressed steps (of a run without: over all); the mean over
  // the ranks, and that of the rank that sent most. Of this process, and of a run that is done.
  double bytes_step_mean = 0, bytes_step_max = 0;
  int64_t rejected_buckets = 0;  // exchanges that some rank's gradients made unfit
  // Behind the exchange: steps, and the sum of what was cut off the norm of the mean gradient.
  int64_t clipped_steps = 0;
  double clipped_norm = 0;
  double exposed_comm_s = 0;  // waited for exchanges that backward did not hide
};

// Seconds of one update, by what they went into; lap() gives the time since the last call.
struct StepTimes {
  double data = 0, forward = 0, backward = 0, update = 0, last = steady_seconds();
  double lap() {
    const double now = steady_seconds(), seconds = now - last;
    last = now;
    return seconds;
  }
};

struct StepFacts {
  double loss = 0, lr = 0;  // the loss: of this rank
  int64_t units = 0;        // images or tokens
  StepTimes times;
};

// What exchanging gradients took in one step.
struct ExchangeFacts {
  int64_t sent = 0, received = 0;
  double comm_s = 0, compress_s = 0, exposed_s = 0;
};

struct TrainingLogOptions {
  std::string program;
  std::string rate_key;  // "samples_per_s", "tokens_per_s"
  // Further metrics of a step, from the mean loss over the ranks.
  std::function<nlohmann::ordered_json(double)> metrics = {};
};

class TrainingLog {
 public:
  // All ranks make the same calls; folder and progress are null on all but the first. Losses are
  // averaged over the ranks in one collective for many steps: --print-freq of them, or those of
  // some seconds if that is less.
  TrainingLog(const TrainingLogOptions& names, const CommonOptions& o, Context& context,
              const ParameterStore& store, DataParallelOptimizer& optimizer, RunFolder* folder,
              Progress* progress);

  const TrainingResult& result() const { return result_; }
  int64_t step() const { return result_.step; }
  int64_t epoch() const { return result_.epoch; }
  bool healthy() const { return result_.status == "done"; }
  // Steps in a row, up to the last, in which gradients were not finite; the same on all ranks.
  int64_t refused() const { return skipped_; }

  // p.grad is complete, but for those of further batches of the same update, and has not been
  // exchanged. Before optimizer.ready(p); for --dump-gradients.
  void gradient(const Parameter& p);
  // An update has been made. False, and the run has diverged, after more than --max-skipped steps
  // in a row whose gradients were not finite.
  bool finish_step(const StepReport& report, const StepFacts& facts);
  // False, and the run has diverged, for a loss that is not finite or above --max-loss. Several
  // ranks find out together when the losses are averaged.
  bool check_loss(double loss, double lr);
  // Closes the epoch; its mean loss is the result's train_loss from then on.
  void finish_epoch();
  // After the last epoch: the ratios of the result, the ledger as a line of metrics, and as a table
  // when it was asked for. Of a run that has diverged, where its last checkpoint is, if it has one.
  void finish(const std::string& last_checkpoint);
  // Averages the losses that are pending, on all ranks; whether the run is healthy.
  bool settle();
  // What a checkpoint keeps of the books; after settle().
  nlohmann::ordered_json save();
  void restore(int64_t step, int64_t epoch, const nlohmann::json& saved);
  // Ends the run at a signal, unless it has diverged.
  void stop() {
    if (healthy()) result_.status = "stopped";
  }
  // A line of metrics and one for people on what the network, as it is now, is worth on a split:
  // "valid" or "test". With a loss that is not finite the run has diverged.
  void evaluated(const char* split, double loss, const nlohmann::ordered_json& metrics,
                 const std::string& line);

 private:
  struct Pending {
    StepFacts facts;
    ExchangeFacts exchange;
  };
  struct LossSum {
    double loss = 0, units = 0;
  };
  std::vector<LossSum> sum_losses();
  void watch_step(int64_t step);
  void explain(const Pending& step);
  void dump_gradients();
  void compare_bytes();
  ExchangeFacts exchange_since_last();
  void take_totals();
  void flush();
  bool hopeless(double loss) const;
  // Ends the run: says why, in one line on stderr, once.
  void diverge(int64_t step, double lr, const std::string& why);

  TrainingLogOptions names_;
  const CommonOptions& o_;
  Context& context_;
  const ParameterStore& store_;
  DataParallelOptimizer& optimizer_;
  RunFolder* folder_;
  Progress* progress_;
  TrainingResult result_;
  QualityReport quality_;
  bool dumping_ = false;                              // the gradients of this step
  NamedTensors gradients_;                            // so far, in backward's order
  std::vector<Pending> pending_;                      // steps whose loss is not averaged yet
  DataParallelOptimizer::Totals seen_;                // of all exchanges, at the last step
  DataParallelOptimizer::Totals before_;              // of these, in earlier processes
  double loss_sum_ = 0, loss_units_ = 0;              // of the epoch, over all ranks
  double lr_ = NAN;                                   // of the last step
  int64_t units_ = 0, skipped_ = 0, steps_here_ = 0;  // of this process
  double seconds_ = 0, flushed_at_ = steady_seconds();
};

// Notes for people, where there is somebody to show them.
std::function<void(const std::string&)> noting(Progress* progress);

// What a run writes to: its folder, which holds config.toml and run.json from the start, and the
// trace if one was asked for.
struct RunFiles {
  std::unique_ptr<AtomicFile> trace;
  std::unique_ptr<RunFolder> folder;
};
// A run that goes on from a checkpoint in its own folder goes on there.
RunFiles open_run(const CommonOptions& o, const std::string& config,
                  const std::vector<std::string>& arguments, Context& context,
                  const std::optional<Checkpoint>& checkpoint);
// Every rank calls it when nothing else communicates any more; the first writes what all recorded.
void finish_trace(const CommonOptions& o, const RunFiles& files, Context& context,
                  Communicator& comm);

ExitCode exit_code(const TrainingResult& result);

// The final JSON object: first the keys that both programs begin with, then, behind their own
// results, those that both end with.
nlohmann::ordered_json begin_summary(const TrainingResult& result);
void end_summary(nlohmann::ordered_json& summary, const std::string& rate_key,
                 const TrainingResult& result, int64_t seed, const std::string& run_folder);

}  // namespace heddle
