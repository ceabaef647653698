// BatchFeed: the batches of an epoch on the device that computes. On a GPU the next batch is copied
// and augmented on a stream of its own while the network works on the current one.
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

// Returns a batch's images as a network's input: (N, 3, S, S) on the device, f32 or bf16; undefined
// for an empty batch.
Tensor images_on(Device device, const Batch& batch, const Augmentation& augmentation, DType dtype);

struct FedBatch {
  Tensor images;             // as returned by images_on()
  Tensor labels;             // i32 (N), on the host
  int64_t first_sample = 0;  // as in Batch
  int64_t count = 0;
};

// Used by one thread, that of the device's Context.
class BatchFeed {
 public:
  BatchFeed(Epoch epoch, const Augmentation& augmentation, Device device, DType dtype);

  // Releases the current batch and waits for the next; returns false after the last. Rethrows read
  // errors. batch() is valid until the next call.
  bool next();
  const FedBatch& batch() const { return batch_; }
  int64_t batches_in_step(int64_t step) const { return epoch_.batches_in_step(step); }
  // Call it after the step on the current batch has been started, and before anything waits for
  // that. Copies the next batch to the GPU if memory suffices and the loader has it before the step
  // has ended; on a CPU does nothing and returns false. Waits for the copy and, until the step has
  // ended, for the loader. Returns whether the next batch, or its error, is available.
  bool prefetch();

 private:
  FedBatch convert();

  Epoch epoch_;
  const Augmentation augmentation_;
  Device device_;
  DType dtype_;
  FedBatch batch_;
  std::optional<FedBatch> ahead_;  // the prefetched batch
  bool pending_ = false;           // the epoch has a batch for which the GPU had no memory yet
  std::exception_ptr failure_;     // of the next batch
  Fence consumed_;                 // on the compute stream: the previous batch is no longer read
  Fence step_;                     // on the compute stream: the step has ended
  Fence arrived_;                  // on the copy stream: the prefetched batch is complete
};

}  // namespace heddle
