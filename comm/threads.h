// Ranks that are threads of one process. A receiver copies straight from the sender's memory.
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
  double timeout_s = 60;  // of real time, without an answer
  CollectiveOptions collectives = {};
};

// One communicator for each rank; they may be used and destroyed on different threads.
std::vector<std::unique_ptr<Communicator>> make_threads(int size,
                                                        const ThreadsOptions& options = {});

// Calls body(comm) once per rank, each call on a thread of its own, and returns when all have
// returned. If one throws, its communicator is aborted, so that the others throw CommError instead
// of waiting for it; the cause is rethrown here, and CommError only where there is no other cause.
void run_threads(int ranks, const std::function<void(Communicator&)>& body,
                 const ThreadsOptions& options = {});

// The only rank there is.
std::unique_ptr<Communicator> make_solo();

}  // namespace heddle
