// Ranks that are processes under mpirun or srun, over Open MPI's point-to-point messages. Only
// built where MPI was found (HEDDLE_MPI).
//
//   MpiSession mpi;                        // in main, before any other use; ends MPI when it dies
//   auto comm = mpi.make_communicator({.timeout_s = 60});
#pragma once

#include <memory>

#include "comm/collectives.h"

namespace heddle {

struct MpiOptions {
  double timeout_s = 60;
  CollectiveOptions collectives = {};
};

class MpiSession {
 public:
  // Throws Error when MPI cannot start or offers no MPI_THREAD_SERIALIZED. Start and end wait for
  // all ranks; after timeout_s seconds of that the process says so on stderr and ends with code 1.
  explicit MpiSession(double timeout_s = 60);
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  int rank() const;
  int size() const;
  // The session must outlive it. All calls of one process come from one thread at a time.
  std::unique_ptr<Communicator> make_communicator(const MpiOptions& options = {});

 private:
  double timeout_s_;
};

}  // namespace heddle
