// Ranks with one GPU each, over NCCL's own collectives. Only built with CUDA. Sums are equal on all
// ranks, but not bit for bit those of the other communicators. NCCL does not report bytes, so
// traffic() computes them with the ring formulas of comm/collectives.h.
//
//   auto control = mpi.make_communicator();                 // or threads: distributes NCCL's id
//   auto comm = make_nccl(*control, 60);
//
// Collectives run on the calling thread's stream (core/streams.h) and return when it has finished.
// Not yet run with more than one rank: two ranks need two GPUs.
#pragma once

#include <memory>

#include "comm/communicator.h"

namespace heddle {

// Returns a communicator on the GPU of the calling thread's Context. Collective over `control`,
// which must outlive the result and performs its abort(). A rank gives up after `timeout_s` seconds
// without progress, at start and in each collective. Throws InputError when two ranks share a GPU
// (which NCCL refuses), CommError when NCCL does not start.
std::unique_ptr<Communicator> make_nccl(Communicator& control, double timeout_s = 60);

}  // namespace heddle
