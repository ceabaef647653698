#include "apps/session/learners.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "apps/cli/process.h"
#include "comm/launch.h"
#include "comm/threads.h"
#ifdef HEDDLE_CUDA
#include "comm/nccl_communicator.h"
#endif
#include "core/context.h"
#include "core/error.h"

namespace heddle {

int run_learners(const CommonOptions& o, const std::function<int(Communicator&)>& body) {
  const LearnerPlan& plan = o.parsed.learners;
#ifdef HEDDLE_MPI
  if (plan.kind == "mpi") return run_mpi(o.comm_timeout, body);
#endif
  if (plan.size > 1) {
    ThreadsOptions options{.timeout_s = o.comm_timeout};
    if (o.parsed.net) options.net = *o.parsed.net;
    std::vector<int> results(static_cast<size_t>(plan.size));
    const auto learn = [&](Communicator& comm) {
      results[static_cast<size_t>(comm.rank())] = body(comm);
    };
    run_threads(plan.size, learn, options);
    return *std::ranges::max_element(results);
  }
  const auto solo = make_solo();
  return body(*solo);
}

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
  device.index = local % cuda_device_count();  // who shares one is told so by make_nccl
  return device;
}

void check_devices(const CommonOptions& o, Communicator& comm) {
  const int64_t mine = Context::current().device().is_cuda() ? 1 : 0;
  const auto all = gather_values(comm, std::vector<int64_t>{mine});
  const auto what = [&](size_t rank) {
    return concat("rank ", rank, all[rank][0] != 0 ? " computes on a GPU" : " computes on a CPU");
  };
  for (size_t rank = 0; rank < all.size(); ++rank)
    check(all[rank] == all[0], "--device ", o.device, ": ", what(0), ", ", what(rank));
}

std::unique_ptr<Communicator> make_gpu_communicator([[maybe_unused]] const CommonOptions& o,
                                                    [[maybe_unused]] Communicator& comm) {
#ifdef HEDDLE_CUDA
  if (o.comm == "nccl") return make_nccl(comm, {.timeout_s = o.comm_timeout});
#endif
  return nullptr;
}

std::string describe_learners(const Communicator& comm) {
  if (comm.size() == 1) return "";
  return concat(comm.size(), " learners (", comm.name(), "), ");
}

std::string describe_memory(int64_t learners) {
  const int64_t mb = peak_rss_bytes() / 1000000;
  return learners < 2 ? concat(mb, " MB") : concat(mb, " MB, ", mb / learners, " MB a learner");
}

}  // namespace heddle
