#include "optim/data_parallel.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "comm/link_cost.h"
#include "core/hash.h"
#include "core/kernels.h"
#include "core/streams.h"
#include "core/trace.h"
#include "optim/clip.h"

namespace heddle {
namespace {

// The sum over ranks becomes the mean by the factor that averages micro-steps.
OptimizerOptions averaging(const OptimizerOptions& options, int ranks) {
  OptimizerOptions out = options;
  out.learners = ranks;
  return out;
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
      log_(options.log),
      accumulate_(options.accumulate),
      outside_(comm.total_traffic()),
      reducer_(std::move(reducer)),
      optimizer_(store, std::move(rule), averaging(options, comm.size())) {
  check(parallel.bucket_bytes > 0, "bucket size: expected at least one byte, found ",
        parallel.bucket_bytes);
  if (comm.size() == 1 && reducer_ == nullptr) return;
  cut(parallel.bucket_bytes);
  make_buckets(std::vector<bool>(cuts_.size(), false));
  worker_ = std::make_unique<CommWorker>(Context::current());
  if (parallel.broadcast)
    collective("parameters", [&](Communicator& c) { c.broadcast(store.values(), 0); });
  watch_reducer();
}

// Whatever looks at what is compressed, or decides it.
void DataParallelOptimizer::watch_reducer() {
  const DataParallelOptions& parallel = parallel_;
  if (parallel.planner.every == 0 && parallel.shadow_every == 0 && parallel.chooser.every == 0)
    return;
  auto* compressed = dynamic_cast<CompressedReducer*>(reducer_.get());
  check(compressed != nullptr,
        "layer plans, exchange choices and the quality meter need a reducer that compresses");
  check(parallel.planner.every == 0 || parallel.chooser.every == 0,
        "either layer plans or exchange choices, not both");
  const int64_t steady = parallel.compress_start + compressed->ramp();
  if (parallel.planner.every > 0)
    planner_ = std::make_unique<LayerPlanner>(*compressed, parallel.planner, steady);
  if (parallel.shadow_every > 0) meter_ = std::make_unique<QualityMeter>(*compressed);
  if (parallel.chooser.every == 0) return;
  std::vector<std::vector<std::string>> names;
  for (const auto& parameters : cuts_)
    for (names.emplace_back(); const Parameter* p : parameters) names.back().push_back(p->name);
  ExchangeChooserOptions options = parallel.chooser;
  collective("latency", [&](Communicator& comm) { options.latency_s = measure_latency(comm); });
  chooser_ = std::make_unique<ExchangeChooser>(*compressed, std::move(names), options, steady);
}

void DataParallelOptimizer::cut(int64_t bytes) {
  std::vector<Parameter*> order;
  for (Parameter& p : store_.parameters()) order.push_back(&p);
  std::ranges::sort(order, {}, &Parameter::offset);
  int64_t filled = bytes;
  for (Parameter* p : order) {
    if (filled >= bytes) cuts_.emplace_back();
    cuts_.back().push_back(p);
    filled = (p->offset + p->size() - cuts_.back().front()->offset) * 4;
  }
}

// Of the cuts, joined[i] with the one before it.
void DataParallelOptimizer::make_buckets(const std::vector<bool>& joined) {
  joined_ = joined;
  buckets_.clear();
  for (size_t i = 0; i < cuts_.size(); ++i) {
    const int64_t begin = cuts_[i].front()->offset;
    if (!joined[i]) buckets_.push_back({begin, begin, {}});
    for (Parameter* p : cuts_[i]) {
      Bucket& bucket = buckets_.back();
      bucket.end = p->offset + p->size();
      bucket.parameters.push_back(p);
      bucket_of_[p] = buckets_.size() - 1;
    }
  }
}

// A point on a bucket's way through the trace.
void DataParallelOptimizer::arrow(Trace::Flow point, const char* track, size_t bucket) {
  const auto index = static_cast<int64_t>(bucket);
  Context::current().trace().flow(point, track, step_ * std::ssize(cuts_) + index);
}

void DataParallelOptimizer::event(const char* what, size_t bucket) {
  if (parallel_.on_event) parallel_.on_event(what, static_cast<int>(bucket));
}

void DataParallelOptimizer::begin_step(double lr) {
  optimizer_.begin_step(lr);
  next_ = 0;
  ready_.clear();
  if (chooser_ != nullptr) chooser_->begin_step();
  for (Bucket& bucket : buckets_) bucket.open = bucket.parameters.size();
}

void DataParallelOptimizer::ready(Parameter& p) {
  if (alone()) return void(optimizer_.ready(p));
  // Announced without a gradient (a branch that the loss does not reach): finish_step sets it to 0.
  if (!last_micro_step() || !p.written || !ready_.insert(&p).second) return;
  const size_t index = bucket_of_.at(&p);
  event("ready", index);
  if (--buckets_[index].open == 0) {
    arrow(Trace::Flow::begin, "backward", index);
    if (explaining()) explain_bucket(index);
  }
  if (parallel_.overlap && parallel_.local_clip == 0) flush();
}

void DataParallelOptimizer::explain_bucket(size_t index) const {
  const Bucket& bucket = buckets_[index];
  const auto elements = static_cast<double>(bucket_gradients(bucket).flat.size());
  explain("bucket", concat("bucket ", index), [&] {
    return Figures{{"parameters", static_cast<double>(bucket.parameters.size()), Unit::count},
                   {"elements", elements, Unit::count},
                   {"bytes", elements * 4, Unit::bytes}};
  });
}

// Sends off every complete bucket whose turn it is.
void DataParallelOptimizer::flush() {
  for (; next_ < buckets_.size() && buckets_[next_].open == 0; ++next_) {
    if (chooser_ != nullptr) chooser_->ready(next_);
    worker_->post([this, index = next_] { exchange(index); });
  }
}

// On the worker's thread.
void DataParallelOptimizer::exchange(size_t index) {
  const Bucket& bucket = buckets_[index];
  comm_.set_tag(concat("bucket ", index));
  comm_.set_step(step_);
  wait_for_stream();  // for backward on a GPU, which is no part of the times below
  // The meter looks before the exchange and after it: its time is none of it.
  const bool metered =
      meter_ != nullptr && compressing() && (step_ + 1) % parallel_.shadow_every == 0;
  const auto look = [&](auto&& at) {
    if (!metered) return;
    const double looked = steady_seconds();
    at();
    meter_s_ += steady_seconds() - looked;
  };
  look([&] { meter_->before(bucket_gradients(bucket), comm_, ledger_); });
  event("exchange", index);
  const bool trial = chooser_ != nullptr && chooser_->measuring();
  const CollectiveTraffic traffic_before = trial ? comm_.traffic() : CollectiveTraffic{};
  const double begin = steady_seconds();
  arrow(Trace::Flow::pass, "comm", index);
  const double thread_begin = thread_seconds(), comm_begin = ledger_.seconds();
  const int64_t sent_before = totals_.dense_sent + totals_.compressed_sent;
  const bool finite = sum(bucket);
  wait_for_stream();  // for what a GPU decodes, which is
  const double seconds = steady_seconds() - begin, comm_s = ledger_.seconds() - comm_begin;
  totals_.exchange_s += seconds;
  if (trial) {
    // In virtual time a thread waits for others, which no clock of the model sees.
    const double code_s = comm_.virtual_time() ? thread_seconds() - thread_begin : seconds - comm_s;
    chooser_->exchanged(index, code_s, comm_s, latencies_since(traffic_before));
  }
  look([&] { meter_->after(comm_, ledger_, finite); });
  totals_.rejected += !finite;
  buckets_[index].accepted = finite;
  event("reduced", index);
  explain("summed", comm_.tag(), [&] {
    const int64_t sent = totals_.dense_sent + totals_.compressed_sent - sent_before;
    return Figures{{compressing() ? "compressed" : "dense", 0, Unit::none},
                   {finite ? "over the ranks" : "refused: not finite", 0, Unit::none},
                   {"sent", static_cast<double>(sent), Unit::bytes},
                   {"took", seconds, Unit::seconds},
                   {"of it in collectives", comm_s, Unit::seconds}};
  });
  if (!finite) blame(bucket);
  for (Parameter* p : bucket.parameters) {
    p->touched_rows.reset();  // other ranks had other rows
    if (!finite)
      optimizer_.reject(*p);
    else if (optimizer_.ready(*p, from_residual(*p)))
      finish_arrow(*p);
  }
}

bool DataParallelOptimizer::from_residual(const Parameter& p) const {
  return parallel_.residual_momentum && compressing() && reducer_->holds_back(p.name);
}

// Of the messages of this bucket, since `before`.
double DataParallelOptimizer::latencies_since(const CollectiveTraffic& before) const {
  double sum = 0;
  for (const auto& [key, now] : comm_.traffic()) {
    const auto found = before.find(key);
    const Traffic old = found == before.end() ? Traffic{} : found->second;
    if (key.second != comm_.tag() || now.calls == old.calls) continue;
    const auto calls = static_cast<double>(now.calls - old.calls);
    const auto sent = static_cast<double>(now.sent - old.sent) / calls;
    // The ranks of a broadcast send different numbers of bytes; all but the root receive the
    // payload.
    const double bytes = key.first == "broadcast"
                             ? static_cast<double>(now.received - old.received) / calls
                             : payload_of_sent(key.first, sent, comm_.size());
    sum += calls * latencies(key.first, bytes, comm_.size());
  }
  return sum;
}

// False when a rank's gradients are not finite and the algorithm has noticed: a dense sum leaves
// that to the optimizer, which sees NaN.
bool DataParallelOptimizer::sum(const Bucket& bucket) {
  if (has_control(bucket)) write_control_words();
  const GradientBucket gradients = bucket_gradients(bucket);
  const int64_t before = comm_.total_traffic().sent;
  bool finite = true;
  if (compressing()) {
    TraceRange range("compress", comm_.tag());
    finite = reducer_->reduce(gradients, comm_, ledger_);
  } else {
    sum_dense(gradients, gradients.flat, comm_, ledger_);
  }
  (compressing() ? totals_.compressed_sent : totals_.dense_sent) +=
      comm_.total_traffic().sent - before;
  if (has_control(bucket)) read_control_words(finite);
  return finite;
}

void DataParallelOptimizer::weights_free(Parameter& p) {
  if (optimizer_.weights_free(p) && !alone()) finish_arrow(p);
}

// On the thread that has updated p: a bucket's arrow ends at its first parameter's update.
void DataParallelOptimizer::finish_arrow(const Parameter& p) {
  const size_t index = bucket_of_.at(&p);
  if (buckets_[index].parameters.front() == &p) arrow(Trace::Flow::end, "update", index);
}

StepReport DataParallelOptimizer::finish_step() {
  if (!alone() && last_micro_step()) {
    wait_for_stream();  // until backward has ended on a GPU, too
    if (chooser_ != nullptr) chooser_->backward_ended();
    for (Parameter& p : store_.parameters()) {
      if (!p.written) {  // others may have a gradient for it
        p.grad.fill_zero();
        p.written = true;
        if (named_missing_.insert(p.name).second && log_)
          log_("parameter " + p.name + ": no gradient on this rank in this step, zero is used");
      }
      ready(p);
    }
    if (parallel_.local_clip > 0) clip_locally();
    flush();
    TraceRange range("wait", "exchanges");
    const double begin = steady_seconds();
    worker_->drain();
    // As long as it would have been without the meter's looks, which end a step later.
    const double waited = std::max(0.0, steady_seconds() - begin - std::exchange(meter_s_, 0.0));
    totals_.exposed_s += waited;
    explain("wait", "exchanges", [&] { return Figures{{"waited", waited, Unit::seconds}}; });
  }
  micro_step_ = last_micro_step() ? 0 : micro_step_ + 1;
  StepReport report = optimizer_.finish_step();
  if (report.due && alone()) std::copy(own_words_.begin(), own_words_.end(), words_.begin());
  if (report.due) {
    if (report.skipped && compressing())
      for (const Bucket& bucket : buckets_)
        if (bucket.accepted) reducer_->take_back(bucket_gradients(bucket), comm_.size());
    ++(compressing() ? totals_.compressed_steps : totals_.dense_steps);
    ++step_;
    if (planner_ != nullptr)
      planner_->finish_step(step_, optimizer_.lr(),
                            [this](const auto& what, const auto& call) { collective(what, call); });
    if (chooser_ != nullptr && step_ >= parallel_.compress_start)
      chooser_->finish_step(step_,
                            [this](const auto& what, const auto& call) { collective(what, call); });
    if (chooser_ != nullptr && chooser_->joined() != joined_) make_buckets(chooser_->joined());
    if (!alone() && parallel_.check_every > 0 && step_ % parallel_.check_every == 0)
      check_replicas();
  }
  return report;
}

std::vector<LayerQuality> DataParallelOptimizer::take_quality() {
  return meter_ == nullptr ? std::vector<LayerQuality>{} : meter_->take();
}

int64_t DataParallelOptimizer::dense_bytes() const {
  return 2 * store_.count() * 4 * (comm_.size() - 1) / comm_.size();
}

GradientBucket DataParallelOptimizer::bucket_gradients(const Bucket& bucket) const {
  const int64_t since = step_ - parallel_.compress_start;
  if (!has_control(bucket))
    return {store_.grads().slice(bucket.begin, bucket.end), bucket.parameters, step_, 0, since};
  const Tensor& all = store_.grads_and_extra();
  return {all.slice(bucket.begin, all.size()), bucket.parameters, step_, ParameterStore::kExtra,
          since};
}

void DataParallelOptimizer::write_control_words() {
  const Tensor words = Tensor::empty_on(Device{}, {ParameterStore::kExtra});
  std::copy(own_words_.begin(), own_words_.end(), words.data<float>());
  const Tensor& all = store_.grads_and_extra();
  all.slice(all.size() - ParameterStore::kExtra, all.size()).copy_from(words);
}

void DataParallelOptimizer::read_control_words(bool accepted) {
  const Tensor& all = store_.grads_and_extra();
  const Tensor words = all.slice(all.size() - ParameterStore::kExtra, all.size());
  const Tensor host = words.to(Device{}).clone();
  if (!accepted) {  // nor were the words exchanged: a signal must be heard nevertheless
    std::copy(own_words_.begin(), own_words_.end(), host.data<float>());
    ledger_.book(comm_, {{kControlWords, PayloadKind::control, 0}},
                 [&] { comm_.all_reduce(host); });
  }
  for (size_t i = 0; i < kWords; ++i) words_[i] = host.data<float>()[i];
  words.fill_zero();
}

// Of a bucket that was refused: the first whose gradient is not finite here, or in the sum.
void DataParallelOptimizer::blame(const Bucket& bucket) {
  for (const Parameter* p : bucket.parameters)
    if (!all_finite(p->grad)) return optimizer_.blame(*p);
}

void DataParallelOptimizer::clip_locally() {
  const double norm = global_norm(store_) / accumulate_;
  if (!std::isfinite(norm)) {  // then nothing of this step can be trusted: every bucket is refused
    for (const Bucket& bucket : buckets_) blame(bucket);
    for (Parameter& p : store_.parameters()) fill(p.grad, std::numeric_limits<float>::quiet_NaN());
    return;
  }
  const double limit = parallel_.local_clip * std::sqrt(static_cast<double>(comm_.size()));
  explain("clip", "this rank's gradient", [&] {
    return Figures{{"norm", norm}, {"limit", limit}};
  });
  if (norm > limit) scale(store_.grads(), static_cast<float>(clip_factor(norm, limit)));
}

DataParallelOptimizer::Totals DataParallelOptimizer::totals() const {
  Totals totals = totals_;
  totals.traffic = comm_.total_traffic();
  totals.traffic.sent += before_.traffic.sent - outside_.sent;
  totals.traffic.received += before_.traffic.received - outside_.received;
  totals.traffic.calls += before_.traffic.calls - outside_.calls;
  totals.collective_s = before_.collective_s + ledger_.seconds();
  return totals;
}

DataParallelOptimizer::State DataParallelOptimizer::state() {
  State state{.steps = step_,
              .totals = totals(),
              .ledger = ledger_.entries(),
              .settings = {},
              .planner = {}};
  if (reducer_ != nullptr) state.settings = reducer_->choices();
  if (planner_ != nullptr) state.planner = planner_->state();
  return state;
}

void DataParallelOptimizer::restore(const State& state) {
  step_ = state.steps;
  totals_ = before_ = state.totals;
  ledger_.restore(state.ledger);
  if (reducer_ != nullptr)
    for (const auto& [parameter, setting] : state.settings)
      if (setting != 0) reducer_->set_choice(parameter, setting);
  if (chooser_ != nullptr) chooser_->resume(step_);
  if (planner_ != nullptr) planner_->restore(step_, state.planner.value_or(LayerPlannerState{}));
}

NamedTensors DataParallelOptimizer::named_state() const {
  return reducer_ == nullptr ? NamedTensors{} : reducer_->named_state();
}

void DataParallelOptimizer::collective(const std::string& what,
                                       const std::function<void(Communicator&)>& call) {
  if (alone()) return call(comm_);
  worker_->post([this, &what, &call] {
    comm_.set_tag(what);
    ledger_.book(comm_, {{what, PayloadKind::control, 0}}, [&] { call(comm_); });
  });
  worker_->drain();
}

void DataParallelOptimizer::check_replicas() {
  if (alone()) return;
  const auto& parameters = store_.parameters();
  std::vector<uint64_t> hashes;
  for (const Parameter& parameter : parameters) {
    const Tensor values = parameter.value.to(Device{});
    hashes.push_back(hash_bytes(values.raw(), static_cast<size_t>(values.bytes())));
  }
  std::vector<std::vector<uint64_t>> all;
  collective("replica check", [&](Communicator& comm) { all = gather_values(comm, hashes); });
  for (size_t i = 0; i < hashes.size(); ++i)
    for (size_t r = 1; r < all.size(); ++r)
      if (all[r][i] != all[0][i])
        throw Error(concat("step ", step_, ": the replicas differ: ", parameters[i].name,
                           " on rank ", r, " is not what it is on rank 0"));
}

}  // namespace heddle
