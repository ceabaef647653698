#include "optim/replica_check.h"

#include <vector>

#include "core/error.h"
#include "core/hash.h"

namespace heddle {

void check_replicas(const ParameterStore& store, int64_t step, Communicator& comm) {
  const auto& parameters = store.parameters();
  std::vector<uint64_t> hashes;
  for (const Parameter& p : parameters) {
    const Tensor values = p.value.to(Device{});
    hashes.push_back(hash_bytes(values.raw(), to_size(values.bytes())));
  }
  const std::vector<std::vector<uint64_t>> all = gather_values(comm, hashes);
  for (size_t i = 0; i < hashes.size(); ++i)
    for (size_t r = 1; r < all.size(); ++r)
      if (all[r][i] != all[0][i])
        throw Error(concat("step ", step, ": the replicas differ: ", parameters[i].name,
                           " on rank ", r, " is not equal to that on rank 0"));
}

}  // namespace heddle
