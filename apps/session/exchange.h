// How gradients are exchanged: from the options to a data parallel optimizer with its reducer, and
// what the exchange was worth.
//
//   DataParallelOptimizer optimizer = make_optimizer(o, store, comm, plan, {folder, log});
#pragma once

#include <cstdint>

#include "apps/cli/common_options.h"
#include "apps/session/run_plan.h"
#include "comm/communicator.h"
#include "optim/data_parallel.h"

namespace heddle {

// Bytes that one learner passes to the collectives in a step, and keeps for the exchange. For codes
// whose length depends on the data, the maximum.
struct ExchangePlan {
  int64_t payload = 0;
  int64_t state = 0;  // residuals, factors
  int64_t compressed_tensors = 0;
};
// As the options have it once the dense beginning is over; plans of --layerwise begin from there.
// Where a rule decides while training (rate=auto, --compress auto) the payload is that of
// compression everywhere, or dense where it is open.
ExchangePlan plan_exchange(const CommonOptions& o, const ParameterStore& store);

// Makes the optimizer of a learner. Logs what is compressed and from which step on, and writes
// layer plans to the folder. `others`: what the options do not say. The arguments must outlive it.
DataParallelOptimizer make_optimizer(const CommonOptions& o, ParameterStore& store,
                                     Communicator& comm, const StepPlan& plan,
                                     const RunOutput& output = {},
                                     const DataParallelOptions& others = {});

}  // namespace heddle
