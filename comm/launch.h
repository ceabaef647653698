// Who started this process: a launcher's environment, read before MPI is touched.
#pragma once

#include <string>

namespace heddle {

struct LaunchInfo {
  int rank = 0, size = 1;
  std::string launcher;  // "mpirun", "srun" or a PMI name; empty: started on its own
};
// Throws InputError for variables that are no numbers, or a rank that is none of the size.
LaunchInfo detect_launch();

}  // namespace heddle
