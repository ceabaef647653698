// The state of the simulated GPU's runtime: streams, and memory by address.
#pragma once

#include <map>
#include <set>

#include "tests/simulated_gpu/device.h"

namespace simulated {

struct Allocation {
  char* mapped = nullptr;
  size_t mapped_bytes = 0;  // including the guard pages
  size_t usable = 0;        // without
  size_t bytes = 0;         // as asked for, rounded up
  int device = 0;
};

struct Machine {
  std::mutex mutex;
  std::condition_variable changed;
  std::set<Stream*> streams;
  std::map<char*, Allocation> memory;  // of devices, by address
  std::map<char*, size_t> pinned;      // of the host, by address
  std::map<int, size_t> used;          // bytes by device
  int open = 0;                        // holders of rights to the devices' memory
  uint64_t done = 0;                   // pieces of work, ever
  int64_t time = 0;
  bool backwards = false;
};

Machine& machine();

}  // namespace simulated
