#include "apps/cli/learner_plan.h"

#include "apps/cli/common_options.h"
#include "comm/launch.h"
#include "core/device.h"
#include "core/error.h"

namespace heddle {

LearnerPlan plan_learners(const CommonOptions& o) {
  const LaunchInfo launch = detect_launch();
  const bool launched = launch.size > 1 || (!launch.launcher.empty() && o.comm == "mpi");
  LearnerPlan plan;
  plan.kind = o.comm;
  plan.nccl = o.comm == "nccl";
  if (plan.nccl) {
    check(cuda_device_count() > 0, "--comm nccl needs a GPU for each learner, found none");
    check(o.net.empty(), "--net simulates a network; it cannot be combined with --comm nccl");
  }
  if (o.comm == "auto" || plan.nccl)
    plan.kind = launched ? "mpi" : (o.learners > 1 ? "threads" : "solo");
  if (launched)
    check(plan.kind == "mpi", "--comm ", o.comm, ": ", launch.launcher, " has started ",
          launch.size, " processes, which would train independently");
  if (plan.kind == "mpi") {
#ifndef HEDDLE_MPI
    throw InputError(concat("started by ", launch.launcher.empty() ? "--comm mpi" : launch.launcher,
                            ", but this build has no MPI: install openmpi-bin and libopenmpi-dev "
                            "and build again"));
#endif
    check(o.learners <= 1, "--learners ", o.learners,
          launched ? ": under a launcher every process is one learner"
                   : ": with --comm mpi each learner is a process that mpirun or srun starts");
    check(o.net.empty(),
          "--net simulates a network between threads (--learners); it cannot be "
          "combined with MPI");
    plan.size = launch.size;
    plan.on_machine = ranks_sharing_cores();
    return plan;
  }
  check(o.learners > 1 || o.net.empty(), "--net needs --learners above 1");
  plan.size = plan.on_machine = plan.kind == "threads" ? static_cast<int>(o.learners) : 1;
  return plan;
}

}  // namespace heddle
