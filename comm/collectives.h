// MessageCommunicator: the collectives, written once over messages (comm/transport.h). Large
// tensors travel in segments, so that a rank forwards what it has while the rest is still in
// transit. Bytes that a rank sends for a payload of n bytes on P ranks:
//
//   all_reduce       ring reduce-scatter, ring all-gather    2 n (P - 1) / P
//   reduce_scatter   ring; n counts all P shares             n (P - 1) / P
//   all_gather       ring; n counts all P shares             n (P - 1) / P
//   broadcast        chain, or a binomial tree when small    n; chain's end: 0; tree: n per child
//   all_to_all       pairwise exchanges                      n (P - 1) / P
//   exchange         the same, with some ranks only          n, the sum of what it sends
//   barrier          dissemination, empty messages           0
//
// The ring of all_reduce on P = 3 ranks. The tensor is cut into chunks 0, 1, 2; rank r starts with
// chunk r. In P - 1 steps each chunk travels once around, and every rank adds its own values (+);
// in P - 1 more the finished chunks (*) are copied around:
//
//            reduce-scatter                       all-gather
//   step        1          2                     3          4
//   rank 0   sends 0    sends 2+   owns 1*    sends 1*   sends 0*
//        |      v          v                     v          v         to rank 1
//   rank 1   sends 1    sends 0+   owns 2*    sends 2*   sends 1*
//        |      v          v                     v          v         to rank 2
//   rank 2   sends 2    sends 1+   owns 0*    sends 0*   sends 2*
//        |      v          v                     v          v         to rank 0
//
// Each element is summed at one rank in one order, so all ranks get the same bits. (Thakur,
// Rabenseifner and Gropp 2005 for the algorithms and their costs.)
#pragma once

#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "comm/transport.h"

namespace heddle {

struct CollectiveOptions {
  int64_t segment_bytes = 256 * 1024;
  int64_t tree_bytes = 32 * 1024;  // largest broadcast that takes the tree
  int pairs_ahead = 4;  // pairwise exchanges under way at once; more may flood a receiver
};

class MessageCommunicator : public Communicator {
 public:
  // Owns the transport. Throws InputError for a segment that is not a multiple of 64 bytes.
  explicit MessageCommunicator(std::unique_ptr<Transport> transport,
                               const CollectiveOptions& options = {});

  int rank() const override { return transport_->rank(); }
  int size() const override { return transport_->size(); }
  const char* name() const override { return transport_->name(); }
  void abort(const std::string& why, int exit_code) noexcept override {
    transport_->abort(why, exit_code);
  }
  double now() const override { return transport_->now(); }
  bool virtual_time() const override { return transport_->virtual_time(); }
  std::vector<int> hosts() override { return transport_->hosts(); }
  Transport& transport() { return *transport_; }
  const CollectiveOptions& options() const { return options_; }

 protected:
  void do_all_reduce(const Tensor& x) override;
  void do_broadcast(const Tensor& x, int root) override;
  void do_all_gather(const Tensor& mine, const Tensor& all) override;
  void do_reduce_scatter(const Tensor& all, const Tensor& mine) override;
  void do_all_to_all(const Tensor& sent, const Tensor& received) override;
  void do_exchange(const std::vector<Parcel>& out, const std::vector<Parcel>& in,
                   int timeouts) override;
  void do_barrier() override;
  void withdraw() noexcept override { transport_->withdraw(); }

 private:
  struct Ring {
    bool reduce = false, gather = false;
    int shift = 0;  // a rank sends chunk rank + shift first
  };
  void run_ring(const Tensor& host, const Ring& ring);
  void broadcast_tree(char* data, int64_t bytes, int root);
  void broadcast_chain(char* data, int64_t bytes, int root);
  uint64_t send(int peer, const void* data, int64_t bytes);
  uint64_t receive(int peer, void* data, int64_t bytes);
  int wrap(int rank) const { return (rank % size() + size()) % size(); }

  std::unique_ptr<Transport> transport_;
  CollectiveOptions options_;
};

}  // namespace heddle
