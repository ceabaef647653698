// Ranks that are threads of one process: the receiver copies directly from the sender's memory. The
// simplest way to train with N learners:
//
//   run_threads(4, [](Communicator& comm) { train(comm); }, {.net = parse_net("100mbit,5ms")});
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "comm/collectives.h"
#include "comm/net_model.h"

namespace heddle {

struct ThreadsOptions {
  NetModel net = {};
  double timeout_s = 60;  // of real time, without progress of a message
  CollectiveOptions collectives = {};
};

// Returns one communicator per rank; each may be used and destroyed on a thread of its own. Throws
// InputError for a size below 1.
std::vector<std::unique_ptr<Communicator>> make_threads(int size,
                                                        const ThreadsOptions& options = {});

// Calls body(comm) once per rank, each call on a thread of its own, and returns when all have
// returned. A body makes a Context before its first collective. If one throws a std::exception
// (anything else ends the program), its communicator is aborted, so that the others throw CommError
// instead of waiting for it; the cause is rethrown here, and CommError only where there is no other
// cause.
void run_threads(int ranks, const std::function<void(Communicator&)>& body,
                 const ThreadsOptions& options = {});

// Returns the communicator of a single rank, named "solo", for code that is written for several.
std::unique_ptr<Communicator> make_solo();

}  // namespace heddle
