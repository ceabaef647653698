// A communicator over some ranks of another one: those of one host, or one of each host.
//
//   auto host = make_group(comm, {2, 3});  // on ranks 2 and 3, which become ranks 0 and 1
#pragma once

#include <memory>
#include <vector>

#include "comm/communicator.h"

namespace heddle {

// Returns a communicator over these ranks of `parent`, which become ranks 0, 1, … in this order;
// the calling rank is one of them. Its messages travel over `parent` and are counted there, too.
// `parent` must outlive it, and one thread at a time calls either. A patient group waits without a
// timeout, where ranks outside of it notice one that hangs. Local: ranks may make different groups,
// but the members of a group name them in the same order. Throws InputError for ranks that are not
// distinct ranks of `parent`, and for a parent that is not made of messages (NCCL's).
std::unique_ptr<Communicator> make_group(Communicator& parent, const std::vector<int>& ranks,
                                         bool patient = false);

// Returns a group of all ranks that waits without a timeout: for what one rank does alone, such as
// reading from a slow disk. Null for a parent that is not made of messages.
std::unique_ptr<Communicator> make_patient(Communicator& parent);

// Returns numbers from 0 for names of hosts, in the order in which they first appear.
std::vector<int> host_numbers(const std::vector<int>& names);

// Returns the lowest rank of each host, in order: {0, 2} of {0, 0, 1, 1}.
std::vector<int> first_ranks(const std::vector<int>& hosts);

}  // namespace heddle
