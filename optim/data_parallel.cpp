#include "optim/data_parallel.h"

#define XXH_INLINE_ALL
#define XXH_NO_XXH3
#include <xxhash.h>

#include <algorithm>

#include "core/trace.h"

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
                                             const DataParallelOptions& parallel)
    : store_(store),
      comm_(comm),
      parallel_(parallel),
      log_(options.log),
      accumulate_(options.accumulate),
      optimizer_(store, std::move(rule), averaging(options, comm.size())) {
  check(parallel.bucket_bytes > 0, "bucket size: expected at least one byte, found ",
        parallel.bucket_bytes);
  if (alone()) return;
  make_buckets(parallel.bucket_bytes);
  comm_.set_tag("parameters");
  comm_.broadcast(store.values(), 0);
  worker_ = std::make_unique<CommWorker>(Context::current());
}

void DataParallelOptimizer::make_buckets(int64_t bytes) {
  std::vector<Parameter*> order;
  for (Parameter& p : store_.parameters()) order.push_back(&p);
  std::sort(order.begin(), order.end(),
            [](const Parameter* a, const Parameter* b) { return a->offset < b->offset; });
  for (Parameter* p : order) {
    if (buckets_.empty() || (buckets_.back().end - buckets_.back().begin) * 4 >= bytes)
      buckets_.push_back({p->offset, p->offset, {}});
    Bucket& bucket = buckets_.back();
    bucket.end = p->offset + p->size();
    bucket.parameters.push_back(p);
    bucket_of_[p] = buckets_.size() - 1;
  }
}

void DataParallelOptimizer::event(const char* what, size_t bucket) {
  if (parallel_.on_event) parallel_.on_event(what, static_cast<int>(bucket));
}

void DataParallelOptimizer::begin_step(double lr) {
  std::lock_guard lock(mutex_);
  optimizer_.begin_step(lr);
  next_ = 0;
  ready_.clear();
  for (Bucket& bucket : buckets_) bucket.open = bucket.parameters.size();
}

void DataParallelOptimizer::ready(Parameter& p) {
  if (alone()) return optimizer_.ready(p);
  // Announced without a gradient (a branch that the loss does not reach): finish_step sets it to 0.
  if (!last_micro_step() || !p.written || !ready_.insert(&p).second) return;
  const size_t index = bucket_of_.at(&p);
  event("ready", index);
  --buckets_[index].open;
  if (parallel_.overlap) flush();
}

// Sends off every complete bucket whose turn it is.
void DataParallelOptimizer::flush() {
  for (; next_ < buckets_.size() && buckets_[next_].open == 0; ++next_)
    worker_->post([this, index = next_] { exchange(index); });
}

// On the worker's thread.
void DataParallelOptimizer::exchange(size_t index) {
  const Bucket& bucket = buckets_[index];
  event("exchange", index);
  comm_.set_tag(concat("bucket ", index));
  comm_.set_step(step_);
  comm_.all_reduce(store_.grads().slice(bucket.begin, bucket.end));
  event("reduced", index);
  std::lock_guard lock(mutex_);
  for (Parameter* p : bucket.parameters) {
    p->touched_rows.reset();  // other ranks had other rows
    optimizer_.ready(*p);
  }
}

void DataParallelOptimizer::weights_free(Parameter& p) {
  std::lock_guard lock(mutex_);
  optimizer_.weights_free(p);
}

StepReport DataParallelOptimizer::finish_step() {
  if (!alone() && last_micro_step()) {
    for (Parameter& p : store_.parameters()) {
      if (!p.written) {  // others may have a gradient for it
        p.grad.fill_zero();
        p.written = true;
        if (named_missing_.insert(p.name).second && log_)
          log_("parameter " + p.name + ": no gradient on this rank in this step, zero is used");
      }
      ready(p);
    }
    flush();
    TraceRange range("wait", "exchanges");
    const double begin = steady_seconds();
    worker_->drain();
    exposed_seconds_ += steady_seconds() - begin;
  }
  micro_step_ = last_micro_step() ? 0 : micro_step_ + 1;
  const StepReport report = optimizer_.finish_step();
  if (report.due) {
    ++step_;
    if (!alone() && parallel_.check_every > 0 && step_ % parallel_.check_every == 0)
      check_replicas();
  }
  return report;
}

int64_t DataParallelOptimizer::dense_bytes() const {
  return 2 * store_.count() * 4 * (comm_.size() - 1) / comm_.size();
}

void DataParallelOptimizer::collective(const std::function<void(Communicator&)>& call) {
  if (alone()) return call(comm_);
  worker_->post([this, &call] { call(comm_); });
  worker_->drain();
}

void DataParallelOptimizer::check_replicas() {
  if (alone()) return;
  const auto& parameters = store_.parameters();
  const auto count = std::ssize(parameters);
  const Tensor mine = Tensor::empty_on(Device{}, {count}, DType::i64);
  const Tensor all = Tensor::empty_on(Device{}, {comm_.size(), count}, DType::i64);
  for (int64_t i = 0; i < count; ++i) {
    const Tensor values = parameters[static_cast<size_t>(i)].value.to(Device{});
    mine.data<int64_t>()[i] =
        static_cast<int64_t>(XXH64(values.raw(), static_cast<size_t>(values.bytes()), 0));
  }
  collective([&](Communicator& comm) {
    comm.set_tag("replica check");
    comm.all_gather(mine, all);
  });
  for (int64_t i = 0; i < count; ++i)
    for (int r = 1; r < comm_.size(); ++r)
      if (all.data<int64_t>()[r * count + i] != all.data<int64_t>()[i])
        throw Error(concat("step ", step_,
                           ": the replicas differ: ", parameters[static_cast<size_t>(i)].name,
                           " on rank ", r, " is not what it is on rank 0"));
}

}  // namespace heddle
