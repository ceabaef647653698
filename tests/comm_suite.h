// Tests that every communicator must pass, on tensors whose sums are exact. Each rank calls
// check_collectives(); rank 0 need not be special. Failures are returned as text, because ranks are
// threads or processes of their own.
#pragma once

#include <string>
#include <vector>

#include "comm/communicator.h"

namespace heddle {

// Runs all collectives over sizes 0, 1, P - 1, P, not divisible by P, and `large`.
std::vector<std::string> check_collectives(Communicator& comm, int64_t large);

}  // namespace heddle
