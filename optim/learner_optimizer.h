// LearnerOptimizer: what a training loop, its log and its checkpoints need of an optimizer whose
// ranks train together: DataParallelOptimizer (data_parallel.h), which sums gradients over all
// ranks, LocalSteps (local_steps.h), which sums what the ranks have changed in several steps, or
// DecentralizedOptimizer (decentralized.h), whose ranks talk to their neighbours.
//
//   optimizer.begin_step(lr);
//   optimizer.backward(tape, loss);
//   StepReport report = optimizer.finish_step();
//
// Call all functions except set_control() on the thread that runs backward.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/ledger.h"
#include "compress/plan/layer_planner.h"
#include "compress/plan/quality_meter.h"
#include "compress/reducer.h"
#include "core/privacy.h"
#include "core/tape.h"
#include "optim/control_words.h"
#include "optim/optimizer.h"

namespace heddle {

class LearnerOptimizer {
 public:
  virtual ~LearnerOptimizer() = default;

  // Begins a step as Optimizer does, with this learning rate.
  virtual void begin_step(double lr) = 0;
  // Signals that p.grad is final on this rank. Rethrows what an exchange has thrown, as
  // finish_step() does.
  virtual void ready(Parameter& p) = 0;
  // Signals that backward will not read p.value again.
  virtual void weights_free(Parameter& p) = 0;
  // Runs the backward pass, with both signals.
  void backward(Tape& tape, const Var& loss) {
    tape.backward(
        loss, [this](Parameter& p) { ready(p); }, [this](Parameter& p) { weights_free(p); });
  }
  // Waits until every bucket is exchanged (not with a delay, see local_steps.h), finishes the
  // update, and throws what an exchange has thrown. Gradients that this rank has not computed count
  // as zero; other ranks may have them.
  virtual StepReport finish_step() = 0;
  // Sets how many micro-steps (begin, backward, finish) this rank makes from the next step on; in
  // one without a backward pass nobody votes. Between steps. Throws InputError unless a reducer
  // votes: gradients are averaged over a fixed number.
  virtual void set_micro_steps(int count) {
    check(count == 1, "micro-steps of a step: expected 1 without votes, found ", count);
  }

  // A few numbers that are summed over the ranks without a separate collective: control() returns
  // the sum of what they had set before the last update, or up to control_delay() updates earlier,
  // the same on all ranks after the same update. set_control() may be called from any thread.
  // `word` is below ControlWords::kCount.
  virtual void set_control(size_t word, float value) = 0;
  virtual float control(size_t word) const = 0;
  virtual int64_t control_delay() const { return 0; }  // in updates

  // Runs `call` on the worker thread after the exchanges that were posted before, and waits for it.
  // `what` names the collectives in errors and, as control, in the ledger. Every rank calls this at
  // the same point of its program.
  void collective(const std::string& what, const std::function<void(Communicator&)>& call) {
    post(what, [&](Communicator& comm, Ledger& ledger) {
      ledger.book(comm, {{what, PayloadKind::control, 0}}, [&] { call(comm); });
    });
    wait();
  }

  // Posts `call` to the worker thread and returns: it runs after what was posted before and has
  // ended when wait() or the step's last finish_step() returns. It books its own bytes. Without a
  // worker it runs at once. Every rank calls this at the same point of its program.
  virtual void post(const std::string& what, std::function<void(Communicator&, Ledger&)> call) = 0;
  // Waits for everything that was posted, and rethrows what it has thrown.
  virtual void wait() = 0;

  virtual int learners() const = 0;
  // Returns whether the weights of the ranks differ between two steps.
  virtual bool own_weights() const { return false; }
  // Returns the bytes that a rank, or with hosts the first of a host to others, sends in a dense
  // step: its share of a ring all-reduce.
  virtual int64_t dense_bytes() const = 0;
  virtual const Optimizer& optimizer() const = 0;
  // Totals of this rank over the run. totals() and ledger(): between steps only.
  struct Totals {
    Traffic traffic;          // everything that this rank sent and received
    double exchange_s = 0;    // seconds that exchanges took, without the quality meter
    double collective_s = 0;  // of which in collectives
    double exposed_s = 0;     // seconds that the main thread waited for exchanges
    int64_t dense_steps = 0, compressed_steps = 0;  // before compress_start, and after
    // Counts steps among these in which the ranks exchanged nothing (local_steps.h).
    int64_t dense_local = 0, compressed_local = 0;
    int64_t coded_steps = 0;  // of dense_steps, by `start`; not in Ledger::Entry::counted
    // Bytes of gradients in these steps; with hosts, of those between hosts. Then dense_bytes() of
    // these steps.
    int64_t dense_sent = 0, compressed_sent = 0;
    int64_t dense_of_dense = 0, dense_of_compressed = 0;
    int64_t rejected = 0;  // compressed buckets with a non-finite value or sum
  };
  virtual Totals totals() const = 0;
  virtual const Ledger& ledger() const = 0;

  // The state for a checkpoint: numbers that are the same on all ranks, except bytes and seconds.
  // named_state() adds what is this rank's own, as views to copy from and into. Between steps only;
  // call restore() before the first step and before restoring the tensors.
  struct State {
    int64_t steps = 0;
    Totals totals;
    std::map<std::pair<std::string, PayloadKind>, Ledger::Entry> ledger;
    std::map<std::string, double> settings;  // of the reducer, by layer; of peers, their graph
    std::vector<int> hosts = {};             // the number of each rank's host, in two levels
    std::optional<LayerPlannerState> planner;
    std::optional<RdpAccountant::State> privacy = {};  // of a reducer with noise that protects
  };
  virtual State state() = 0;
  virtual void restore(const State& state) = 0;
  virtual NamedTensors named_state() const = 0;
  // Called in place of filling named_state(), after the weights were restored.
  virtual void begin_anew() {}
  // Returns copies of the weights that stand for the run, laid out as ParameterStore::values(), on
  // the host: this rank's if all have the same, else their mean. Collective.
  virtual Tensor shared_values() = 0;
  // Between these two the parameters hold shared_values(), for evaluation. Collective; between
  // steps only.
  virtual void use_shared() {}
  virtual void use_own() {}
  // Returns how far the ranks' weights were from their mean at the last use_shared(), relative to
  // the mean (Consensus in decentralized.h); nothing where all have the same.
  virtual std::optional<double> consensus_error() const { return {}; }
  // Returns the quality meter's new measurements, the same on all ranks. Between steps only.
  virtual std::vector<LayerQuality> take_quality() { return {}; }
  // As in Reducer; nothing without a reducer.
  virtual std::map<std::string, double> figures() const { return {}; }
  virtual std::string take_note() { return {}; }
  virtual RdpAccountant* accountant() { return nullptr; }
};

}  // namespace heddle
