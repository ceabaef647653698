// Settings of compression by layer, as both programs offer them: --layerwise lgreco plans them
// while it trains and leaves each plan as plan-<step>.json in the run folder; --plan FILE trains
// with the settings of such a file from the first compressed step on, and plans no more.
//
//   parallel.planner = planner_options(o, plan, store, comm.size(), output);
#pragma once

#include <string>

#include "apps/cli/common_options.h"
#include "apps/session/run_plan.h"
#include "compress/plan/layer_planner.h"

namespace heddle {

// Throws InputError for --layerwise, --lgreco and --plan that cannot be, or not together.
void check_layerwise(const CommonOptions& o);

// Returns the planner that --layerwise asks for; uniform: one that makes no plans.
LayerPlannerOptions planner_options(const CommonOptions& o, const StepPlan& plan,
                                    const ParameterStore& store, int learners,
                                    const RunOutput& output);

// The content of a plan-<step>.json. Errors are norms of a window's sum of gradients; bytes are of
// one step's gradients, encoded once; costs are nanoseconds of their encoding and exchange; a share
// is of the budget.
std::string describe_layer_plan(const PlanReport& report, const CommonOptions& o,
                                const ParameterStore& store, int learners);

// Sets what the file --plan says. Throws InputError for a file that is no plan, or that of another
// family, another number of learners or another network.
void apply_layer_plan(const CommonOptions& o, const ParameterStore& store, int learners,
                      CompressedReducer& reducer);

}  // namespace heddle
