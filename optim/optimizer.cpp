#include "optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/joined_launches.h"
#include "core/kernels.h"
#include "core/trace.h"
#include "optim/clip.h"

namespace heddle {
namespace {

Figures not_applied() { return {{"not applied: the gradient is non-finite", 0, Unit::none}}; }

// Copies the values before an update that is being explained.
Tensor values_before(const Tensor& values) { return explaining() ? values.clone() : Tensor{}; }

// Describes an update; overwrites `before`.
Figures describe_update(double lr, const Tensor& values, const Tensor& before) {
  axpy(-1, values, before);
  return {{"lr", lr}, {"weight norm", norm(values)}, {"moved by", norm(before)}};
}

}  // namespace

Optimizer::Optimizer(ParameterStore& store, std::unique_ptr<UpdateRule> rule,
                     const OptimizerOptions& options)
    : store_(store), rule_(std::move(rule)), options_(options) {
  check(options.accumulate > 0, "accumulate: expected at least one micro-step, found ",
        options.accumulate);
  check(options.learners > 0, "learners: expected at least one, found ", options.learners);
  check(options.clip_grad_norm >= 0 && std::isfinite(options.clip_grad_norm),
        "clip-grad-norm: expected a number of at least 0, found ", options.clip_grad_norm);
  averaged_ = to_double(options.accumulate) * options.learners;
  check(rule_ != nullptr, "optimizer: expected an update rule, found none");
  rule_->attach(store);
  // On CUDA a check of each gradient makes the host wait once per parameter, the norm only once.
  deferred_ = options.clip_grad_norm > 0 || options.on_nonfinite == OnNonfinite::step ||
              store.values().device().is_cuda();
  counters_ = Tensor::empty_on(Device{}, {2}, DType::i64);
  counters_.fill_zero();

  const auto& created = store.parameters();
  for (auto p = created.rbegin(); p != created.rend(); ++p) in_memory_order_.push_back(&*p);
}

void Optimizer::begin_step(double lr) {
  check(lr >= 0 && std::isfinite(lr), "learning rate: expected a number of at least 0, found ", lr);
  lr_ = lr;
  begun_ = true;
  progress_.clear();
  updated_ = non_finite_ = 0;
  first_non_finite_.clear();
  if (micro_step_ == 0) store_.begin_step();
}

UpdateInput Optimizer::input(bool from_residual, double clip) const {
  return {.lr = lr_,
          .grad_scale = clip / averaged_,
          .step = steps() + 1,
          .from_residual = from_residual};
}

void Optimizer::ready(Parameter& p, bool from_residual) {
  signal(p, {.ready = true, .from_residual = from_residual});
}

void Optimizer::weights_free(Parameter& p) { signal(p, {.free = true}); }

void Optimizer::reject(Parameter& p) {
  std::lock_guard lock(mutex_);
  progress_[&p].updated = true;
  count_non_finite(p);
  explain("update", p.name, not_applied);
}

void Optimizer::mark_non_finite(const Parameter& p) {
  std::lock_guard lock(mutex_);
  if (first_non_finite_.empty()) first_non_finite_ = p.name;
}

// Needs the mutex, unless no other thread signals any more.
void Optimizer::count_non_finite(const Parameter& p) {
  ++non_finite_;
  if (first_non_finite_.empty()) first_non_finite_ = p.name;
}

void Optimizer::signal(Parameter& p, const Progress& news) {
  if (!store_.owns(p)) return;
  bool from_residual;
  {
    std::lock_guard lock(mutex_);
    Progress& progress = progress_[&p];
    check(!news.ready || !progress.updated, p.name,
          ": a second gradient after its update: call begin_step, add the losses, or accumulate");
    progress.ready |= news.ready;
    progress.free |= news.free;
    from_residual = progress.from_residual |= news.from_residual;
    // A gradient that no closure wrote is stale memory; finish_step sets it to zero.
    if (!progress.ready || !progress.free || progress.updated || !p.written || deferred_ ||
        !last_micro_step())
      return;
    progress.updated = true;
  }
  update_one(p, from_residual);
  if (on_update_) on_update_(p);
}

void Optimizer::update_one(Parameter& p, bool from_residual) {
  TraceRange range("update", p.name);
  const bool finite = all_finite(p.grad);
  const Tensor before = values_before(p.value);
  if (finite) rule_->update(p, input(from_residual));
  explain("update", p.name, [&] {
    if (!finite) return not_applied();
    Figures figures = describe_update(lr_, p.value, before);
    if (from_residual) figures.push_back({"its gradient came from a residual", 0, Unit::none});
    return figures;
  });
  std::lock_guard lock(mutex_);
  if (finite)
    ++updated_;
  else
    count_non_finite(p);
}

// Updates the remaining parameters one by one at the end of a step.
void Optimizer::update_rest() {
  for (Parameter& p : store_.parameters())
    if (Progress& progress = progress_[&p]; !std::exchange(progress.updated, true))
      update_one(p, progress.from_residual);
}

// Updates everything at the end of a step whose gradients are finite. Neighbours in memory with the
// same decay and origin are updated by one call.
void Optimizer::update_all(double clip) {
  const auto& order = in_memory_order_;
  const bool sparse =
      std::ranges::any_of(order, [](const Parameter* p) { return p->touched_rows.has_value(); });
  const auto kind = [&](const Parameter* p) {
    return std::pair(rule_->decays(*p), progress_[p].from_residual);
  };
  JoinedLaunches joined;
  for (size_t first = 0, next; first < order.size(); first = next) {
    const auto [decay, from_residual] = kind(order[first]);
    next = first + 1;
    while (!sparse && next < order.size() && kind(order[next]) == kind(order[first])) ++next;
    const Parameter& last = *order[next - 1];
    if (sparse)
      rule_->update(last, input(from_residual, clip));
    else
      rule_->update_range(order[first]->offset, last.offset + last.size(), decay,
                          input(from_residual, clip));
  }
  joined.launch();
}

void Optimizer::zero_missing_gradients() {
  for (Parameter& p : store_.parameters()) {
    if (p.written) continue;
    p.grad.fill_zero();
    p.written = true;
    if (named_missing_.insert(p.name).second && options_.log)
      options_.log(concat("parameter ", p.name, ": no gradient",
                          options_.learners > 1 ? " on this rank" : "",
                          " in this step; zero is used"));
  }
}

void Optimizer::finish_deferred(StepReport& report) {
  report.grad_norm =
      non_finite_ > 0 ? std::numeric_limits<double>::quiet_NaN() : global_norm(store_) / averaged_;
  if (std::isfinite(report.grad_norm)) {
    TraceRange range("update", "all");
    const double clip =
        options_.clip_grad_norm > 0 ? clip_factor(report.grad_norm, options_.clip_grad_norm) : 1.0;
    report.clip = clip;
    const Tensor before = values_before(store_.values());
    update_all(clip);
    updated_ = std::ssize(store_.parameters());
    explain("update", "all parameters", [&] {
      Figures figures = describe_update(lr_, store_.values(), before);
      figures.push_back({"gradient norm", report.grad_norm});
      figures.push_back({"scaled to", 100 * clip, Unit::percent});
      const auto held = std::ranges::count_if(
          progress_, [](const auto& entry) { return entry.second.from_residual; });
      figures.push_back({"gradients from a residual", to_double(held), Unit::count});
      return figures;
    });
  } else if (options_.on_nonfinite == OnNonfinite::bucket && options_.clip_grad_norm == 0) {
    update_rest();
  } else {
    auto& all = store_.parameters();  // backward reaches the last first
    for (auto p = all.rbegin(); p != all.rend(); ++p)
      if (!progress_[&*p].updated && !all_finite(p->grad)) count_non_finite(*p);
    explain("update", "all parameters", not_applied);
  }
}

StepReport Optimizer::finish_step() {
  check(std::exchange(begun_, false), "finish_step: expected begin_step before each step");
  StepReport report;
  if (!last_micro_step()) {
    ++micro_step_;
    return report;
  }
  micro_step_ = 0;
  zero_missing_gradients();
  if (deferred_)
    finish_deferred(report);
  else
    update_rest();
  report.due = true;
  report.skipped = updated_ == 0 && non_finite_ > 0;
  report.skipped_parameters = non_finite_;
  report.first_skipped = first_non_finite_;
  ++counters_.data<int64_t>()[report.skipped ? 1 : 0];
  return report;
}

std::vector<std::pair<std::string, Tensor>> Optimizer::named_state() const {
  auto out = rule_->named_state();
  out.emplace_back("optimizer.steps", counters_);
  return out;
}

}  // namespace heddle
