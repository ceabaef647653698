// --headroom: measures what the exchange of gradients costs this command on these ranks, and what
// compression can save. Times steps of the user's own network and batch without any exchange,
// dense, with the compressor of --compress and with a few others, alternating. The learning rate is
// 0, and nothing is saved.
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

namespace heddle {

// A measurement; profiles[0] is without exchange, profiles[1] dense.
struct Headroom {
  int learners = 0, hosts = 0;  // hosts: of an exchange in two levels, else 0
  int sharing = 1;              // learners on this machine
  LinkCost link;                // between those who exchange
  std::vector<ExchangeProfile> profiles = {};
  double stolen = 0;     // share of the first host's wanted processor time that other guests got
  std::string net = {};  // one more for the model, as for --net; empty: none

  int parties() const { return hosts > 0 ? hosts : learners; }  // of the exchange, for the model
  double share() const;             // of a dense step that communication takes
  double most() const;              // the largest possible speed-up over dense
  double gain(size_t index) const;  // speed-up of a profile over dense
  size_t best() const;              // the fastest of dense and the compressed ones
};

// Returns the exchange's name, for people.
std::string title(const ExchangeProfile& profile);
// Returns tables and a verdict for people.
std::string describe_headroom(const Headroom& headroom);
// Returns the same as one JSON object and a newline.
std::string headroom_json(const Headroom& headroom);

// Measures for about o.headroom seconds, but two steps of each exchange at least, with the same
// options on every rank, and prints the result on the first rank. A step is all micro-steps of an
// update; `forward` returns the loss of a batch, always the same one. Returns the exit code. Throws
// InputError for a single learner.
int run_headroom(const CommonOptions& o, ParameterStore& store, Communicator& comm,
                 const StepPlan& plan, const std::function<Var(Tape&)>& forward);

}  // namespace heddle
