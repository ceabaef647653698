// Ranks that are threads of one process. A receiver copies straight from the sender's memory.
//
//   auto comms = make_threads(4, {.net = parse_net("100mbit,5ms")});
//   std::thread learner([&, c = std::move(comms[r])] { c->all_reduce(x); });
#pragma once

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

// The only rank there is.
std::unique_ptr<Communicator> make_solo();

}  // namespace heddle
