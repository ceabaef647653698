// FeatureStore: the rows of a matrix, each of which one rank owns. A rank fetches those that it
// needs from their owners.
//
//   FeatureStore store(owners, rank, own_rows);
//   Tensor x = store.fetch({3, 17, 200}, comm, ledger);     // (3, width)
//
//   rank 0                       rank 1
//   counts  ── all_gather ──▶ ◀──  counts       4 bytes for each pair of ranks
//   ids     ─── exchange ───▶ ◀──  ids          4 bytes for each row
//   rows    ◀── exchange ────  ──▶ rows         as they are stored
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/ledger.h"
#include "core/tensor.h"

namespace heddle {

class FeatureStore {
 public:
  // owners: the rank of each row, equal on all ranks. rows: those of `rank` in ascending order, (n,
  // width) on the host, of any type. Throws InputError for another number of rows.
  FeatureStore(const std::vector<int32_t>& owners, int rank, Tensor rows);

  // Returns the rows with these ids, in their order: (n, width) on the host. Books the bytes under
  // `purpose`. Collective, with any ids on each rank, and none. Throws InputError for an id
  // out of range, before anything is sent, and Error for a rank that asks for a row that is not
  // here.
  Tensor fetch(std::span<const int32_t> ids, Communicator& comm, Ledger& ledger,
               const std::string& purpose = "features") const;
  // Returns how many of the ids belong to other ranks. Throws std::out_of_range for one that is no
  // row.
  int64_t remote(std::span<const int32_t> ids) const;

 private:
  std::vector<int32_t> owners_;
  std::vector<int32_t> place_;  // of each row among its owner's
  int rank_;
  Tensor rows_;
};

}  // namespace heddle
