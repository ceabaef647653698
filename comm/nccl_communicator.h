// Ranks that own a GPU each, over NCCL. Only built with CUDA. Collectives are those of the library:
// sums are equal on all ranks, but not in the bits of the other communicators. Bytes are not
// counted but modelled, by the ring's formulas of comm/collectives.h.
//
//   auto control = mpi.make_communicator();                 // or threads: carries NCCL's id
//   auto comm = make_nccl(*control, {.timeout_s = 60});
//
// Collectives run on the calling thread's stream (core/streams.h). Never run with more than one
// rank so far: two ranks need two GPUs.
#pragma once

#include <memory>

#include "comm/communicator.h"

namespace heddle {

struct NcclOptions {
  double timeout_s = 60;  // without progress, of the start and of each collective
};

// For the GPU of the calling thread's Context. Every rank of `control` calls it; control must
// outlive the result and is used for abort(). Throws InputError when two ranks have the same GPU,
// CommError when NCCL does not start.
std::unique_ptr<Communicator> make_nccl(Communicator& control, const NcclOptions& options = {});

}  // namespace heddle
