#include "apps/session/learners.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <regex>
#include <vector>

#include "apps/checkpoint/signals.h"
#include "comm/group.h"
#include "comm/launch.h"
#include "comm/threads.h"
#ifdef HEDDLE_CUDA
#include "comm/nccl_communicator.h"
#endif
#include "core/error.h"

namespace heddle {
namespace {

// Returns the device of one learner: under MPI, and with NCCL, the GPU whose index is the learner's
// local rank, modulo the number of GPUs, unless --device names one.
Device learner_device(const CommonOptions& o, const Communicator& comm) {
  Device device = o.parsed.device;
  const bool nccl = o.comm == "nccl", processes = comm.name() == std::string("mpi");
  check(!nccl || device.is_cuda(), "--comm nccl: expected --device cuda, found ",
        to_string(device));
  if (!device.is_cuda() || (!nccl && !processes)) return device;
  if (o.device.find(':') != std::string::npos || comm.size() == 1) return device;
  int local = comm.rank();
  if (processes)
    for (const char* name : {"SLURM_LOCALID", "MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK"})
      if (const char* text = std::getenv(name)) local = std::atoi(text);
  device.index = local % cuda_device_count();  // make_nccl reports ranks that share a GPU
  return device;
}

// Returns NCCL's communicator for the current Context; null without --comm nccl. Throws InputError
// if some ranks compute on a CPU and others on a GPU. Collective.
std::unique_ptr<Communicator> join_gpus(const CommonOptions& o, Communicator& comm) {
  const int64_t mine = Context::current().device().is_cuda() ? 1 : 0;
  const auto all = gather_values(comm, std::vector<int64_t>{mine});
  const auto what = [&](size_t rank) {
    return concat("rank ", rank, all[rank][0] != 0 ? " computes on a GPU" : " computes on a CPU");
  };
  for (size_t rank = 0; rank < all.size(); ++rank)
    check(all[rank] == all[0], "--device ", o.device, ": ", what(0), ", ", what(rank));
#ifdef HEDDLE_CUDA
  if (o.comm == "nccl") return make_nccl(comm, o.comm_timeout);
#endif
  return nullptr;
}

}  // namespace

int start_learners(const CommonOptions& o, const std::function<int(Communicator&)>& run_rank) {
  const LearnerPlan& plan = o.parsed.learners;
  const char* note =
      "\nstopping after the current step, round or validation; another signal ends the run at "
      "once\n";
  if (!isatty(STDERR_FILENO)) ++note;               // a terminal shows a bar there
  if (o.training && !o.dry_run && o.headroom == 0)  // only training runs save
    catch_signals(o.quiet || plan.kind == "mpi" ? "" : note);
#ifdef HEDDLE_MPI
  if (plan.kind == "mpi") return run_mpi(o.comm_timeout, run_rank);
#endif
  if (plan.size > 1) {
    ThreadsOptions options{.timeout_s = o.comm_timeout};
    if (o.parsed.net) options.net = *o.parsed.net;
    std::vector<int> codes(to_size(plan.size));
    const auto learn = [&](Communicator& comm) { codes[to_size(comm.rank())] = run_rank(comm); };
    run_threads(plan.size, learn, options);
    return *std::ranges::max_element(codes);
  }
  const auto solo = make_solo();
  return run_rank(*solo);
}

Learner::Learner(const CommonOptions& options, Communicator& started)
    : o(options),
      context({.device = learner_device(o, started),
               .threads = to_int(o.threads),
               .tune = o.tune,
               .deterministic = o.deterministic,
               .tf32 = o.tf32}),
      gpus(join_gpus(o, started)),
      comm(gpus == nullptr ? started : *gpus) {
  if (o.freeze.empty()) return;
  store.freeze([pattern = std::regex(o.freeze)](const std::string& name) {
    return std::regex_search(name, pattern);
  });
}

void wait_for_all(Communicator& comm) {
  if (const auto patient = make_patient(comm)) patient->barrier();
}

void Learner::finalize_store() {
  check(o.freeze.empty() || !store.parameters().empty(), "--freeze ", o.freeze,
        ": every parameter is frozen, nothing would be trained");
  check(o.freeze.empty() || !store.frozen().empty(), "--freeze ", o.freeze,
        ": matches no parameter; the first is called ", store.parameters().front().name);
  store.finalize(static_cast<uint64_t>(o.seed));
}

void Learner::announce(const std::string& line) const {
  if (is_first() && !o.quiet) std::fprintf(stderr, "%s\n", line.c_str());
}

}  // namespace heddle
