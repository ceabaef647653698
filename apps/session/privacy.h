// Training with differential privacy (--compress topagg): checks that a run can protect what it
// claims, makes its reducer, and keeps account of what was revealed, over kills and resumes.
//
//   check_privacy(o);
//   std::unique_ptr<TopAgg> reducer = make_voting(o, store, plan, learners);
//   read_accounts(o, *optimizer.accountant(), folder, checkpoint, accounted, comm);
//   keep_account(o, *optimizer.accountant(), *folder);
#pragma once

#include <memory>
#include <string>

#include "apps/cli/common_options.h"
#include "apps/log/run_folder.h"
#include "apps/session/run_plan.h"
#include "comm/communicator.h"
#include "compress/topagg.h"
#include "core/parameters.h"
#include "core/privacy.h"

namespace heddle {

// Throws InputError for options with which votes would be repeatable, or gradients pass them by.
void check_privacy(const CommonOptions& o);

// Returns the reducer. Throws InputError for a store or settings that TopAgg refuses, for a delta
// that gives units away and, without --dp-anyway, for what protects nobody (no noise, a learner
// alone), for noise of more than four times the largest sum of votes that is to be expected, and
// for weights (--init) that votes have trained.
std::unique_ptr<TopAgg> make_voting(const CommonOptions& o, const ParameterStore& store,
                                    const StepPlan& plan, int learners);
// Returns "after 500 steps more the weights will have epsilon 3.15 at delta 1e-05 for …".
std::string describe_privacy(const CommonOptions& o, const RdpAccountant& accountant,
                             const StepPlan& plan, int learners, int64_t steps);
// Returns the epsilon after which the run ends: that of --dp-epsilon-max or --compress; infinity
// without one, or where the noise can be repeated.
double epsilon_limit(const CommonOptions& o, const RdpAccountant& accountant);

// privacy.json in a run folder: what the run has revealed. It is written before each noisy sum is
// used, so that a killed run that starts again from its last checkpoint, or from the first step,
// counts what it had revealed since.
constexpr const char* kPrivacyFile = "privacy.json";
// Adds to the account what earlier processes of the run have spent: infinitely much if a checkpoint
// was trained without an account or with other units, which is what `accounted` tells, or if its
// run folder lacks the file. `checkpoint`: where the run resumes; empty: from the first step. The
// first rank has a folder. Collective. Throws Error if the file cannot be read.
void read_accounts(const CommonOptions& o, RdpAccountant& accountant, const RunFolder* folder,
                   const std::string& checkpoint, bool accounted, Communicator& comm);
// Writes the file, now and before each noisy sum. Throws Error if it cannot.
void keep_account(const CommonOptions& o, RdpAccountant& accountant, const RunFolder& folder);

}  // namespace heddle
