// Decides whether a run trains and on which learners, and lists what each flag needs to have an
// effect.
#include <utility>

#include "apps/cli/common_options.h"
#include "comm/launch.h"
#include "core/error.h"

namespace heddle {

void decide_training(CommonOptions& o, const FlagTable& flags, const std::string& use) {
  check(!o.train || !o.evaluate, "--train and --evaluate: expected at most one of them");
  o.training = !o.evaluate && (use.empty() || o.train || !o.resume.empty());
  check(o.training || o.evaluate || !o.init.empty(), "--", use,
        " needs --init FILE or FOLDER, the trained weights to use; or --train, to train first");
  if (o.training) return;
  const auto in_file = [&](const char* name) { return flags.source(name) == FlagSource::config; };
  if (in_file("learners")) o.learners = 1;
  for (const auto& [name, text] :
       {std::pair{"net", &o.net}, {"hosts", &o.hosts}, {"peers", &o.peers}})
    if (in_file(name)) text->clear();
}

LearnerPlan plan_learners(const CommonOptions& o) {
  const LaunchInfo launch = detect_launch();
  const bool launched = launch.size > 1 || (!launch.launcher.empty() && o.comm == "mpi");
  LearnerPlan plan;
  plan.kind = o.comm;
  const bool nccl = o.comm == "nccl";  // which `kind` sets up
  if (nccl) {
    check(o.dump_config || cuda_device_count() > 0,
          "--comm nccl needs a GPU for each learner, found none");
    check(o.net.empty(), "--net simulates a network; it cannot be combined with --comm nccl");
  }
  if (o.comm == "auto" || nccl)
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
  plan.size = plan.on_machine = plan.kind == "threads" ? to_int(o.learners) : 1;
  return plan;
}

bool is_voting(const CommonOptions& o) { return o.parsed.compress.spec.family == "topagg"; }

double exchanged_momentum(const CommonOptions& o) {
  if (o.local_steps > 1) return o.outer_momentum;
  return o.optimizer == "sgd" ? o.momentum : 0;
}

std::string privacy_unit(const CommonOptions& o) {
  std::string unit = o.dp.described;
  if (unit.empty() && o.dp.unit == "learner")
    unit = concat("all images of one of ", o.parsed.learners.size, " learners, replaced");
  if (unit.empty())
    unit = o.batch_size == 1 ? "an image, used or left out"
                             : concat("a group of ", o.batch_size, " images, used or left out");
  return unit + (o.init.empty() ? "" : ", given the weights of --init");
}

std::vector<FlagTable::Need> common_needs(const CommonOptions& o) {
  const bool sgd = o.optimizer == "sgd", gammas = o.lr_scheduler == "step" ||
                                                  o.lr_scheduler == "multistep" ||
                                                  o.lr_scheduler == "plateau";
  const auto schedule = [&](const char* names) {
    return concat("needs --lr-scheduler ", names, ", found ", o.lr_scheduler);
  };
  const std::string rule = "needs --optimizer sgd, found " + o.optimizer;
  std::vector<FlagTable::Need> needs = {
      {"lgreco", o.layerwise == "lgreco", "needs --layerwise lgreco"},
      {"headroom-net", o.headroom > 0, "needs --headroom"},
      {"clip-mode", o.clip_grad_norm > 0, "needs --clip-grad-norm"},
      {"trace-steps", !o.trace.empty(), "needs --trace FILE"},
      {"resume-anyway", !o.resume.empty(), "needs --resume"},
      {"momentum", sgd, rule},
      {"nesterov", sgd, rule},
      {"compressed-momentum", exchanged_momentum(o) > 0,
       "needs --optimizer sgd with a --momentum above 0, or with --local-steps --outer-momentum"},
      {"lr-milestones", o.lr_scheduler == "multistep", schedule("multistep")},
      {"lr-step-size", o.lr_scheduler == "step", schedule("step")},
      {"lr-gamma", gammas, schedule("step, multistep or plateau")},
      {"train", !o.dry_run && o.headroom == 0, "has no effect with --dry-run or --headroom"},
      {"tune", !o.tune || !o.deterministic, "and --deterministic: expected at most one of them"}};
  needs.push_back(
      {"start-compress", o.compress_start != 0, "has no effect with --compress-start 0"});
  needs.push_back({"min-compress", o.compress != "none", "needs --compress", true});
  for (const char* flag : {"innovation", "peer-rule", "peer-mixing", "resync"})
    needs.push_back({flag, !o.peers.empty(), "needs --peers"});
  for (const char* flag : {"compress", "layerwise", "clip-mode", "hosts", "local-steps"})
    needs.push_back({flag, o.peers.empty(), "has no effect with --peers"});
  for (const char* flag : {"outer-lr", "outer-momentum", "outer-delay"})
    needs.push_back({flag, o.local_steps > 1, "needs --local-steps above 1"});
  needs.push_back({"clip-mode", o.local_steps == 1, "has no effect with --local-steps"});
  for (const char* flag : {"peers", "hosts", "local-steps"})
    needs.push_back({flag, o.parsed.learners.size > 1, "needs several learners"});
  for (const char* flag :
       {"compress-start", "start-compress", "compressed-momentum", "dense-layers", "shadow"})
    needs.push_back({flag, o.compress != "none", "needs --compress"});
  for (const char* flag :
       {"epochs", "steps", "trace", "explain-step", "dump-gradients", "ledger", "freeze"})
    needs.push_back({flag, o.training,
                     o.evaluate ? "is for training, and --evaluate does not train"
                                : "is for training: add --train"});
  const bool gpu = o.parsed.device.is_cuda();
  needs.push_back({"tf32", !o.tf32 || gpu, "needs a GPU", true});
  needs.push_back({"tune", !o.tune || gpu, "needs a GPU", true});
  return needs;
}

}  // namespace heddle
