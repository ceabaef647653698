#include "optim/data_parallel.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "compress/dense.h"
#include "core/kernels.h"
#include "core/streams.h"
#include "core/trace.h"
#include "optim/clip.h"
#include "optim/exchange_probes.h"
#include "optim/replica_check.h"

namespace heddle {
namespace {

// Returns the options with the number of ranks, so that the factor that averages micro-steps also
// turns the sum over ranks into a mean.
OptimizerOptions averaging(const OptimizerOptions& options, int ranks) {
  OptimizerOptions out = options;
  out.learners = ranks;
  return out;
}

// Throws InputError for options with which gradients would bypass the votes.
void check_voting(const OptimizerOptions& options, const DataParallelOptions& parallel) {
  check(parallel.compress_start == 0,
        "votes: dense steps before them would reveal gradients; expected compress_start 0, found ",
        parallel.compress_start);
  check(options.accumulate == 1 && parallel.local_clip == 0,
        "votes: expected no accumulation and no clipping of a rank's own gradient");
}

}  // namespace

DataParallelOptimizer::DataParallelOptimizer(ParameterStore& store,
                                             std::unique_ptr<UpdateRule> rule, Communicator& comm,
                                             const OptimizerOptions& options,
                                             const DataParallelOptions& parallel,
                                             std::unique_ptr<Reducer> reducer)
    : store_(store),
      comm_(comm),
      parallel_(parallel),
      accumulate_(options.accumulate),
      reducer_(std::move(reducer)),
      optimizer_(store, std::move(rule), averaging(options, comm.size())) {
  check(parallel.local_clip >= 0 && std::isfinite(parallel.local_clip),
        "local clip: expected a number of at least 0, found ", parallel.local_clip);
  check(parallel.probes || (parallel.shadow_every == 0 && parallel.planner.every == 0 &&
                            parallel.chooser.every == 0 && !parallel.on_event),
        "without probes there is no quality meter, no planner, no chooser and no event");
  if (voting()) check_voting(options, parallel);
  const CompressedReducer* start = parallel.start.get();
  if (start != nullptr)
    check(!start->keeps_residuals() && start->named_state().empty(),
          "before compress_start: expected a reducer that keeps nothing, found ", start->name());
  if (!parallel.hosts.empty()) {
    check(!voting() && parallel.shadow_every == 0 && parallel.planner.every == 0 &&
              parallel.chooser.every == 0,
          "hosts: expected no votes, no quality meter, no planner and no chooser");
    levels_ = std::make_unique<HostLevels>(comm, parallel.hosts);
  }
  const bool exchanges = comm.size() > 1 || reducer_ != nullptr;
  check(exchanges || parallel.local_clip == 0,
        "one rank without a reducer: expected clip_grad_norm");
  if (exchanges) {
    buckets_ = Buckets(store, parallel.bucket_bytes);
    worker_ = std::make_unique<CommWorker>(Context::current());
  }
  if (parallel.probes) {
    const auto run = [this](const auto& what, const auto& call) { collective(what, call); };
    probes_ = std::make_unique<ExchangeProbes>(parallel, buckets_, comm, ledger_, reducer_.get(),
                                               levels_.get(), run);
    if (exchanges) optimizer_.on_update([this](const Parameter& p) { probes_->updated(p); });
  }
  if (exchanges && parallel.broadcast)
    collective("parameters", [&](Communicator& c) { broadcast_replica(store, c); });
}

DataParallelOptimizer::~DataParallelOptimizer() = default;

// ---------------------------------------------- backward: a gradient is final, a bucket complete

void DataParallelOptimizer::begin_step(double lr) {
  optimizer_.begin_step(lr);
  buckets_.begin_step();
  next_ = 0;
  if (probes_ != nullptr) probes_->begin_step(step_);
}

void DataParallelOptimizer::ready(Parameter& p) {
  if (alone()) return optimizer_.ready(p);
  // The tape also announces parameters that got no gradient: finish_step sets their p.grad to 0.
  if (!last_micro_step() || !p.written || !store_.owns(p)) return;
  check(buckets_.index_of(p) >= next_, p.name,
        ": a second gradient after its exchange: call begin_step, add the losses, or accumulate");
  if (!buckets_.mark_ready(p)) return;
  if (probes_ != nullptr) probes_->ready(buckets_.index_of(p));
  if (parallel_.overlap && parallel_.local_clip == 0 && !voting()) post_complete_buckets();
}

// Posts complete buckets in memory order, which is the same on every rank.
void DataParallelOptimizer::post_complete_buckets() {
  for (; next_ < buckets_.size() && buckets_[next_].complete(); ++next_) {
    if (probes_ != nullptr) probes_->posted(next_);
    worker_->post([this, index = next_] { exchange(index); });
  }
}

// ----------------------------------------------------- exchange and update, on the worker thread

void DataParallelOptimizer::exchange(size_t index) {
  Bucket& bucket = buckets_[index];
  comm_.set_tag(concat("bucket ", index));
  comm_.set_step(step_);
  if (levels_ != nullptr) levels_->set_tag(comm_.tag(), step_);
  wait_for_stream();  // until a GPU has made the gradients
  if (probes_ != nullptr) probes_->before(index, gradients_of(bucket));
  bucket.finite = sum_over_ranks(bucket);
  if (probes_ != nullptr) probes_->after(index, bucket.finite);
  for (Parameter* p : bucket.parameters) p->touched_rows.reset();  // other ranks had different rows
  if (!bucket.finite) return reject(bucket);
  for (Parameter* p : bucket.parameters) optimizer_.ready(*p, from_residual(*p));
}

// Returns false if the reducer has found non-finite gradients on some rank. A dense sum leaves that
// to the optimizer, which finds the NaN on every rank.
bool DataParallelOptimizer::sum_over_ranks(const Bucket& bucket) {
  const GradientBucket gradients = gradients_of(bucket);
  const Tensor words =
      gradients.flat.slice(gradients.flat.size() - gradients.control, gradients.flat.size());
  if (gradients.control > 0) control_.write(words);
  bool finite = true;
  if (levels_ != nullptr) levels_->sum_within(gradients, ledger_);
  if (reduces()) {
    Communicator& comm = levels_ == nullptr ? comm_ : levels_->between();
    ledger_.count(compressing() || parallel_.start == nullptr);
    Reducer* reducer = compressing() ? reducer_.get() : parallel_.start.get();
    if (reducer != nullptr) {
      TraceRange range("compress", comm_.tag());
      finite = reducer->reduce(gradients, comm, ledger_);
    } else {
      sum_dense(gradients, gradients.flat, comm, ledger_);
    }
  }
  if (levels_ != nullptr) finite = levels_->share(gradients, finite, ledger_);
  if (gradients.control > 0 && finite) control_.read(words);
  if (gradients.control > 0 && !finite) control_.sum_separately(words, comm_, ledger_);
  return finite;
}

void DataParallelOptimizer::reject(const Bucket& bucket) {
  mark_non_finite(bucket);
  for (Parameter* p : bucket.parameters) optimizer_.reject(*p);
}

// Reports the first parameter whose gradient is non-finite here, or in the sum.
void DataParallelOptimizer::mark_non_finite(const Bucket& bucket) {
  for (const Parameter* p : bucket.parameters)
    if (!all_finite(p->grad)) return optimizer_.mark_non_finite(*p);
}

// Returns whether a residual held back a part of p.grad, which momentum must then not delay again.
bool DataParallelOptimizer::from_residual(const Parameter& p) const {
  return parallel_.residual_momentum && compressing() && reducer_->uses_residual(p.name);
}

GradientBucket DataParallelOptimizer::gradients_of(const Bucket& bucket) const {
  const bool last = &bucket == &buckets_.back();
  const int64_t control = parallel_.control_words && last ? ParameterStore::kExtra : 0;
  const Tensor& all = store_.grads_and_extra();
  return {.flat = all.slice(bucket.begin, control > 0 ? all.size() : bucket.end),
          .parameters = bucket.parameters,
          .step = step_,
          .control = control,
          .compressed_steps = std::max<int64_t>(0, step_ - parallel_.compress_start)};
}

// ------------------------------------------------------------- update: the second signal, the end

void DataParallelOptimizer::weights_free(Parameter& p) { optimizer_.weights_free(p); }

StepReport DataParallelOptimizer::finish_step() {
  if (voting()) {
    vote();
    if (!last_micro_step()) return ++micro_step_, StepReport{};
  }
  if (!alone() && last_micro_step()) {
    wait_for_stream();  // until backward has ended on a GPU, too
    if (probes_ != nullptr) probes_->backward_ended();
    optimizer_.zero_missing_gradients();  // other ranks may have computed them
    for (Parameter& p : store_.parameters())
      if (buckets_.index_of(p) >= next_) ready(p);
    if (parallel_.local_clip > 0) clip_locally();
    post_complete_buckets();
    wait_for_exchanges();
  }
  micro_step_ = last_micro_step() ? 0 : micro_step_ + 1;
  StepReport report = optimizer_.finish_step();
  if (report.due) end_step(report);
  return report;
}

// Hands this rank's gradients to the reducer, which writes all of them anew in the exchange.
void DataParallelOptimizer::vote() {
  wait_for_stream();
  for (Parameter& p : store_.parameters())
    if (!std::exchange(p.written, true)) p.grad.fill_zero();
  reducer_->vote(step_, micro_step_, comm_.rank());
}

void DataParallelOptimizer::set_micro_steps(int count) {
  check(voting() && micro_step_ == 0 && count > 0,
        "micro-steps of a step: expected at least 1 and a reducer that votes, found ", count);
  accumulate_ = count;
}

void DataParallelOptimizer::wait_for_exchanges() {
  TraceRange range("wait", "exchanges");
  const double begin = steady_seconds();
  worker_->drain();
  if (probes_ != nullptr) probes_->waited(steady_seconds() - begin);
}

void DataParallelOptimizer::end_step(const StepReport& report) {
  if (alone()) control_.use_own();
  // No sum of this step was applied: what the ranks sent returns to their residuals.
  if (report.skipped && compressing() && reduces())
    for (const Bucket& bucket : buckets_)
      if (bucket.finite) reducer_->return_unapplied(gradients_of(bucket), sources());
  if (probes_ != nullptr) {
    probes_->step_ended(optimizer_.lr(), dense_bytes());
    buckets_.join(probes_->joined());
  }
  ++step_;
  if (parallel_.check_every > 0 && step_ % parallel_.check_every == 0) check_replicas();
}

void DataParallelOptimizer::clip_locally() {
  const double norm = global_norm(store_) / accumulate_;
  if (!std::isfinite(norm)) {  // nothing in this step can be trusted: every bucket is rejected
    for (const Bucket& bucket : buckets_) mark_non_finite(bucket);
    for (Parameter& p : store_.parameters()) fill(p.grad, std::numeric_limits<float>::quiet_NaN());
    return;
  }
  const double limit = parallel_.local_clip * std::sqrt(to_double(comm_.size()));
  explain("clip", "this rank's gradient", [&] {
    return Figures{{"norm", norm}, {"limit", limit}};
  });
  if (norm > limit) scale(store_.grads(), to_float(clip_factor(norm, limit)));
}

// ------------------------------------------------------------------------------- between the steps

void DataParallelOptimizer::post(const std::string& what,
                                 std::function<void(Communicator&, Ledger&)> call) {
  if (alone()) return call(comm_, ledger_);
  worker_->post([this, what, call = std::move(call)] {
    comm_.set_tag(what);
    call(comm_, ledger_);
  });
}

void DataParallelOptimizer::wait() {
  if (!alone()) worker_->drain();
}

void DataParallelOptimizer::check_replicas() {
  if (alone()) return;
  collective("replica check",
             [this](Communicator& comm) { heddle::check_replicas(store_, step_, comm); });
}

int64_t DataParallelOptimizer::dense_bytes() const {
  return 2 * store_.count() * 4 * (sources() - 1) / sources();
}

DataParallelOptimizer::Totals DataParallelOptimizer::totals() const {
  return probes_ == nullptr ? Totals{} : probes_->totals();
}

std::vector<LayerQuality> DataParallelOptimizer::take_quality() {
  return probes_ == nullptr ? std::vector<LayerQuality>{} : probes_->take_quality();
}

std::map<std::string, double> DataParallelOptimizer::figures() const {
  return reducer_ == nullptr ? std::map<std::string, double>{} : reducer_->figures();
}

std::string DataParallelOptimizer::take_note() {
  return reducer_ == nullptr ? std::string{} : reducer_->take_note();
}

DataParallelOptimizer::State DataParallelOptimizer::state() {
  State state;
  state.steps = step_;
  state.hosts = parallel_.hosts;
  state.ledger = ledger_.entries();
  if (reducer_ != nullptr) state.settings = reducer_->choices();
  if (accountant() != nullptr) state.privacy = accountant()->state();
  if (probes_ != nullptr) probes_->save(state);
  return state;
}

void DataParallelOptimizer::restore(const State& state) {
  step_ = state.steps;
  ledger_.restore(state.ledger);
  if (reducer_ != nullptr)
    for (const auto& [parameter, setting] : state.settings)
      if (setting != 0) reducer_->set_choice(parameter, setting);
  if (accountant() != nullptr && state.privacy) accountant()->raise_to(*state.privacy);
  if (probes_ != nullptr) probes_->restore(state);
}

NamedTensors DataParallelOptimizer::named_state() const {
  return reducer_ == nullptr || !reduces() ? NamedTensors{} : reducer_->named_state();
}

}  // namespace heddle
