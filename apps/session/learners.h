// The ranks of a run: threads of this process (--learners N), processes under mpirun or srun, or
// one.
//
//   return run_learners(o, [&](Communicator& comm) { return train_as_rank(o, comm); });
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "apps/cli/common_options.h"
#include "comm/communicator.h"
#include "core/device.h"

namespace heddle {

// Calls body once for each rank of this process, each on a thread of its own when there are
// several, and returns the largest of their results. What one throws brings the others down and is
// thrown again; under MPI it ends all processes.
int run_learners(const CommonOptions& o, const std::function<int(Communicator&)>& body);

// The device of one learner: under MPI, and with NCCL, the GPU of its number on this machine,
// unless --device names one.
Device learner_device(const CommonOptions& o, const Communicator& comm);
// Collective, in the learners' Contexts: throws InputError when some compute on a CPU and others on
// a GPU, whose updates would not have the same bits.
void check_devices(const CommonOptions& o, Communicator& comm);
// NCCL's communicator for the current Context, or null: gradients go over `comm` itself.
std::unique_ptr<Communicator> make_gpu_communicator(const CommonOptions& o, Communicator& comm);

// "4 learners (threads), ": for the first line of a run; empty for one.
std::string describe_learners(const Communicator& comm);
// "604 MB, 151 MB a learner": the most that this process has had resident, and its learners' share.
std::string describe_memory(int64_t learners);

}  // namespace heddle
