// Compression settings by layer: --layerwise lgreco plans them during training and writes each plan
// to plan-<step>.json in the run folder; --plan FILE trains with the settings of such a file from
// the first compressed step on, without further plans.
//
//   parallel.planner = planner_options(o, plan, store, comm.size(), output);
#pragma once

#include <string>

#include "apps/cli/common_options.h"
#include "apps/session/run_plan.h"
#include "compress/plan/layer_planner.h"

namespace heddle {

// Throws InputError for a --layerwise, --lgreco or --plan that is invalid or contradicts another
// option.
void check_layerwise(const CommonOptions& o);

// Returns the planner that --layerwise names; for uniform, one that makes no plans. `o` and `store`
// must outlive it.
LayerPlannerOptions planner_options(const CommonOptions& o, const StepPlan& plan,
                                    const ParameterStore& store, int learners,
                                    const RunOutput& output);

// Returns the content of plan-<step>.json. Errors are norms of a window's sum of gradients; bytes
// are those of one step's gradients, encoded once; costs are nanoseconds of encoding and exchange;
// a share is the layer's part of the error budget.
std::string describe_layer_plan(const PlanReport& report, const CommonOptions& o,
                                const ParameterStore& store, int learners);

// Applies the settings of the file --plan. Throws InputError for a file that is not a plan, or one
// for a different family, number of learners or network.
void apply_layer_plan(const CommonOptions& o, const ParameterStore& store, int learners,
                      CompressedReducer& reducer);

}  // namespace heddle
