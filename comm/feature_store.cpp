#include "comm/feature_store.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/error.h"

namespace heddle {

FeatureStore::FeatureStore(const std::vector<int32_t>& owners, int rank, Tensor rows)
    : owners_(owners), rank_(rank), rows_(std::move(rows)) {
  std::vector<int32_t> sizes;
  for (const int32_t owner : owners) {
    check(owner >= 0, "features: expected an owner of each row, found ", owner);
    if (owner >= std::ssize(sizes)) sizes.resize(to_size(owner) + 1, 0);
    place_.push_back(sizes[to_size(owner)]++);
  }
  const int64_t own = rank < std::ssize(sizes) ? sizes[to_size(rank)] : 0;
  check(rows_.shape().rank() == 2 && rows_.shape()[0] == own, "features: expected ", own,
        " rows of rank ", rank, ", found ", to_string(rows_.shape()));
}

int64_t FeatureStore::remote(std::span<const int32_t> ids) const {
  return std::ranges::count_if(ids, [&](int32_t id) { return owners_.at(to_size(id)) != rank_; });
}

Tensor FeatureStore::fetch(std::span<const int32_t> ids, Communicator& comm, Ledger& ledger,
                           const std::string& purpose) const {
  const auto ranks = to_size(comm.size());
  std::vector<std::vector<int32_t>> wanted(ranks);   // places among the owner's rows
  std::vector<std::vector<int64_t>> targets(ranks);  // rows of the result
  for (size_t i = 0; i < ids.size(); ++i) {
    check(ids[i] >= 0 && ids[i] < std::ssize(owners_), "features: expected a row from 0 to ",
          std::ssize(owners_) - 1, ", found ", ids[i]);
    const auto owner = to_size(owners_[to_size(ids[i])]);
    check(owner < ranks, "features: row ", ids[i], " belongs to rank ", owner, ", found ", ranks,
          " ranks");
    wanted[owner].push_back(place_[to_size(ids[i])]);
    targets[owner].push_back(to_int64(i));
  }
  const int64_t columns = rows_.shape()[1], bytes = columns * dtype_size(rows_.dtype());
  Tensor out = Tensor::empty_on(Device{}, {std::ssize(ids), columns}, rows_.dtype());
  const auto copy_row = [bytes](const Tensor& from, int64_t row, const Tensor& to, int64_t at) {
    std::memcpy(static_cast<char*>(to.raw()) + at * bytes,
                static_cast<const char*>(from.raw()) + row * bytes, to_size(bytes));
  };
  const auto own = to_size(rank_);
  for (size_t i = 0; i < wanted[own].size(); ++i)
    copy_row(rows_, wanted[own][i], out, targets[own][i]);
  if (ranks == 1) return out;

  std::vector<std::vector<int32_t>> counts;  // [rank][owner]
  ledger.book(comm, {{purpose + " lengths", PayloadKind::control, comm.size() * 4}}, [&] {
    std::vector<int32_t> mine;
    for (size_t r = 0; r < ranks; ++r) mine.push_back(r == own ? 0 : to_int(wanted[r].size()));
    counts = gather_values(comm, mine);
  });
  std::vector<Parcel> ids_out, ids_in, rows_out, rows_in;
  int64_t asked = 0, sent = 0;
  for (size_t r = 0; r < ranks; ++r) {
    const int peer = to_int(r);
    if (const int64_t n = counts[own][r]; n > 0) {
      ids_out.push_back({peer, Tensor::empty_on(Device{}, {n}, DType::i32)});
      std::ranges::copy(wanted[r], ids_out.back().data.data<int32_t>());
      rows_in.push_back({peer, Tensor::empty_on(Device{}, {n, columns}, rows_.dtype())});
      asked += ids_out.back().data.bytes();
    }
    if (const int64_t n = counts[r][own]; n > 0)
      ids_in.push_back({peer, Tensor::empty_on(Device{}, {n}, DType::i32)});
  }
  // A peer may serve all others first, hence as many timeouts.
  ledger.book(comm, {{purpose + " ids", PayloadKind::features, asked}},
              [&] { comm.exchange(ids_out, ids_in, comm.size()); });
  for (const auto& [peer, places] : ids_in) {
    const Tensor rows = Tensor::empty_on(Device{}, {places.size(), columns}, rows_.dtype());
    for (int64_t i = 0; i < places.size(); ++i) {
      const int64_t place = places.data<int32_t>()[i];
      if (place < 0 || place >= rows_.shape()[0])
        throw Error(concat("features: rank ", peer, " asks for row ", place, " of ",
                           rows_.shape()[0], ": do all ranks have the same partition?"));
      copy_row(rows_, place, rows, i);
    }
    sent += rows.bytes();
    rows_out.push_back({peer, rows});
  }
  ledger.book(comm, {{purpose, PayloadKind::features, sent}},
              [&] { comm.exchange(rows_out, rows_in, comm.size()); });
  for (const auto& [peer, rows] : rows_in)
    for (int64_t i = 0; i < rows.shape()[0]; ++i)
      copy_row(rows, i, out, targets[to_size(peer)][to_size(i)]);
  return out;
}

}  // namespace heddle
