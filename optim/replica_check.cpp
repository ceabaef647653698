#include "optim/replica_check.h"

#include <vector>

#include "core/error.h"
#include "core/hash.h"

namespace heddle {

void broadcast_replica(const ParameterStore& store, Communicator& comm) {
  comm.broadcast(store.values(), 0);
  if (store.frozen().empty()) return;
  comm.broadcast(store.frozen_values(), 0);
  for (const Buffer& b : store.frozen_buffers())
    if (b.value.dtype() == DType::f32) comm.broadcast(b.value, 0);
}

void check_replicas(const ParameterStore& store, int64_t step, Communicator& comm) {
  std::vector<std::string> names;
  std::vector<uint64_t> hashes;
  for (const auto* parameters : {&store.parameters(), &store.frozen()})
    for (const Parameter& p : *parameters) {
      const Tensor values = p.value.to(Device{});
      names.push_back(p.name);
      hashes.push_back(hash_bytes(values.raw(), to_size(values.bytes())));
    }
  const std::vector<std::vector<uint64_t>> all = gather_values(comm, hashes);
  for (size_t i = 0; i < hashes.size(); ++i)
    for (size_t r = 1; r < all.size(); ++r)
      if (all[r][i] != all[0][i])
        throw Error(concat("step ", step, ": the replicas differ: ", names[i], " on rank ", r,
                           " is not equal to that on rank 0"));
}

}  // namespace heddle
