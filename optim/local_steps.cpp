#include "optim/local_steps.h"

#include <algorithm>
#include <cmath>

#include "core/kernels.h"
#include "optim/replica_check.h"

namespace heddle {

LocalSteps::LocalSteps(ParameterStore& store, std::unique_ptr<UpdateRule> rule,
                       const OptimizerOptions& options, const LocalStepsOptions& local,
                       const MakeOuter& make_outer)
    : store_(store), local_(local), inner_(store, std::move(rule), options) {
  check(local.every > 0, "local steps: expected at least one in a round, found ", local.every);
  check(local.outer_lr > 0 && std::isfinite(local.outer_lr),
        "outer learning rate: expected a number above 0, found ", local.outer_lr);
  check(local.delay >= 0 && local.delay < local.every, "delay of an exchange: expected 0 to ",
        local.every - 1, " steps, fewer than a round has, found ", local.delay);
  for (const Parameter& p : store.parameters())
    anchors_.emplace(&p, &anchor_.add(p.name, p.shape(), constant_init(0)));
  anchor_.finalize(0);
  outer_ = make_outer(anchor_);
  outer_->collective("parameters", [&](Communicator& c) { broadcast_replica(store, c); });
  if (local.delay > 0) left_ = store.values().clone();
  begin_anew();
  inner_.on_update([this](const Parameter& p) {
    if (exchanging_) hand_over(p);
  });
}

void LocalSteps::begin_step(double lr) {
  inner_.begin_step(lr);
  if (exchanging_ || !ends_round()) return;
  outer_->begin_step(local_.outer_lr);
  exchanging_ = true;
}

// Gives the outer optimizer the change of a parameter whose value is that of the round's end.
void LocalSteps::hand_over(const Parameter& p) {
  Parameter& anchor = *anchors_.at(&p);
  if (anchor.written) return;
  // left_ is the anchor once the exchange before has moved the weights, and their base until then.
  anchor.grad.copy_from(left_.defined()
                            ? left_.slice(p.offset, p.offset + p.value.size()).reshape(p.shape())
                            : anchor.value);
  axpy(-1, p.value, anchor.grad);
  anchor.written = true;
  anchor.uses_per_sample = p.uses_per_sample;
  outer_->ready(anchor);
  outer_->weights_free(anchor);
}

StepReport LocalSteps::finish_step() {
  StepReport report = inner_.finish_step();
  if (!report.due) return report;
  landed_ = false;
  if (exchanging_) {
    for (const Parameter& p : store_.parameters()) hand_over(p);  // updated at the end, or skipped
    exchanged_at_ = step_ + 1;
    exchanging_ = false;
    in_flight_ = waiting_ = true;
    if (left_.defined()) left_.copy_from(store_.values());
    if (explaining() && local_.delay > 0) wait();  // the notes are of this step
  }
  // Before a short last round, too: it begins where the one before has ended.
  if (waiting_ && (step_ + 1 == exchanged_at_ + local_.delay ||
                   (local_.last_step >= 0 && step_ + 2 >= local_.last_step)))
    land();
  if (landed_) {
    report.skipped_parameters =
        std::max(report.skipped_parameters, outer_report_.skipped_parameters);
    if (report.first_skipped.empty()) report.first_skipped = outer_report_.first_skipped;
  }
  ++step_;
  summed_ = !landed_ && exchanged_at_ < step_ && step_ % local_.every % kWordsEvery == 0 &&
            learners() > 1;
  if (summed_)
    post("control words", [this](Communicator& comm, Ledger& ledger) {
      words_.sum_separately(Tensor::zeros({to_int64(ControlWords::kCount)}), comm, ledger);
    });
  if (posted_) wait();  // for what was posted within a round
  if (!in_flight_ && ends_round()) {
    totals_ = totals();
    if (left_.defined()) ledger_ = ledger();
  }
  return report;
}

// Waits for the exchange in flight, and moves the anchor.
void LocalSteps::settle() {
  if (!std::exchange(in_flight_, false)) return;
  outer_report_ = outer_->finish_step();
  const Totals now = totals();
  (now.compressed_steps > totals_.compressed_steps ? compressed_alone_ : dense_alone_) +=
      exchanged_at_ - now.dense_steps - now.compressed_steps;
}

// Moves the weights as the exchange has moved those that this rank had at the end of the round.
void LocalSteps::land() {
  settle();
  waiting_ = false;
  landed_ = true;
  const Tensor& w = store_.values();
  const bool ahead = step_ + 1 > exchanged_at_;
  if (ahead) {
    axpy(-1, left_, w);
    axpy(1, anchor_.values(), w);
  }
  const bool broken = ahead ? !all_finite(w) : outer_report_.skipped_parameters > 0;
  if (!ahead || broken) w.copy_from(anchor_.values());
  if (left_.defined()) left_.copy_from(anchor_.values());
  if (broken)
    for (const auto& [name, x] : inner_.rule().named_state())
      if (!all_finite(x)) x.fill_zero();
}

void LocalSteps::begin_anew() {
  anchor_.values().copy_from(store_.values());
  if (left_.defined()) left_.copy_from(store_.values());
  waiting_ = false;
}

void LocalSteps::use_own() {
  if (own_.defined()) store_.values().copy_from(own_);
  own_ = {};
}

void LocalSteps::use_shared() {
  settle();
  own_ = store_.values().clone();
  store_.values().copy_from(anchor_.values());
}

void LocalSteps::wait() {
  const double begin = steady_seconds();
  outer_->wait();
  if (in_flight_) exposed_s_ += steady_seconds() - begin;
  posted_ = false;
}

LocalSteps::Totals LocalSteps::totals() const {
  if (in_flight_) return totals_;
  Totals all = outer_->totals();
  all.exposed_s += exposed_s_;
  all.dense_steps += dense_alone_;
  all.dense_local += dense_alone_;
  all.dense_of_dense += dense_alone_ * dense_bytes();
  all.compressed_steps += compressed_alone_;
  all.compressed_local += compressed_alone_;
  all.dense_of_compressed += compressed_alone_ * dense_bytes();
  return all;
}

LocalSteps::State LocalSteps::state() {
  settle();
  State state = outer_->state();
  state.steps = step_;
  state.totals = totals();
  return state;
}

void LocalSteps::restore(const State& state) {
  step_ = state.steps;
  exchanged_at_ = state.totals.dense_steps + state.totals.compressed_steps;
  State rounds = state;
  rounds.steps = step_ / local_.every;
  outer_->restore(rounds);
  totals_ = totals();
  ledger_ = ledger();
  begin_anew();  // the weights that were saved for all are the anchor
  waiting_ = exchanged_at_ > 0 && step_ < exchanged_at_ + local_.delay;
}

NamedTensors LocalSteps::named_state() const {
  NamedTensors state;
  for (const Parameter& p : store_.parameters()) state.emplace_back("weights." + p.name, p.value);
  if (left_.defined()) state.emplace_back("left", left_);
  for (const auto& [name, x] : inner_.named_state()) state.emplace_back("rule." + name, x);
  for (const auto& [name, x] : outer_->optimizer().named_state())
    state.emplace_back("outer." + name, x);
  for (const auto& tensor : outer_->named_state()) state.push_back(tensor);
  return state;
}

}  // namespace heddle
