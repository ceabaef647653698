// Ranks as threads, for tests.
#pragma once

#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "comm/threads.h"
#include "core/context.h"

namespace heddle {

// Runs a body as each of P ranks, one compute thread each; returns what they threw, by rank.
inline std::vector<std::string> run_ranks(int p, const std::function<void(Communicator&)>& body,
                                          const ThreadsOptions& options = {.timeout_s = 30},
                                          const ContextOptions& of_rank = {.threads = 1}) {
  auto comms = make_threads(p, options);
  std::vector<std::string> errors(static_cast<size_t>(p));
  std::vector<std::thread> threads;
  for (int r = 0; r < p; ++r)
    threads.emplace_back([&, r] {
      Context context(of_rank);
      Communicator& comm = *comms[static_cast<size_t>(r)];
      try {
        body(comm);
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(r)] = error.what();
        comm.abort(concat("rank ", r, " failed: ", error.what()));
      }
    });
  for (std::thread& t : threads) t.join();
  return errors;
}

inline void expect_none(const std::vector<std::string>& errors) {
  for (const std::string& e : errors) CHECK(e == "");
}

}  // namespace heddle
