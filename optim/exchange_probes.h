// ExchangeProbes: everything that observes the exchange of gradients, in one object that
// DataParallelOptimizer can do without: clocks and byte totals, the trace's arrows, the lines of
// --explain-step, events for tests, and the parts that measure and decide (quality meter, exchange
// chooser, layer planner). Probes change no gradient; chooser and planner change the reducer's
// settings and which buckets are joined, between steps.
//
//   main thread     begin_step  ready ready  posted ...  backward_ended  waited  step_ended
//   worker thread                               before(0) after(0)  before(1) after(1) ...
//   either thread   updated
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "comm/ledger.h"
#include "compress/plan/exchange_chooser.h"
#include "compress/plan/layer_planner.h"
#include "compress/plan/quality_meter.h"
#include "core/trace.h"
#include "optim/buckets.h"
#include "optim/data_parallel.h"

namespace heddle {

class ExchangeProbes {
 public:
  using Totals = DataParallelOptimizer::Totals;
  using State = DataParallelOptimizer::State;
  using Collective = LayerPlanner::Collective;

  // All arguments except the options must outlive the probes. `reducer` is null for dense sums,
  // `levels` without hosts, `buckets` empty for a single learner. `run` runs a collective for the
  // main thread: with a chooser, the constructor uses it to measure the latency. Throws InputError
  // for a planner, chooser or meter without a reducer that compresses, and for a planner together
  // with a chooser.
  ExchangeProbes(const DataParallelOptions& options, const Buckets& buckets, Communicator& comm,
                 Ledger& ledger, Reducer* reducer, const HostLevels* levels, const Collective& run);

  // From the main thread, in this order in every step; ready and posted for each bucket.
  void begin_step(int64_t step);
  void ready(size_t index);   // one more of the bucket's gradients is final
  void posted(size_t index);  // the bucket and all before it are complete
  void backward_ended();
  void waited(double seconds);  // for exchanges that backward did not hide
  // After the update; plans and chooses, by collectives. `dense`: bytes of a dense exchange.
  void step_ended(double lr, int64_t dense);

  // From the worker thread, around each exchange.
  void before(size_t index, const GradientBucket& gradients);
  void after(size_t index, bool finite);

  // From the thread that has updated p.
  void updated(const Parameter& p);

  // Returns for each bucket, as it was cut, whether it is exchanged together with the one before
  // it. Changes in step_ended and restore.
  std::vector<bool> joined() const;

  // As in DataParallelOptimizer; between steps only.
  Totals totals() const;
  std::vector<LayerQuality> take_quality();
  void save(State& state);
  void restore(const State& state);

 private:
  // Returns the bytes that this rank has sent, with hosts those between them.
  int64_t sent() const {
    return levels_ == nullptr ? comm_.total_traffic().sent : levels_->sent_between();
  }
  bool compressing() const { return reducer_ != nullptr && step_ >= options_.compress_start; }
  void arrow(Trace::Flow point, const char* track, size_t index) const;
  void event(const char* what, size_t index) const;
  template <class Call>
  void meter(const Call& call);

  const DataParallelOptions options_;
  const Buckets& buckets_;
  Communicator& comm_;
  Ledger& ledger_;
  Reducer* reducer_;
  const HostLevels* levels_;
  Collective run_;
  std::unique_ptr<QualityMeter> meter_;
  std::unique_ptr<ExchangeChooser> chooser_;
  std::unique_ptr<LayerPlanner> planner_;

  int64_t step_ = 0;
  Totals totals_;         // without what the communicator and the ledger count
  Totals earlier_;        // what an earlier process of this run has counted
  Traffic outside_;       // what the communicator had counted before
  double metered_s_ = 0;  // time of the meter in this step
  struct {                // at the beginning of the current exchange
    double seconds, thread_seconds, comm_seconds;
    int64_t sent;
    CollectiveTraffic traffic;
    bool metered;
  } begin_{};
};

}  // namespace heddle
