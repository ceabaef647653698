// Replica check: whether all ranks hold the same weights, bit for bit. Sums are formed in one order
// and sent to all (comm/communicator.h), so replicas that differ mean a bug or broken hardware.
#pragma once

#include <cstdint>

#include "comm/communicator.h"
#include "core/parameters.h"

namespace heddle {

// Collective: gives all ranks the first one's values and buffers, frozen or not.
void broadcast_replica(const ParameterStore& store, Communicator& comm);

// Collective: compares an 8-byte hash of each parameter, frozen or not. Throws Error, on every
// rank, that names `step`, the first parameter whose values differ from rank 0's, and the rank.
void check_replicas(const ParameterStore& store, int64_t step, Communicator& comm);

}  // namespace heddle
