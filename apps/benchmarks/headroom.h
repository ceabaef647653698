// --headroom: what the exchange of gradients costs this command on these ranks, and what
// compression can win. Steps of the user's own network and batch are timed without any exchange,
// dense, with the compressor asked for and with a few others, in turns; the learning rate is 0, and
// nothing is kept.
//
//   return run_headroom(o, store, comm, plan, [&](Tape& tape) { return loss(tape, images); });
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "apps/benchmarks/headroom_model.h"
#include "apps/cli/common_options.h"
#include "apps/session/run_plan.h"
#include "comm/communicator.h"
#include "core/parameters.h"
#include "core/tape.h"
#include "optim/data_parallel.h"

namespace heddle {

// What came out; profiles[0] is without exchange, profiles[1] dense.
struct Headroom {
  int learners = 0;
  LinkCost link;
  std::vector<ExchangeProfile> profiles = {};
  double stolen = 0;     // share of the time that the first rank's host wanted, that others had
  std::string net = {};  // one more for the model; empty: none

  double share() const;             // of a dense step that communication is seen to take
  double most() const;              // the most that anything could win
  double gain(size_t index) const;  // dense over this one
  size_t best() const;              // of dense and the compressed ones
};

// Called on every rank, with the same options; o.headroom is the time to take, seconds. One step is
// all micro-steps of an update, begun with a learning rate of 0. `step` is told the optimizer and
// calls its second argument when backward has ended.
using HeadroomStep =
    std::function<void(DataParallelOptimizer&, const std::function<void()>& backward_ended)>;
Headroom measure_headroom(const CommonOptions& o, ParameterStore& store, Communicator& comm,
                          const StepPlan& plan, const HeadroomStep& step);

// Tables for people, and a sentence; and the same as one JSON object.
std::string describe_headroom(const Headroom& headroom);
std::string headroom_json(const Headroom& headroom);

// Measures steps whose forward pass is `forward`, which returns the loss of a batch, always the
// same one, and prints the result on the first rank; returns the exit code.
int run_headroom(const CommonOptions& o, ParameterStore& store, Communicator& comm,
                 const StepPlan& plan, const std::function<Var(Tape&)>& forward);

}  // namespace heddle
