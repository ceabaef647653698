#include "optim/replica_check.h"

#include <string>
#include <vector>

#include "core/error.h"
#include "core/hash.h"

namespace heddle {

void broadcast_replica(const ParameterStore& store, Communicator& comm) {
  for (const Tensor* values : {&store.values(), &store.frozen_values()})
    if (values->defined()) comm.broadcast(*values, 0);
  // The buffers in one message: a network has hundreds of them.
  std::vector<Tensor> buffers;
  for (const auto* some : {&store.buffers(), &store.frozen_buffers()})
    for (const Buffer& b : *some) buffers.push_back(b.value);
  std::string bytes;
  for (const Tensor& x : buffers)
    bytes.append(static_cast<const char*>(x.to(Device{}).raw()), to_size(x.bytes()));
  bytes = broadcast_text(bytes, comm);
  size_t at = 0;
  for (const Tensor& x : buffers) {
    const Tensor first = Tensor::empty_on(Device{}, x.shape(), x.dtype());
    at += bytes.copy(static_cast<char*>(first.raw()), to_size(x.bytes()), at);
    x.copy_from(first);
  }
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
