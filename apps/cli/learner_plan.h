// How many learners a run has and what carries their messages.
//
//   const LearnerPlan plan = plan_learners(o);
#pragma once

#include <string>

namespace heddle {

struct CommonOptions;

struct LearnerPlan {
  std::string kind = "solo";  // "solo", "threads", "mpi"
  int size = 1;               // ranks; under a launcher, what it says
  bool nccl = false;          // gradients travel over NCCL, which `kind` starts
  int on_machine = 1;         // ranks that share this machine's cores
};

// Decides from --learners, --comm, --net and the launcher's environment. Throws InputError for what
// is impossible: a launcher without MPI in this build, --learners under a launcher, --net over a
// real network.
LearnerPlan plan_learners(const CommonOptions& o);

}  // namespace heddle
