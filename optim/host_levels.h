// HostLevels: the exchange of gradients in two levels. Within a host, where messages are cheap,
// gradients are summed densely; between hosts one rank of each host, its first, exchanges the
// host's sum as if it were its own gradient, compressed or not, and hands the result to the others.
// The slow network carries one message for each host instead of one for each rank, and the
// compressor sees the gradient of a larger batch.
//
//   host 0: ranks 0, 1        host 1: ranks 2, 3
//     g0 + g1                   g2 + g3               1. sum_within()
//     rank 0  <--- between() --->  rank 2             2. dense, or a Reducer
//     rank 0 -> 1               rank 2 -> 3           3. share()
//
//   HostLevels levels(comm, {0, 0, 1, 1});
//   levels.sum_within(bucket, ledger);
//   const bool finite = levels.first() ? reducer.reduce(bucket, levels.between(), ledger) : true;
//   all_finite = levels.share(bucket, finite, ledger);
//
// All ranks get the same bits. Our own combination of what is usual (hierarchical all-reduce) with
// compression between hosts only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/ledger.h"
#include "compress/reducer.h"

namespace heddle {

class HostLevels {
 public:
  // hosts[r]: the number of rank r's host. `comm` must outlive this object. Throws InputError for
  // another number of ranks than comm's, for a single host, and for NCCL.
  HostLevels(Communicator& comm, const std::vector<int>& hosts);

  int hosts() const { return hosts_; }
  // Returns whether this rank exchanges for its host: then it has a communicator between hosts.
  bool first() const { return between_ != nullptr; }
  Communicator& between() { return *between_; }
  // As in Communicator, for both levels.
  void set_tag(const std::string& tag, int64_t step);

  // Blocks until all ranks of this host have called it, for however long that takes.
  void wait_within() { within_->barrier(); }
  // Sums the bucket over the ranks of this host, in place.
  void sum_within(const GradientBucket& bucket, Ledger& ledger);
  // Copies the bucket of the host's first rank to its other ranks, with its `finite`, which it
  // returns.
  bool share(const GradientBucket& bucket, bool finite, Ledger& ledger);
  // Returns the bytes of gradients that this rank has sent to other hosts.
  int64_t sent_between() const { return first() ? between_->total_traffic().sent : 0; }

 private:
  std::unique_ptr<Communicator> within_, between_;
  int hosts_;
};

}  // namespace heddle
