// Mini-batches of rows of tensors: data that fit in memory and are not images, text or a graph.
//
//   RowBatches batches({xs, ys}, {.batch_size = 32, .seed = 1, .rank = comm.rank(),
//                                 .world_size = comm.size()});
//   for (int64_t b = 0; b < batches.per_epoch(); ++b) {
//     const std::vector<Tensor> batch = batches.batch(epoch, b);   // x (32, …), y (32, …)
#pragma once

#include <cstdint>
#include <vector>

#include "core/tensor.h"

namespace heddle {

struct RowBatchOptions {
  int64_t batch_size = 32;  // per rank
  uint64_t seed = 0;        // of the order
  bool shuffle = true;      // in each epoch; false: in the order of the rows
  int rank = 0;             // one of world_size ranks, which share each global batch
  int world_size = 1;
};

// Used by one thread.
class RowBatches {
 public:
  // `columns`: tensors of any type in plain layout on the CPU, whose first axis has equally many
  // rows, fewer than 2^32. Throws InputError for other tensors, for options out of range, and for
  // fewer rows than a global batch.
  RowBatches(std::vector<Tensor> columns, const RowBatchOptions& options);

  // Returns the batches of an epoch, all of them full; the rows that remain, other ones in each
  // epoch if it is shuffled, are left out.
  int64_t per_epoch() const { return rows_ / (options_.batch_size * options_.world_size); }
  // Returns this rank's part of a batch of an epoch (both from 0), a copy of its rows in each
  // column, as a function of seed, epoch and batch. Throws InputError for numbers out of range.
  std::vector<Tensor> batch(int64_t epoch, int64_t batch);

 private:
  std::vector<Tensor> columns_;
  RowBatchOptions options_;
  int64_t rows_ = 0, epoch_ = -1;
  std::vector<uint32_t> order_;  // of the epoch
};

}  // namespace heddle
