// Ranks that are processes, started by mpirun or srun, over MPI's point-to-point messages. Only
// built if MPI was found (HEDDLE_MPI).
//
//   MpiSession mpi;                        // first in main; its destructor finalises MPI
//   auto comm = mpi.make_communicator();
#pragma once

#include <memory>

#include "comm/collectives.h"

namespace heddle {

class MpiSession {
 public:
  // Initialises MPI. Throws Error when that fails or MPI_THREAD_SERIALIZED is not available.
  // Initialising and finalising wait for all ranks; after timeout_s seconds of waiting the process
  // reports that on stderr and ends with exit code 1, since MPI offers no way to cancel either.
  // A rank of its communicators gives up after as long without progress of a message.
  explicit MpiSession(double timeout_s = 60);
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  // Returns a communicator over all ranks. The session must outlive it; one thread of the process
  // makes MPI calls at a time. Collective.
  std::unique_ptr<Communicator> make_communicator(const CollectiveOptions& options = {});

 private:
  double timeout_s_;
};

}  // namespace heddle
