// DataParallelOptimizer: N learners train as one. Gradients are summed over the ranks while
// backward still runs, and the optimizer sees a gradient as ready when its sum has come back. The
// flat gradient buffer is cut into buckets, which are views of it and leave in the order of memory,
// the same on every rank.
//
//   DataParallelOptimizer optimizer(store, make_sgd({.momentum = 0.9}), comm, {},
//                                   {.bucket_bytes = 4 << 20});
//   optimizer.begin_step(lr);
//   tape.backward(loss, [&](Parameter& p) { optimizer.ready(p); },
//                 [&](Parameter& p) { optimizer.weights_free(p); });
//   optimizer.finish_step();
//
// With one rank and no reducer nothing is exchanged, and no thread is started.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "comm/communicator.h"
#include "comm/ledger.h"
#include "compress/plan/exchange_chooser.h"
#include "compress/plan/layer_planner.h"
#include "compress/plan/quality_meter.h"
#include "compress/reducer.h"
#include "optim/comm_worker.h"
#include "optim/optimizer.h"

namespace heddle {

struct DataParallelOptions {
  int64_t bucket_bytes = 4 << 20;  // a bucket is closed when it holds so much
  bool overlap = true;             // false: all exchanges begin when backward has ended; same bits
  bool broadcast = true;           // parameters from rank 0; false: they are the same already
  int64_t check_every = 100;       // steps between two comparisons of the replicas; 0: never
  int64_t compress_start = 0;      // steps that are exchanged densely before a reducer takes over
  // Largest norm of the mean gradient of one rank is this * sqrt(ranks), before it is compressed;
  // exchanges then wait for the end of backward. 0: none. Lin et al. 2018 (arXiv 1712.01887,
  // section 3.2) clip at threshold / sqrt(ranks) what is divided by the number of ranks already.
  double local_clip = 0;
  // SGD's momentum leaves gradients that a residual held back alone (see UpdateInput); false: they
  // are treated like dense ones (ScaleCom's algorithm 1).
  bool residual_momentum = true;
  // Steps between two looks of a quality meter at what is compressed; 0: none. The reducer must be
  // a CompressedReducer.
  int64_t shadow_every = 0;
  // Of the reducer's settings by layer, where `every` is above 0: then it must be a
  // CompressedReducer.
  LayerPlannerOptions planner = {};
  // Which buckets are compressed at all, and which travel together, where `every` is above 0; not
  // together with a planner.
  ExchangeChooserOptions chooser = {};
  // Lets set_control() and control() work, for a few bytes more in the last bucket of a step.
  bool control_words = false;
  // Told what happens, in order, for tests: "ready", "exchange", "reduced", with the bucket's
  // number.
  std::function<void(const char*, int)> on_event = {};
};

class DataParallelOptimizer {
 public:
  // The ranks' stores hold the same parameters. Values are broadcast from rank 0, if so wanted. The
  // communicator and the current Context must outlive this object; from now on the communicator is
  // used through collective() only.
  DataParallelOptimizer(ParameterStore& store, std::unique_ptr<UpdateRule> rule, Communicator& comm,
                        const OptimizerOptions& options = {},
                        const DataParallelOptions& parallel = {},
                        std::unique_ptr<Reducer> reducer = nullptr);  // null: dense sums

  // As Optimizer's.
  void begin_step(double lr);
  void ready(Parameter& p);
  void weights_free(Parameter& p);
  StepReport finish_step();

  // What the ranks agree on without a collective of its own: small numbers, kWords of them, that
  // each rank may set at any time, from any thread. They are summed over the ranks with the
  // gradients of each update, and the sums are there after it: zero when the last bucket's
  // gradients were unfit.
  static constexpr size_t kWords = ParameterStore::kExtra;
  void set_control(size_t word, float value) { own_words_.at(word) = value; }
  float control(size_t word) const { return words_.at(word); }

  // Runs collectives of the main thread in their turn, and waits for them. `what` they are about
  // (losses, evaluation) is their tag, and control in the ledger.
  void collective(const std::string& what, const std::function<void(Communicator&)>& call);
  // Throws Error that names the first parameter whose values differ between ranks.
  void check_replicas();

  int learners() const { return comm_.size(); }
  // What a rank sends in a step when nothing is compressed: a ring's share of all gradients.
  int64_t dense_bytes() const;
  const Optimizer& optimizer() const { return optimizer_; }
  size_t buckets() const { return buckets_.size(); }
  // Over the run; sent and received by this rank. As the ledger between steps only, when the worker
  // is idle.
  struct Totals {
    Traffic traffic;
    double exchange_s = 0;    // the worker was busy with buckets, without a quality meter's looks
    double collective_s = 0;  // of these, in collectives
    double exposed_s = 0;     // the main thread waited for exchanges
    int64_t dense_steps = 0, compressed_steps = 0;
    int64_t dense_sent = 0, compressed_sent = 0;  // bytes of gradients, in these steps
    int64_t rejected = 0;                         // buckets that some rank's gradients made unfit
  };
  Totals totals() const;
  const Ledger& ledger() const { return ledger_; }
  // What a checkpoint keeps: numbers that are the same on all ranks but for the bytes, and this
  // rank's tensors, as views to copy from and into. Between steps only, and restore() before the
  // first and before the tensors.
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
  // What the meter has seen since the last call; between steps only. The same on all ranks.
  std::vector<LayerQuality> take_quality();

 private:
  struct Bucket {
    int64_t begin, end;  // elements of the flat buffers
    std::vector<Parameter*> parameters;
    size_t open = 0;        // parameters that are not ready
    bool accepted = false;  // by the reducer, in this step
  };

  bool alone() const { return worker_ == nullptr; }
  bool last_micro_step() const { return micro_step_ + 1 == accumulate_; }
  void cut(int64_t bytes);
  void make_buckets(const std::vector<bool>& joined);
  void watch_reducer();
  void flush();
  void exchange(size_t index);
  bool sum(const Bucket& bucket);
  bool from_residual(const Parameter& p) const;
  double latencies_since(const CollectiveTraffic& before) const;
  bool has_control(const Bucket& bucket) const {
    return parallel_.control_words && &bucket == &buckets_.back();
  }
  void write_control_words();
  void read_control_words(bool accepted);
  bool compressing() const { return reducer_ != nullptr && step_ >= parallel_.compress_start; }
  GradientBucket bucket_gradients(const Bucket& bucket) const;
  void clip_locally();
  void blame(const Bucket& bucket);
  void explain_bucket(size_t index) const;
  void event(const char* what, size_t bucket);
  void finish_arrow(const Parameter& p);
  void arrow(Trace::Flow point, const char* track, size_t bucket);

  ParameterStore& store_;
  Communicator& comm_;
  DataParallelOptions parallel_;
  std::function<void(const std::string&)> log_;
  int accumulate_;
  std::vector<std::vector<Parameter*>> cuts_;  // the shortest buckets there can be
  std::vector<bool> joined_;                   // cuts that travel with the one before them
  std::vector<Bucket> buckets_;
  std::unordered_map<const Parameter*, size_t> bucket_of_;
  size_t next_ = 0;  // the first bucket that has not left
  int micro_step_ = 0;
  int64_t step_ = 0;
  Ledger ledger_;
  Totals totals_;    // without what the communicator and the ledger count
  Totals before_;    // what these counted in an earlier process
  Traffic outside_;  // what the ranks had sent each other before this was made
  std::unique_ptr<Reducer> reducer_;
  std::unique_ptr<LayerPlanner> planner_;
  std::unique_ptr<QualityMeter> meter_;
  double meter_s_ = 0;  // of its looks in this step; the worker's until it is drained
  std::unique_ptr<ExchangeChooser> chooser_;
  std::array<std::atomic<float>, kWords> own_words_{};
  std::array<float, kWords> words_{};
  std::set<std::string> named_missing_;
  std::set<const Parameter*> ready_;
  Optimizer optimizer_;
  std::unique_ptr<CommWorker> worker_;  // last: its jobs use all of the above
};

}  // namespace heddle
