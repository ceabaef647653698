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
// (optimizer.h). All ranks get the same sums, so their replicas stay equal bit for bit, except the
// buffers: batch norm's running statistics are each rank's own. Overlap changes no bit either.
//
//   DataParallelOptimizer optimizer(store, make_sgd({.momentum = 0.9}), comm, {},
//                                   {.bucket_bytes = 4 << 20});
//   optimizer.begin_step(lr);
//   optimizer.backward(tape, loss);  // calls ready() and weights_free()
//   optimizer.finish_step();
//
// With one rank and no reducer nothing is exchanged, and no thread is started. Call all functions
// except set_control() on the thread that runs backward.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/ledger.h"
#include "compress/compressed_reducer.h"
#include "compress/plan/exchange_chooser.h"
#include "compress/plan/layer_planner.h"
#include "compress/plan/quality_meter.h"
#include "compress/reducer.h"
#include "optim/buckets.h"
#include "optim/comm_worker.h"
#include "optim/control_words.h"
#include "optim/host_levels.h"
#include "optim/learner_optimizer.h"
#include "optim/optimizer.h"

namespace heddle {

class ExchangeProbes;

struct DataParallelOptions {
  int64_t bucket_bytes = 4 << 20;  // a bucket ends once it holds this many bytes
  bool overlap = true;             // false: exchanges begin when backward has ended; same bits
  bool broadcast = true;           // values and buffers begin as rank 0's; false: they are equal
  int64_t check_every = 100;       // steps between two comparisons of the replicas; 0: never
  int64_t compress_start = 0;      // steps before the reducer is used
  // Sums these steps' gradients; it must keep nothing from step to step. Null: dense sums.
  std::shared_ptr<CompressedReducer> start = nullptr;
  // Clips each rank's own gradient before it is compressed: the norm of its mean over micro-steps
  // is limited to this times sqrt(ranks). Exchanges then wait for the end of backward. 0: no
  // clipping. Lin et al. 2018 (arXiv 1712.01887, section 3.2) clip gradients that are already
  // divided by the number of ranks, at threshold / sqrt(ranks).
  double local_clip = 0;
  // true: a gradient that a residual held back is applied by SGD at once, without momentum
  // (UpdateInput); false: with momentum, like a dense one (ScaleCom's algorithm 1).
  bool residual_momentum = true;
  // The number of each rank's host: gradients are summed densely within a host, and exchanged
  // between hosts (host_levels.h). Empty: all ranks exchange with each other. Cannot be
  // combined with votes, shadow_every, planner or chooser.
  std::vector<int> hosts = {};
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

class DataParallelOptimizer : public LearnerOptimizer {
 public:
  // A collective call: every rank's store holds the same parameters. The store, the communicator
  // and the current Context must outlive this object; from now on the communicator is used through
  // collective() only. A null reducer means dense sums. Throws InputError for impossible options.
  DataParallelOptimizer(ParameterStore& store, std::unique_ptr<UpdateRule> rule, Communicator& comm,
                        const OptimizerOptions& options = {},
                        const DataParallelOptions& parallel = {},
                        std::unique_ptr<Reducer> reducer = nullptr);
  ~DataParallelOptimizer() override;

  void begin_step(double lr) override;
  // Signals that p.grad is final on this rank: its bucket is exchanged once it and all buckets
  // before it are complete. Throws InputError if the exchange has begun.
  void ready(Parameter& p) override;
  void weights_free(Parameter& p) override;
  StepReport finish_step() override;
  void set_micro_steps(int count) override;

  void set_control(size_t word, float value) override { control_.set(word, value); }
  float control(size_t word) const override { return control_.sum(word); }
  void post(const std::string& what, std::function<void(Communicator&, Ledger&)> call) override;
  void wait() override;
  // Throws an Error that names the first parameter whose values differ between ranks. Collective.
  void check_replicas();

  int learners() const override { return comm_.size(); }
  int64_t dense_bytes() const override;
  const Optimizer& optimizer() const override { return optimizer_; }
  size_t buckets() const { return buckets_.size(); }
  // Returns the communicator of the exchange: with hosts the one between them, null on ranks that
  // have none.
  const Communicator* exchanging() const {
    if (levels_ == nullptr) return &comm_;
    return levels_->first() ? &levels_->between() : nullptr;
  }
  Totals totals() const override;
  const Ledger& ledger() const override { return ledger_; }

  State state() override;
  void restore(const State& state) override;
  // The reducer's; with hosts only on the ranks that exchange between them.
  NamedTensors named_state() const override;
  Tensor shared_values() override { return store_.values().to(Device{}).clone(); }
  std::vector<LayerQuality> take_quality() override;
  std::map<std::string, double> figures() const override;
  std::string take_note() override;
  RdpAccountant* accountant() override {
    return reducer_ == nullptr ? nullptr : reducer_->accountant();
  }

 private:
  bool alone() const { return worker_ == nullptr; }
  bool last_micro_step() const { return micro_step_ + 1 == accumulate_; }
  bool voting() const { return reducer_ != nullptr && reducer_->votes(); }
  bool compressing() const { return reducer_ != nullptr && step_ >= parallel_.compress_start; }
  // Returns whether this rank's reducer is used: on each host, that of the first rank.
  bool reduces() const { return levels_ == nullptr || levels_->first(); }
  // Returns how many sums are exchanged: one for each rank or host.
  int sources() const { return levels_ == nullptr ? comm_.size() : levels_->hosts(); }
  void vote();
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
  std::unique_ptr<HostLevels> levels_;  // null without hosts
  Optimizer optimizer_;
  std::unique_ptr<ExchangeProbes> probes_;
  std::unique_ptr<CommWorker> worker_;  // last: its jobs use all of the above
};

}  // namespace heddle
