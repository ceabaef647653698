// Makes the exchange of gradients that the options describe: a data-parallel optimizer with its
// reducer.
//
//   DataParallelOptimizer optimizer = make_optimizer(o, store, comm, plan, {folder, log});
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "apps/cli/common_options.h"
#include "apps/session/run_plan.h"
#include "comm/communicator.h"
#include "optim/data_parallel.h"

namespace heddle {

// Bytes of one learner: with --peers sent to each neighbour, else passed to the collectives in a
// step (for codes whose length depends on the data, the maximum), and kept between steps.
struct ExchangePlan {
  int64_t payload = 0;
  int64_t state = 0;  // residuals, factors
  int64_t compressed_tensors = 0;
  double epsilon = 0;        // of the run's weights, where learners vote, and
  std::string privacy = {};  // a sentence on it
};
// Returns the exchange that the options describe, after the dense start; plans of --layerwise start
// from there. Where a rule decides during training (rate=auto, --compress auto), the payload is
// that of compression everywhere, or the dense one if the rate is undecided. Throws InputError for
// a --dense-layers that matches nothing and a --plan that does not fit.
ExchangePlan plan_exchange(const CommonOptions& o, const ParameterStore& store,
                           const StepPlan& steps);

// Returns the number of each learner's host for an exchange in two levels; nothing for one level.
// Collective.
std::vector<int> learner_hosts(const CommonOptions& o, Communicator& comm, const Logger& log);

// Returns --compress-start; without it that of the run that is resumed, else one epoch, but at most
// a twentieth of the run, and at least a hundred steps.
int64_t first_compressed_step(const CommonOptions& o, const StepPlan& plan);

// Makes the optimizer of a learner. Logs what is compressed and when that starts, and writes
// layer plans and choices to the folder. `others`: settings that are not options. With
// --local-steps it is the outer optimizer, of the anchor (optim/local_steps.h). The arguments must
// outlive the optimizer. Throws as plan_exchange().
DataParallelOptimizer make_optimizer(const CommonOptions& o, ParameterStore& store,
                                     Communicator& comm, const StepPlan& plan,
                                     const RunOutput& output = {},
                                     const DataParallelOptions& others = {});

// Returns the optimizer of a learner for training: that of make_optimizer(), with --peers one
// that talks to its neighbours only, or with --local-steps one that exchanges at the end of rounds
// and in `last_step` of the run. Throws InputError as its constructor does, too.
std::unique_ptr<LearnerOptimizer> make_learner_optimizer(const CommonOptions& o,
                                                         ParameterStore& store, Communicator& comm,
                                                         const StepPlan& plan, int64_t last_step,
                                                         const RunOutput& output);

}  // namespace heddle
