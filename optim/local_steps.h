// LocalSteps: learners that train on their own for some steps, and then exchange how far they came.
// Each updates its own weights; every `every` steps, and in the last step of the run, the mean of
// all changes since the last exchange is applied to the anchor, weights that all learners share,
// from which all continue. A slow network carries 1 / every of the bytes, and its latency is paid
// as seldom.
//
//   a round:  w = anchor
//             `every` times w -= lr * u (SGD, Adam), for each learner with its own batches
//             outer gradient g = anchor - w, summed over the ranks, compressed if so chosen
//             anchor: one step of SGD with g's mean (outer rate, outer momentum)
//
// Outer rate 1 without momentum averages the weights: local SGD (Stich 2019, arXiv 1805.09767;
// McMahan et al. 2017, arXiv 1602.05629). A rate of 0.7 with Nesterov's momentum 0.9 is what DiLoCo
// uses (Douillard et al. 2023, arXiv 2311.08105). With a sparsifier and its residuals on g, and no
// outer momentum, it resembles SparseLoCo (Sarfi et al. 2025, arXiv 2508.15706). All three are
// recalled; no experiment of theirs is repeated here.
//
//   LocalSteps optimizer(store, make_adam({.decoupled = true}), {}, {.every = 16},
//       [&](ParameterStore& anchor) {
//         return std::make_unique<DataParallelOptimizer>(anchor, make_sgd({}), comm);
//       });
//
// A DataParallelOptimizer makes the exchange, interleaved with the backward pass of a round's last
// step, unless updates wait for the end of backward (Optimizer: clipping, GPUs). Momentum and
// Adam's state stay each learner's own. Weights that are not finite spoil an outer gradient, which
// is rejected on all ranks; the learner then continues from the anchor, with momentum 0 for layers
// whose momentum is not finite either. Memory: anchor, its gradient and the outer rule's state; a
// copy of the weights in evaluations, and with a delay another one.
//
// With a delay the exchange runs on while the next `delay` steps are computed; then each learner
// moves as the exchange would have moved it at the end of the round, and keeps its new steps:
//
//   w = anchor + (w - w at the end of the round)
//
// LOSCAR-SGD (arXiv 2605.20866, known here from its abstract) keeps them, too; the formula is our
// own. Streaming DiLoCo (Douillard et al. 2025, arXiv 2501.18512, recalled) exchanges parts of the
// model in turn, while steps are computed, and merges them differently.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "optim/control_words.h"
#include "optim/data_parallel.h"
#include "optim/learner_optimizer.h"
#include "optim/optimizer.h"

namespace heddle {

struct LocalStepsOptions {
  int64_t every = 16;      // steps of a round, at least 1
  int64_t last_step = -1;  // the run's number of steps, after which a round ends; -1: unknown
  double outer_lr = 1;
  int64_t delay = 0;  // steps after a round until its exchange moves the weights; below `every`
};

class LocalSteps : public LearnerOptimizer {
 public:
  // Makes the optimizer that exchanges the changes, of the store that is passed. It takes neither
  // several micro-steps nor a clipping of its own, and its reducer must not vote. With an outer
  // momentum and a reducer that keeps residuals, set DataParallelOptions::residual_momentum to
  // false: a delayed change moved at once, scaled by 1 / (1 - momentum), goes too far.
  using MakeOuter = std::function<std::unique_ptr<DataParallelOptimizer>(ParameterStore& anchor)>;

  // Collective; store and Context as for DataParallelOptimizer. Weights and buffers begin as rank
  // 0's. Throws InputError for impossible options.
  LocalSteps(ParameterStore& store, std::unique_ptr<UpdateRule> rule,
             const OptimizerOptions& options, const LocalStepsOptions& local,
             const MakeOuter& make_outer);

  void begin_step(double lr) override;
  void ready(Parameter& p) override { inner_.ready(p); }
  void weights_free(Parameter& p) override { inner_.weights_free(p); }
  // The report is this rank's own; where an exchange moves the weights, it also counts what was
  // rejected there.
  StepReport finish_step() override;

  // Words are summed at the end of a round, and within it every kWordsEvery steps, so that a signal
  // or a written checkpoint does not wait for a long round; after every other step they are 0.
  static constexpr int64_t kWordsEvery = 50;
  void set_control(size_t word, float value) override {
    outer_->set_control(word, value);
    words_.set(word, value);
  }
  float control(size_t word) const override {
    return landed_ ? outer_->control(word) : summed_ ? words_.sum(word) : 0;
  }
  int64_t control_delay() const override { return local_.delay; }
  void post(const std::string& what, std::function<void(Communicator&, Ledger&)> call) override {
    posted_ = true;
    outer_->post(what, std::move(call));
  }
  void wait() override;

  int learners() const override { return outer_->learners(); }
  bool own_weights() const override { return true; }
  int64_t dense_bytes() const override { return outer_->dense_bytes(); }
  const Optimizer& optimizer() const override { return inner_; }
  // The steps of a round are counted with its exchange, as dense or compressed ones. While one is
  // in flight, these two are as before it.
  Totals totals() const override;
  const Ledger& ledger() const override { return in_flight_ ? ledger_ : outer_->ledger(); }

  // Ranks of the same number, with the same settings, continue bit for bit, within a round too.
  State state() override;
  void restore(const State& state) override;
  NamedTensors named_state() const override;
  void begin_anew() override;
  // Returns the anchor, for which nothing is exchanged: within a round as the last one has left it.
  Tensor shared_values() override {
    settle();
    return anchor_.values().to(Device{}).clone();
  }
  void use_shared() override;
  void use_own() override;
  std::map<std::string, double> figures() const override {
    return in_flight_ ? std::map<std::string, double>{} : outer_->figures();
  }
  std::string take_note() override { return in_flight_ ? "" : outer_->take_note(); }

 private:
  // Returns whether the current step is the last of a round.
  bool ends_round() const {
    return (step_ + 1) % local_.every == 0 || step_ + 1 == local_.last_step;
  }
  void hand_over(const Parameter& p);
  void settle();
  void land();

  ParameterStore& store_;
  LocalStepsOptions local_;
  Optimizer inner_;
  ParameterStore anchor_;
  std::map<const Parameter*, Parameter*> anchors_;  // of the store's parameters
  std::unique_ptr<DataParallelOptimizer> outer_;
  ControlWords words_;
  Tensor own_;   // between use_shared() and use_own()
  Tensor left_;  // with a delay: the weights at a round's end, then the anchor
  int64_t step_ = 0, exchanged_at_ = 0;             // steps made; of these, until the last exchange
  int64_t dense_alone_ = 0, compressed_alone_ = 0;  // of these, without one, in this process
  bool exchanging_ = false;                         // the outer step has begun
  bool in_flight_ = false;                          // …, and all changes are handed over
  bool waiting_ = false;                            // the weights have not been moved by it yet
  bool landed_ = false, summed_ = false;            // in the last step: an exchange, words_
  bool posted_ = false;                             // since the last wait()
  double exposed_s_ = 0;                            // in wait(), for an exchange in flight
  StepReport outer_report_;
  Totals totals_;  // totals() and ledger() while an exchange is in flight
  Ledger ledger_;
};

}  // namespace heddle
