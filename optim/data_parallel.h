// DataParallelOptimizer: P learners train as one. Backward computes the gradients of the last
// layers first; as soon as those of a bucket are final, a second thread sums them over the ranks
// and updates their weights, while backward computes the gradients of earlier layers:
//
//   time           ------------------------------------------------------------------>
//   main thread    | backward: layer 3 | layer 2          | layer 1        | wait |
//                           ready(p)  \        ready(p)  \       ready(p)  \     ^ finish_step
//   worker thread                      | exchange, update | exchange, update | exchange, update |
//                                        bucket 0           bucket 1           bucket 2
//
// Buckets (optim/buckets.h) are views of the flat gradient buffer and are exchanged in the same
// order on every rank. An exchange is a dense all-reduce, or what a Reducer does instead. A weight
// is updated when its sum has arrived and the last closure that reads it has returned
// (optimizer.h). All ranks get the same sums, so their replicas stay equal bit for bit; overlap
// changes no bit either.
//
//   DataParallelOptimizer optimizer(store, make_sgd({.momentum = 0.9}), comm, {},
//                                   {.bucket_bytes = 4 << 20});
//   optimizer.begin_step(lr);
//   tape.backward(loss, [&](Parameter& p) { optimizer.ready(p); },
//                 [&](Parameter& p) { optimizer.weights_free(p); });
//   optimizer.finish_step();
//
// With one rank and no reducer nothing is exchanged, and no thread is started. Call all functions
// except set_control() on the thread that runs backward.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/ledger.h"
#include "compress/plan/exchange_chooser.h"
#include "compress/plan/layer_planner.h"
#include "compress/plan/quality_meter.h"
#include "compress/reducer.h"
#include "optim/buckets.h"
#include "optim/comm_worker.h"
#include "optim/control_words.h"
#include "optim/optimizer.h"

namespace heddle {

class ExchangeProbes;

struct DataParallelOptions {
  int64_t bucket_bytes = 4 << 20;  // a bucket ends once it holds this many bytes
  bool overlap = true;             // false: exchanges begin when backward has ended; same bits
  bool broadcast = true;           // initial values are rank 0's; false: they are equal already
  int64_t check_every = 100;       // steps between two comparisons of the replicas; 0: never
  int64_t compress_start = 0;      // steps that are summed densely before the reducer is used
  // Clips each rank's own gradient before it is compressed: the norm of its mean over micro-steps
  // is limited to this times sqrt(ranks). Exchanges then wait for the end of backward. 0: no
  // clipping. Lin et al. 2018 (arXiv 1712.01887, section 3.2) clip gradients that are already
  // divided by the number of ranks, at threshold / sqrt(ranks).
  double local_clip = 0;
  // true: a gradient that a residual held back is applied by SGD at once, without momentum
  // (UpdateInput); false: with momentum, like a dense one (ScaleCom's algorithm 1).
  bool residual_momentum = true;
  // Enables set_control() and control(), which cost ControlWords::kCount * 4 bytes per step.
  bool control_words = false;

  // Observes the exchanges (exchange_probes.h). false: totals() are zero, and the options below
  // must keep their defaults.
  bool probes = true;
  // Steps between two measurements of the compression's quality; 0: none. Needs a
  // CompressedReducer.
  int64_t shadow_every = 0;
  // Chooses the reducer's setting for each layer, where planner.every > 0. Needs a
  // CompressedReducer.
  LayerPlannerOptions planner = {};
  // Chooses which buckets are compressed and which are joined, where chooser.every > 0. Needs a
  // CompressedReducer and no planner.
  ExchangeChooserOptions chooser = {};
  // For tests: called with a bucket and "ready" (main thread), "exchange" or "reduced" (worker).
  std::function<void(const char*, int)> on_event = {};
};

class DataParallelOptimizer {
 public:
  // A collective call: every rank's store holds the same parameters. The store, the communicator
  // and the current Context must outlive this object; from now on the communicator is used through
  // collective() only. A null reducer means dense sums. Throws InputError for impossible options.
  DataParallelOptimizer(ParameterStore& store, std::unique_ptr<UpdateRule> rule, Communicator& comm,
                        const OptimizerOptions& options = {},
                        const DataParallelOptions& parallel = {},
                        std::unique_ptr<Reducer> reducer = nullptr);
  ~DataParallelOptimizer();

  // Begins a step as Optimizer does, with this learning rate.
  void begin_step(double lr);
  // Signals that p.grad is final on this rank: its bucket is exchanged once it and all buckets
  // before it are complete. Rethrows what an exchange has thrown, as finish_step does.
  void ready(Parameter& p);
  // Signals that backward will not read p.value again.
  void weights_free(Parameter& p);
  // Waits until every bucket is exchanged, finishes the update, and throws what an exchange has
  // thrown. Gradients that this rank has not computed count as zero; other ranks may have them.
  StepReport finish_step();

  // A few numbers that the ranks sum with the gradients of each update, without a collective of
  // their own (control_words.h). set_control() may be called from any thread.
  // `word` is below kWords.
  static constexpr size_t kWords = ControlWords::kCount;
  void set_control(size_t word, float value) { control_.set(word, value); }
  float control(size_t word) const { return control_.sum(word); }

  // Runs `call` on the worker thread after the exchanges that were posted before, and waits for it.
  // `what` names the collectives in errors and, as control, in the ledger. Every rank calls this at
  // the same point of its program.
  void collective(const std::string& what, const std::function<void(Communicator&)>& call);
  // Throws an Error that names the first parameter whose values differ between ranks. Collective.
  void check_replicas();

  int learners() const { return comm_.size(); }
  // Returns the bytes that a rank sends in a dense step: its share of a ring all-reduce.
  int64_t dense_bytes() const;
  const Optimizer& optimizer() const { return optimizer_; }
  size_t buckets() const { return buckets_.size(); }
  // Totals of this rank over the run. totals() and ledger(): between steps only.
  struct Totals {
    Traffic traffic;          // everything that this rank sent and received
    double exchange_s = 0;    // seconds that exchanges took, without the quality meter
    double collective_s = 0;  // of which in collectives
    double exposed_s = 0;     // seconds that the main thread waited for exchanges
    int64_t dense_steps = 0, compressed_steps = 0;
    int64_t dense_sent = 0, compressed_sent = 0;  // bytes of gradients, in these steps
    int64_t rejected = 0;  // compressed buckets with a non-finite value or sum
  };
  Totals totals() const;
  const Ledger& ledger() const { return ledger_; }

  // The state for a checkpoint: numbers that are the same on all ranks, except bytes and seconds.
  // named_state() adds this rank's residuals, as views to copy from and into. Between steps only;
  // call restore() before the first step and before restoring the tensors.
  struct State {
    int64_t steps = 0;
    Totals totals;
    std::map<std::pair<std::string, PayloadKind>, Ledger::Entry> ledger;
    std::map<std::string, double> settings;  // of the reducer, by layer
    std::optional<LayerPlannerState> planner;
  };
  State state();
  void restore(const State& state);
  NamedTensors named_state() const;
  // Returns the quality meter's new measurements, the same on all ranks. Between steps only.
  std::vector<LayerQuality> take_quality();
  // As in Reducer; nothing without a reducer.
  std::map<std::string, double> figures() const;
  std::string take_note();

 private:
  bool alone() const { return worker_ == nullptr; }
  bool last_micro_step() const { return micro_step_ + 1 == accumulate_; }
  bool compressing() const { return reducer_ != nullptr && step_ >= parallel_.compress_start; }
  void post_complete_buckets();
  void exchange(size_t index);
  bool sum_over_ranks(const Bucket& bucket);
  void reject(const Bucket& bucket);
  void wait_for_exchanges();
  void end_step(const StepReport& report);
  void clip_locally();
  void mark_non_finite(const Bucket& bucket);
  GradientBucket gradients_of(const Bucket& bucket) const;
  bool from_residual(const Parameter& p) const;

  ParameterStore& store_;
  Communicator& comm_;
  DataParallelOptions parallel_;
  int accumulate_;
  std::unique_ptr<Reducer> reducer_;
  Buckets buckets_;
  size_t next_ = 0;  // the first bucket not posted yet in this step
  int micro_step_ = 0;
  int64_t step_ = 0;
  Ledger ledger_;
  ControlWords control_;
  Optimizer optimizer_;
  std::unique_ptr<ExchangeProbes> probes_;
  std::unique_ptr<CommWorker> worker_;  // last: its jobs use all of the above
};

}  // namespace heddle
