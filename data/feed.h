// The batches of an epoch on the device that computes. On a GPU the next one is copied and
// augmented there, on a stream of its own, while the network works on this one.
//
//   BatchFeed feed(loader.epoch(e), loader.augmentation(), device, DType::bf16);
//   while (feed.next()) {
//     start_a_step(feed.batch().images, feed.batch().labels);
//     feed.prefetch();
//     wait_for_the_step();
//   }
#pragma once

#include <cstdint>
#include <exception>
#include <optional>

#include "core/streams.h"
#include "core/tensor.h"
#include "data/augment.h"
#include "data/loader.h"

namespace heddle {

// What a network takes of a batch: (N, 3, S, S) on the device, f32 or bf16.
Tensor images_on(Device device, const Batch& batch, const Augmentation& augmentation, DType dtype);

struct FedBatch {
  Tensor images;             // as above; undefined in a batch without images
  Tensor labels;             // i32 (N), on the host
  int64_t first_sample = 0;  // as in Batch
  int64_t count = 0;
};

class BatchFeed {
 public:
  BatchFeed(Epoch epoch, const Augmentation& augmentation, Device device, DType dtype);

  // Waits for the next batch and forgets this one; false after the last. Rethrows what reading it
  // threw.
  bool next();
  const FedBatch& batch() const { return batch_; }
  // Once the step on this batch has been started: brings the next one to the GPU if the loader has
  // it and there is memory for it. The caller waits for the copy, not for the step. True: it is
  // there, or its error.
  bool prefetch();

 private:
  FedBatch take();

  Epoch epoch_;
  const Augmentation augmentation_;
  Device device_;
  DType dtype_;
  FedBatch batch_;
  std::optional<FedBatch> ahead_;
  bool taken_ = false;          // the epoch has brought a batch that found no room beside this one
  std::exception_ptr failure_;  // of the batch ahead
  // Of the first stream: the batch before this one is no longer read; of the copies: the batch
  // ahead is there.
  Fence consumed_, arrived_;
};

}  // namespace heddle
