// Communicator: collectives on tensors over the ranks of data parallel training, and the count of
// every byte. Calls block; each rank makes the same calls in the same order, with tensors of the
// same shapes. Sums are formed once per element, at one rank, in an order that P and the element's
// place decide, and everybody takes that value: the ranks' results are equal bit for bit.
//
//   comm->all_reduce(gradient);               // in place, the sum over ranks
//   Traffic t = comm->traffic().at({"all_reduce", "bucket 3"});
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/tensor.h"

namespace heddle {

// Bytes that this rank gave to and took from others.
struct Traffic {
  int64_t sent = 0, received = 0, calls = 0;
};
// By collective and tag.
using CollectiveTraffic = std::map<std::pair<std::string, std::string>, Traffic>;

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const char* name() const = 0;  // "solo", "threads", "mpi", "nccl"

  // x = sum over ranks of x. f32, bf16, i32 or i64; sums of bf16 are rounded once per rank.
  void all_reduce(const Tensor& x);
  // x of rank `root` for everybody. Any type.
  void broadcast(const Tensor& x, int root);
  // all (P, shape of mine) = every rank's `mine`, by rank.
  void all_gather(const Tensor& mine, const Tensor& all);
  // mine = sum over ranks of all[rank], all (P, shape of mine).
  void reduce_scatter(const Tensor& all, const Tensor& mine);
  // received[s] = sent[r] of rank s, both (P, ...).
  void all_to_all(const Tensor& sent, const Tensor& received);
  // Returns when every rank has called it.
  void barrier();
  // Makes the other ranks fail too instead of waiting for this one.
  virtual void abort(const std::string& why, int exit_code = 1) noexcept = 0;
  virtual double now() const = 0;  // seconds, of the network model where there is one
  virtual bool virtual_time() const { return false; }  // now() goes on by the model alone

  // What the next calls are for: a name in errors and in traffic(), and the step for errors.
  void set_tag(const std::string& tag) { tag_ = tag; }
  void set_step(int64_t step) { step_ = step; }
  const std::string& tag() const { return tag_; }

  const CollectiveTraffic& traffic() const { return traffic_; }
  Traffic total_traffic() const;

 protected:
  virtual void do_all_reduce(const Tensor& x) = 0;
  virtual void do_broadcast(const Tensor& x, int root) = 0;
  virtual void do_all_gather(const Tensor& mine, const Tensor& all) = 0;
  virtual void do_reduce_scatter(const Tensor& all, const Tensor& mine) = 0;
  virtual void do_all_to_all(const Tensor& sent, const Tensor& received) = 0;
  virtual void do_barrier() = 0;

  virtual void withdraw() noexcept {}         // a call has failed: forget its open messages
  Traffic& counting() { return *counting_; }  // of the call that is running

 private:
  template <class Call>
  void run(const char* collective, const Call& call);

  std::string tag_;
  int64_t step_ = -1;
  CollectiveTraffic traffic_;
  Traffic* counting_ = nullptr;
};

// The bytes of all ranks, by rank; each rank gives as many.
std::vector<std::byte> gather_bytes(Communicator& comm, std::span<const std::byte> mine);

// The values of all ranks, by rank; each rank gives as many.
template <class T>
std::vector<std::vector<T>> gather_values(Communicator& comm, const std::vector<T>& mine) {
  static_assert(std::is_trivially_copyable_v<T>);
  const std::vector<std::byte> bytes = gather_bytes(comm, std::as_bytes(std::span(mine)));
  std::vector<std::vector<T>> all(static_cast<size_t>(comm.size()), mine);
  const size_t share = mine.size() * sizeof(T);
  for (size_t r = 0; r < all.size(); ++r)
    if (share > 0) std::memcpy(all[r].data(), bytes.data() + r * share, share);
  return all;
}

// The mean over the ranks, added in their order: the same bits on all of them.
std::vector<double> mean_over_ranks(Communicator& comm, const std::vector<double>& mine);

}  // namespace heddle
