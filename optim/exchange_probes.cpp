#include "optim/exchange_probes.h"

#include <algorithm>
#include <utility>

#include "comm/link_cost.h"
#include "core/context.h"
#include "core/streams.h"

namespace heddle {

ExchangeProbes::ExchangeProbes(const DataParallelOptions& options, const Buckets& buckets,
                               Communicator& comm, Ledger& ledger, Reducer* reducer,
                               const HostLevels* levels, const Collective& run)
    : options_(options),
      buckets_(buckets),
      comm_(comm),
      ledger_(ledger),
      reducer_(reducer),
      levels_(levels),
      run_(run),
      outside_(comm.total_traffic()) {
  const bool plans = options.planner.every > 0, chooses = options.chooser.every > 0;
  if (!plans && !chooses && options.shadow_every == 0) return;
  auto* compressed = dynamic_cast<CompressedReducer*>(reducer);
  check(compressed != nullptr,
        "layer plans, exchange choices and the quality meter need a reducer that compresses");
  check(!plans || !chooses, "either layer plans or exchange choices, not both");
  // Plans and trials start once the rate has stopped rising.
  const int64_t steady = options.compress_start + compressed->ramp();
  if (options.shadow_every > 0) meter_ = std::make_unique<QualityMeter>(*compressed);
  if (plans) planner_ = std::make_unique<LayerPlanner>(*compressed, options.planner, steady);
  if (!chooses) return;
  ExchangeChooserOptions chooser = options.chooser;
  run("latency", [&](Communicator& c) { chooser.latency_s = measure_latency(c); });
  chooser_ = std::make_unique<ExchangeChooser>(*compressed, buckets.names(), chooser, steady);
}

// ------------------------------------------------------------------------------ the main thread

void ExchangeProbes::begin_step(int64_t step) {
  step_ = step;
  if (chooser_ != nullptr) chooser_->begin_step();
}

void ExchangeProbes::ready(size_t index) {
  event("ready", index);
  const Bucket& bucket = buckets_[index];
  if (!bucket.complete()) return;
  arrow(Trace::Flow::begin, "backward", index);
  explain("bucket", concat("bucket ", index), [&] {
    const auto elements = to_double(bucket.end - bucket.begin);
    return Figures{{"parameters", to_double(bucket.parameters.size()), Unit::count},
                   {"elements", elements, Unit::count},
                   {"bytes", elements * 4, Unit::bytes}};
  });
}

void ExchangeProbes::posted(size_t index) {
  if (chooser_ != nullptr) chooser_->ready(index);
}

void ExchangeProbes::backward_ended() {
  if (chooser_ != nullptr) chooser_->backward_ended();
}

void ExchangeProbes::waited(double seconds) {
  // Leaves out the time of the quality meter, which runs between the exchanges.
  const double exposed = std::max(0.0, seconds - std::exchange(metered_s_, 0.0));
  totals_.exposed_s += exposed;
  explain("wait", "exchanges", [&] { return Figures{{"waited", exposed, Unit::seconds}}; });
}

void ExchangeProbes::step_ended(double lr, int64_t dense) {
  ++(compressing() ? totals_.compressed_steps : totals_.dense_steps);
  if (!compressing() && options_.start != nullptr) ++totals_.coded_steps;
  (compressing() ? totals_.dense_of_compressed : totals_.dense_of_dense) += dense;
  const int64_t steps = step_ + 1;
  if (planner_ != nullptr) planner_->finish_step(steps, lr, run_);
  if (chooser_ != nullptr && steps >= options_.compress_start) chooser_->finish_step(steps, run_);
}

// ---------------------------------------------------------------------------- the worker thread

// Runs the quality meter, whose time is not counted as exchange time.
template <class Call>
void ExchangeProbes::meter(const Call& call) {
  const double begin = steady_seconds();
  call();
  metered_s_ += steady_seconds() - begin;
}

void ExchangeProbes::before(size_t index, const GradientBucket& gradients) {
  begin_.metered = meter_ != nullptr && compressing() && (step_ + 1) % options_.shadow_every == 0;
  if (begin_.metered) meter([&] { meter_->before(gradients, comm_, ledger_); });
  event("exchange", index);
  if (chooser_ != nullptr && chooser_->measuring()) begin_.traffic = comm_.traffic();
  begin_.seconds = steady_seconds();
  arrow(Trace::Flow::pass, "comm", index);
  begin_.thread_seconds = thread_seconds();
  begin_.comm_seconds = ledger_.seconds();
  begin_.sent = sent();
}

void ExchangeProbes::after(size_t index, bool finite) {
  wait_for_stream();  // a GPU may still be decoding, which is part of the exchange
  const double seconds = steady_seconds() - begin_.seconds;
  const double comm_seconds = ledger_.seconds() - begin_.comm_seconds;
  const int64_t bytes = sent() - begin_.sent;
  totals_.exchange_s += seconds;
  totals_.rejected += finite ? 0 : 1;
  (compressing() ? totals_.compressed_sent : totals_.dense_sent) += bytes;
  if (chooser_ != nullptr && chooser_->measuring()) {
    // In virtual time a thread also waits for others, which the model's clock does not count.
    const double code_s =
        comm_.virtual_time() ? thread_seconds() - begin_.thread_seconds : seconds - comm_seconds;
    chooser_->exchanged(index, code_s, comm_seconds, latencies_since(begin_.traffic, comm_));
  }
  if (begin_.metered) meter([&] { meter_->after(comm_, ledger_, finite); });
  event("reduced", index);
  explain("summed", comm_.tag(), [&] {
    const char* how = options_.start == nullptr ? "dense" : options_.start->name();
    return Figures{{compressing() ? "compressed" : how, 0, Unit::none},
                   {finite ? "over the ranks" : "rejected: not finite", 0, Unit::none},
                   {"sent", to_double(bytes), Unit::bytes},
                   {"took", seconds, Unit::seconds},
                   {"of which in collectives", comm_seconds, Unit::seconds}};
  });
}

// -------------------------------------------------------------------------------- either thread

// The arrow of a bucket ends at the update of its first parameter.
void ExchangeProbes::updated(const Parameter& p) {
  const size_t index = buckets_.index_of(p);
  if (buckets_[index].parameters.front() == &p) arrow(Trace::Flow::end, "update", index);
}

void ExchangeProbes::arrow(Trace::Flow point, const char* track, size_t index) const {
  const int64_t id = step_ * to_int64(buckets_.cuts()) + to_int64(index);
  Context::current().trace().flow(point, track, id);
}

void ExchangeProbes::event(const char* what, size_t index) const {
  if (options_.on_event) options_.on_event(what, to_int(index));
}

// ------------------------------------------------------------------------------- between steps

std::vector<bool> ExchangeProbes::joined() const {
  return chooser_ != nullptr ? chooser_->joined() : std::vector<bool>(buckets_.cuts(), false);
}

ExchangeProbes::Totals ExchangeProbes::totals() const {
  Totals totals = totals_;
  totals.traffic = earlier_.traffic;
  add(totals.traffic, comm_.total_traffic(), outside_);
  totals.collective_s = earlier_.collective_s + ledger_.seconds();
  return totals;
}

std::vector<LayerQuality> ExchangeProbes::take_quality() {
  return meter_ == nullptr ? std::vector<LayerQuality>{} : meter_->take();
}

void ExchangeProbes::save(State& state) {
  state.totals = totals();
  if (planner_ != nullptr) state.planner = planner_->state();
}

void ExchangeProbes::restore(const State& state) {
  totals_ = earlier_ = state.totals;
  if (chooser_ != nullptr) chooser_->resume(state.steps);
  if (planner_ != nullptr)
    planner_->restore(state.steps, state.planner.value_or(LayerPlannerState{}));
}

}  // namespace heddle
