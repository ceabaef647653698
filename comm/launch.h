// Ranks that a launcher (mpirun, srun) has started as processes; threads.h starts them as threads.
//
//   if (detect_launch().size > 1) return run_mpi(60, train);   // int train(Communicator&)
#pragma once

#include <functional>
#include <string>

#include "comm/communicator.h"

namespace heddle {

struct LaunchInfo {
  int rank = 0, size = 1;
  std::string launcher;  // "mpirun", "PMI" or "srun"; empty when no launcher started the process
};

// Returns this process's rank and the number of ranks. Thread-safe. Throws InputError, naming the
// variable, for a value that is not a number and for a rank that is not below the size.
LaunchInfo detect_launch();

// Returns how many ranks share the cores that this process may run on, which the launcher may have
// restricted; 1 if the user has set OMP_NUM_THREADS, which applies to each process.
int ranks_sharing_cores();

#ifdef HEDDLE_MPI
// Initialises MPI, calls `body` with this process's communicator and returns its result. Reports an
// exception and ends all processes. A rank gives up after `timeout_s` seconds without an answer.
int run_mpi(double timeout_s, const std::function<int(Communicator&)>& body);
#endif

}  // namespace heddle
