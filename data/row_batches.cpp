#include "data/row_batches.h"

#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "core/error.h"
#include "core/random.h"

namespace heddle {

RowBatches::RowBatches(std::vector<Tensor> columns, const RowBatchOptions& options)
    : columns_(std::move(columns)), options_(options) {
  check(!columns_.empty(), "row batches: expected at least one tensor");
  for (const Tensor& column : columns_) {
    check(column.defined() && column.shape().rank() > 0 && column.device() == Device{} &&
              column.layout() == Layout::plain,
          "row batches: expected tensors of rows on the CPU");
    if (&column == &columns_.front()) rows_ = column.shape()[0];
    check(column.shape()[0] == rows_, "row batches: ", rows_, " and ", column.shape()[0], " rows");
  }
  check(options.batch_size > 0 && options.world_size > 0 && options.rank >= 0 &&
            options.rank < options.world_size,
        "row batches: batch ", options.batch_size, " for rank ", options.rank, " of ",
        options.world_size);
  check(rows_ <= std::numeric_limits<uint32_t>::max() &&
            options.batch_size <= rows_ / options.world_size,
        "row batches: ", rows_, " rows for ", options.world_size, " batches of ",
        options.batch_size);
}

std::vector<Tensor> RowBatches::batch(int64_t epoch, int64_t batch) {
  check(epoch >= 0 && batch >= 0 && batch < per_epoch(), "row batches: batch ", batch, " of ",
        per_epoch(), " in epoch ", epoch);
  if (epoch != epoch_) {
    order_.resize(to_size(rows_));
    std::iota(order_.begin(), order_.end(), 0u);
    if (options_.shuffle)
      shuffle(order_, 0, order_.size(),
              Philox(options_.seed, stream_id(Stream::shuffle, static_cast<uint64_t>(epoch))));
    epoch_ = epoch;
  }
  const int64_t first = (batch * options_.world_size + options_.rank) * options_.batch_size;
  std::vector<Tensor> out;
  for (const Tensor& column : columns_) {
    std::vector<int64_t> shape(column.shape().begin(), column.shape().end());
    shape[0] = options_.batch_size;
    out.push_back(Tensor::empty_on(Device{}, Shape(shape), column.dtype()));
    const size_t bytes = to_size(column.bytes() / rows_);
    const auto* from = static_cast<const char*>(column.raw());
    auto* to = static_cast<char*>(out.back().raw());
    for (int64_t i = 0; i < options_.batch_size && bytes > 0; ++i)
      std::memcpy(to + to_size(i) * bytes, from + order_[to_size(first + i)] * bytes, bytes);
  }
  return out;
}

}  // namespace heddle
