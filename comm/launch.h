// Which launcher started this process: read from its environment, before MPI is initialised.
//
//   const LaunchInfo launch = detect_launch();   // mpirun -n 4 …: {.rank = 2, .size = 4, "mpirun"}
#pragma once

#include <string>

namespace heddle {

struct LaunchInfo {
  int rank = 0, size = 1;
  std::string launcher;  // "mpirun", "PMI" or "srun"; empty when no launcher started the process
};

// Returns this process's rank and the number of ranks. Thread-safe. Throws InputError, naming the
// variable, for a value that is no number and for a rank that is not below the size.
LaunchInfo detect_launch();

}  // namespace heddle
