// Communicator: blocking collectives on tensors over the ranks of data-parallel training, with a
// count of every byte sent. Each element is summed at one rank, in an order that depends only on P
// and the element's index, and everyone uses that sum: results are equal bit for bit on all ranks
// (NCCL's are equal too, but differ in rounding from the other communicators').
//
//   comm->all_reduce(gradient);               // in place, the sum over ranks
//   Traffic t = comm->traffic().at({"all_reduce", "bucket 3"});
//
// Contract of every collective: each rank makes the same calls in the same order, with tensors of
// the same shapes and types (exchange() says what it needs), on any device; one thread of a rank
// calls at a time. Throws InputError for a rank's own shapes or types that do not fit (before
// anything is sent; those of different ranks are not compared), and CommError, with rank,
// collective, tag and step, when another rank fails or does not answer within the timeout.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/tensor.h"

namespace heddle {

// Bytes that this rank sent to others and received from them.
struct Traffic {
  int64_t sent = 0, received = 0, calls = 0;
};
// Adds to the sum what was sent and received from `before` to `now`.
void add(Traffic& sum, const Traffic& now, const Traffic& before = {});
// Keyed by collective ("all_reduce") and tag.
using CollectiveTraffic = std::map<std::pair<std::string, std::string>, Traffic>;

// Bytes to send to another rank, or memory for bytes from it. Any type, on any device.
struct Parcel {
  int peer;
  Tensor data;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const char* name() const = 0;  // "solo", "threads", "mpi", "nccl"

  // Sets x to the sum over ranks of x: f32, bf16, i32 or i64. bf16 is rounded after each addition.
  void all_reduce(const Tensor& x);
  // Copies x of rank `root` to all ranks. Any type.
  void broadcast(const Tensor& x, int root);
  // Sets all[r] to `mine` of rank r: mine (…) -> all (P, …). Any type.
  void all_gather(const Tensor& mine, const Tensor& all);
  // Sets mine to the sum over ranks of all[rank()]: all (P, …) -> mine (…). `all` is unchanged.
  void reduce_scatter(const Tensor& all, const Tensor& mine);
  // Sets received[s] to sent[rank()] of rank s: (P, …) -> (P, …). Any type.
  void all_to_all(const Tensor& sent, const Tensor& received);
  // Sends each parcel of `out` to its peer and receives each of `in` from its peer: at most one
  // each way between two ranks, which both know its number of bytes; if they differ, CommError,
  // except that NCCL does not notice. Unlike the other collectives, it waits for this rank's peers
  // only; a rank that has none calls it too. A peer may be busy with others first: the call fails
  // only after this many timeouts without an answer.
  void exchange(const std::vector<Parcel>& out, const std::vector<Parcel>& in, int timeouts = 1);
  // Returns when every rank has called it.
  void barrier();
  // Makes the other ranks throw CommError instead of waiting for this one; under MPI ends all
  // processes with the exit code. May be called from any thread.
  virtual void abort(const std::string& why, int exit_code = 1) noexcept = 0;
  // Returns this rank's clock in seconds: the network model's, if any, else the steady clock.
  virtual double now() const = 0;
  // Returns whether now() advances by the network model only.
  virtual bool virtual_time() const { return false; }
  // Returns the number of each rank's host, from 0 in the order of their first ranks, as the
  // launcher or the network model knows them. Collective.
  virtual std::vector<int> hosts() { return std::vector<int>(to_size(size())); }

  // Set the purpose of the following calls, for errors and the keys of traffic(), and their step.
  void set_tag(const std::string& tag) { tag_ = tag; }
  void set_step(int64_t step) { step_ = step; }
  const std::string& tag() const { return tag_; }

  // Returns what this rank has sent and received since construction, and its sum.
  const CollectiveTraffic& traffic() const { return traffic_; }
  Traffic total_traffic() const;

 protected:
  virtual void do_all_reduce(const Tensor& x) = 0;
  virtual void do_broadcast(const Tensor& x, int root) = 0;
  virtual void do_all_gather(const Tensor& mine, const Tensor& all) = 0;
  virtual void do_reduce_scatter(const Tensor& all, const Tensor& mine) = 0;
  virtual void do_all_to_all(const Tensor& sent, const Tensor& received);  // by do_exchange()
  virtual void do_exchange(const std::vector<Parcel>& out, const std::vector<Parcel>& in,
                           int timeouts) = 0;
  virtual void do_barrier() = 0;

  virtual void withdraw() noexcept {}         // cancels the open messages of a call that failed
  Traffic& counting() { return *counting_; }  // entry of the call in progress
  // Adds what this communicator sends and receives to the traffic of another one, too.
  void count_in(Communicator& other) { other_ = &other; }
  virtual std::string who() const;  // in errors: "rank 1 of 4"

 private:
  template <class Call>
  void run(const char* collective, const Call& call);

  std::string tag_;
  int64_t step_ = -1;
  CollectiveTraffic traffic_;
  Traffic* counting_ = nullptr;
  Communicator* other_ = nullptr;
};

// Returns the values of all ranks, indexed by rank; all ranks pass equally many. Collective.
template <class T>
std::vector<std::vector<T>> gather_values(Communicator& comm, const std::vector<T>& mine) {
  static_assert(std::is_trivially_copyable_v<T>);
  const auto share = to_int64(mine.size() * sizeof(T));
  const Tensor own = Tensor::empty_on(Device{}, {share}, DType::u8);
  const Tensor all = Tensor::empty_on(Device{}, {comm.size(), share}, DType::u8);
  std::vector<std::vector<T>> out(to_size(comm.size()), mine);
  if (share > 0) std::memcpy(own.raw(), mine.data(), to_size(share));
  comm.all_gather(own, all);
  for (size_t r = 0; r < out.size() && share > 0; ++r)
    std::memcpy(out[r].data(), all.data<uint8_t>() + to_int64(r) * share, to_size(share));
  return out;
}

// Returns each element's mean over ranks, summed in rank order: equal bits on all. Collective.
std::vector<double> mean_over_ranks(Communicator& comm, const std::vector<double>& mine);

// Returns the first 299 bytes of each rank's text, indexed by rank; all ranks send 300. Collective.
std::vector<std::string> gather_texts(Communicator& comm, const std::string& mine);

// Returns the text of rank `root` on all ranks; the others' may have any length. Collective.
std::string broadcast_text(const std::string& text, Communicator& comm, int root = 0);

}  // namespace heddle
