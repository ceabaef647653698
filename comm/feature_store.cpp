#include "comm/feature_store.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"

namespace heddle {

FeatureStore::FeatureStore(const std::vector<int32_t>& owners, int rank, Tensor rows, int64_t width)
    : owners_(owners), rank_(rank), rows_(std::move(rows)), width_(width) {
  std::vector<int32_t> sizes;
  for (const int32_t owner : owners) {
    check(owner >= 0, "features: expected an owner of each row, found ", owner);
    if (owner >= std::ssize(sizes)) sizes.resize(to_size(owner) + 1, 0);
    place_.push_back(sizes[to_size(owner)]++);
  }
  const int64_t own = rank < std::ssize(sizes) ? sizes[to_size(rank)] : 0;
  const bool bits = rows_.dtype() == DType::u8;
  check(bits || rows_.dtype() == DType::f32, "features: expected f32 or u8, found ",
        dtype_name(rows_.dtype()));
  check_shape(rows_, {own, bits ? ceil_div(width, 8) : width}, "features");
}

int64_t FeatureStore::remote(std::span<const int32_t> ids) const {
  return std::ranges::count_if(ids, [&](int32_t id) { return owners_[to_size(id)] != rank_; });
}

// Writes a row as f32.
void FeatureStore::decode(const Tensor& rows, int64_t row, float* out) const {
  if (rows.dtype() == DType::f32) {
    std::copy_n(rows.data<float>() + row * width_, width_, out);
    return;
  }
  const uint8_t* bits = rows.data<uint8_t>() + row * ceil_div(width_, 8);
  for (int64_t i = 0; i < width_; ++i) out[i] = to_float((bits[i / 8] >> i % 8) & 1);
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
  const Tensor out = Tensor::empty_on(Device{}, {std::ssize(ids), width_});
  const auto own = to_size(rank_);
  for (size_t i = 0; i < wanted[own].size(); ++i)
    decode(rows_, wanted[own][i], out.data<float>() + targets[own][i] * width_);
  if (ranks == 1) return out;

  std::vector<std::vector<int32_t>> counts;  // [rank][owner]
  ledger.book(comm, {{purpose + " lengths", PayloadKind::control, comm.size() * 4}}, [&] {
    std::vector<int32_t> mine;
    for (size_t r = 0; r < ranks; ++r) mine.push_back(r == own ? 0 : to_int(wanted[r].size()));
    counts = gather_values(comm, mine);
  });
  std::vector<Parcel> ids_out, ids_in, rows_out, rows_in;
  const int64_t columns = rows_.shape()[1];
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
  ledger.book(comm, {{purpose + " ids", PayloadKind::features, asked}},
              [&] { comm.exchange(ids_out, ids_in); });
  for (const auto& [peer, places] : ids_in) {
    const Tensor rows = Tensor::empty_on(Device{}, {places.size(), columns}, rows_.dtype());
    const int64_t bytes = columns * dtype_size(rows_.dtype());
    for (int64_t i = 0; i < places.size(); ++i) {
      const int64_t place = places.data<int32_t>()[i];
      if (place < 0 || place >= rows_.shape()[0])
        throw Error(concat("features: rank ", peer, " asks for row ", place, " of ",
                           rows_.shape()[0], ": do all ranks have the same partition?"));
      std::memcpy(static_cast<char*>(rows.raw()) + i * bytes,
                  static_cast<const char*>(rows_.raw()) + place * bytes, to_size(bytes));
    }
    sent += rows.bytes();
    rows_out.push_back({peer, rows});
  }
  ledger.book(comm, {{purpose, PayloadKind::features, sent}},
              [&] { comm.exchange(rows_out, rows_in); });
  for (const auto& [peer, rows] : rows_in)
    for (int64_t i = 0; i < rows.shape()[0]; ++i)
      decode(rows, i, out.data<float>() + targets[to_size(peer)][to_size(i)] * width_);
  return out;
}

}  // namespace heddle
