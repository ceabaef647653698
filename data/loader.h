// The loader: worker threads read and augment images into batches ahead of the training loop. The
// same batches come in the same order for any number of workers, bit for bit.
//
//   Loader loader(std::move(train), augmentation,
//                 {.batch_size = 128, .workers = 2, .shuffle = true});
//   for (auto& batch : loader.epoch(e)) use(batch.images, batch.labels);
#pragma once

#include <cstdint>
#include <iterator>
#include <memory>

#include "core/tensor.h"
#include "data/augment.h"
#include "data/dataset.h"

namespace heddle {

struct Batch {
  Tensor images;             // f32 (N, 3, S, S), plain layout, on the CPU; or, as asked for,
  Tensor bytes, placements;  // u8 (N, S, S, 3) and i32 (N, 5) for augment_bytes(), on the CPU
  Tensor labels;             // i32 (N)
  int64_t first_sample = 0;  // position of the first image in the epoch's global order
  int64_t count = 0;         // N
};

struct LoaderOptions {
  int64_t batch_size = 128;  // of this rank
  int workers = 1;           // threads; 0: the calling thread reads, nothing is ahead
  int prefetch = 3;          // batches ahead
  uint64_t seed = 0;         // of order and augmentation
  bool shuffle = false;
  bool drop_last = false;  // leave out a last batch that is not full
  bool bytes = false;      // images come as bytes and placements, if moves_bytes() holds
  int rank = 0;            // of world_size ranks, which share each global batch
  int world_size = 1;
};

// One pass over the data; made by Loader::epoch. Batches are taken by the thread that made it, and
// their memory comes from the pool of that thread's Context. Destroying it early stops the workers.
class Epoch {
 public:
  class iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;
    using pointer = Batch*;
    using reference = Batch&;

    Batch& operator*() const { return epoch_->batch_; }
    Batch* operator->() const { return &epoch_->batch_; }
    iterator& operator++() {
      if (!epoch_->next()) epoch_ = nullptr;
      return *this;
    }
    bool operator==(const iterator& other) const { return epoch_ == other.epoch_; }

   private:
    friend class Epoch;
    explicit iterator(Epoch* epoch) : epoch_(epoch) {}
    Epoch* epoch_;
  };

  ~Epoch();
  Epoch(Epoch&&) noexcept;

  iterator begin() { return iterator(next() ? this : nullptr); }
  iterator end() { return iterator(nullptr); }
  // Waits for the next batch; false after the last. Rethrows what a worker threw.
  bool next();
  Batch& batch() { return batch_; }  // the one that next() brought
  bool ready() const;  // next() would bring a batch, or throw, without waiting for workers

 private:
  friend class Loader;
  class State;
  explicit Epoch(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
  Batch batch_;
};

class Loader {
 public:
  // Throws InputError for impossible options and for a set smaller than one full batch when the
  // last is to be dropped.
  Loader(std::shared_ptr<const ImageDataset> dataset, const Augmentation& augmentation,
         const LoaderOptions& options);

  // The same for every rank. A rank's share of the last batch may be smaller than another's, and
  // empty (count 0, tensors undefined) when fewer images than ranks are left.
  int64_t batches_per_epoch() const;
  const ImageDataset& dataset() const { return *dataset_; }
  const Augmentation& augmentation() const { return augmentation_; }

  // Starts reading epoch `number` (0, 1, …) at batch `first_batch`; the batches are those that a
  // whole epoch would give from there on.
  Epoch epoch(int64_t number, int64_t first_batch = 0) const;

 private:
  std::shared_ptr<const ImageDataset> dataset_;
  Augmentation augmentation_;
  LoaderOptions options_;
};

}  // namespace heddle
