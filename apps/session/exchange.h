// How gradients are exchanged: from the options to a data parallel optimizer with its reducer, and
// what the exchange was worth.
//
//   DataParallelOptimizer optimizer = make_optimizer(o, store, comm, plan, folder, log);
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "apps/cli/common_options.h"
#include "apps/log/run_folder.h"
#include "apps/session/run_plan.h"
#include "comm/communicator.h"
#include "optim/data_parallel.h"

namespace heddle {

// What one learner hands to the exchange in a step, before what collectives make of it, and keeps
// for it; bytes. Of codes whose length depends on the data the most.
struct ExchangePlan {
  int64_t payload = 0;
  int64_t state = 0;  // residuals, factors
  int64_t compressed_tensors = 0;
};
// As the options have it once the dense beginning is over; plans of --layerwise begin from there.
// Where a rule decides while training (rate=auto, --compress auto) the payload is that of
// compression everywhere, or dense where it is open.
ExchangePlan plan_exchange(const CommonOptions& o, const ParameterStore& store);

// Says on `log`, on the first rank, what is compressed and from when on, and leaves layer plans in
// its folder; both are null on the others. `others`: what the options do not say.
DataParallelOptimizer make_optimizer(const CommonOptions& o, ParameterStore& store,
                                     Communicator& comm, const StepPlan& plan,
                                     const RunFolder* folder,
                                     const std::function<void(const std::string&)>& log,
                                     const DataParallelOptions& others = {});

// Dense over compressed, of this rank's payloads or bytes sent; 1 where nothing is compressed.
struct Ratios {
  double layers = 1;  // values of the compressed tensors, as papers print
  double values = 1;  // values of the whole model
  double wire = 1;    // bytes on the wire, indices, scales and flags included
  double run = 1;     // the same over the whole run, the dense beginning included
};
Ratios ratios(const DataParallelOptimizer& optimizer, const ParameterStore& store);

}  // namespace heddle
