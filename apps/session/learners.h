// The ranks of a run: threads of this process (--learners N), processes under mpirun or srun, or
// one.
//
//   return start_learners(o, [&](Communicator& started) {
//     Learner learner(o, started);
//     ...
//   });
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "apps/cli/common_options.h"
#include "comm/communicator.h"
#include "core/context.h"
#include "core/parameters.h"

namespace heddle {

// Calls run_rank once for each rank of this process, each on a thread of its own if there are
// several, and returns the largest of their exit codes. An exception of one rank stops the others
// and is rethrown; under MPI it ends all processes. Once training begins, a signal asks the run to
// save a checkpoint and end.
int start_learners(const CommonOptions& o, const std::function<int(Communicator&)>& run_rank);

// Returns when all ranks have called it: waits without a timeout for one that reads or writes
// files, except with NCCL, where it returns at once. Collective.
void wait_for_all(Communicator& comm);

// One rank: its device and threads, its communicator, and the parameters of its network. Used by
// the thread that made it.
struct Learner {
  // `started`: the communicator that the rank was started with. Collective. Throws InputError if
  // some ranks compute on a CPU and others on a GPU, whose updates would not have the same bits.
  Learner(const CommonOptions& o, Communicator& started);

  // Finalizes the store, without gradients for what --freeze names. Throws InputError if that is
  // nothing or everything.
  void finalize_store();
  bool is_first() const { return comm.rank() == 0; }
  // Prints a line on stderr, on the first rank and without --quiet.
  void announce(const std::string& line) const;

  const CommonOptions& o;
  Context context;
  std::unique_ptr<Communicator> gpus;  // NCCL's; null: gradients are exchanged over `started`
  Communicator& comm;
  ParameterStore store = {};
};

}  // namespace heddle
