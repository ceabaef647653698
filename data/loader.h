// Loader: worker threads read and augment images into batches ahead of the training loop. Batches
// and their order are the same, bit for bit, for any number of workers.
//
//   Loader loader(std::move(train), augmentation,
//                 {.batch_size = 128, .workers = 2, .shuffle = true});
//   for (auto& batch : loader.epoch(e)) use(batch.images, batch.labels);
//
// The batches of an epoch with prefetch = 3, in a ring of three slots. The consumer allocates;
// workers claim chunks of 8 images, in order, from queued batches; next() waits until no image is
// missing:
//
//     batch     4          5          6          7          8   …
//            +--------+ +--------+ +--------+ +--------+
//            | in use | | ready  | | 40/128 | | queued |
//            +--------+ +--------+ +--------+ +--------+
//     held by consumer   slot 2     slot 0     slot 1
//                        next() ->  workers -> (next claimed)
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "core/tensor.h"
#include "data/augment.h"
#include "data/dataset.h"

namespace heddle {

struct Batch {
  Tensor images;             // f32 (N, 3, S, S), plain layout; or, with LoaderOptions::bytes,
  Tensor bytes, placements;  // u8 (N, S, S, 3) and i32 (N, 5) for augment_bytes()
  Tensor labels;             // i32 (N); all of these on the CPU
  int64_t first_sample = 0;  // index of the first image in the epoch's global order
  int64_t count = 0;         // N; 0: tensors are undefined
};

// Which images a rank has: a random part, another in each epoch; a random part that depends on no
// option but world_size, the same in all epochs; or one that is cut from the images sorted by
// label.
enum class Shards : uint8_t { random, fixed, by_class };

struct LoaderOptions {
  int64_t batch_size = 128;  // per rank
  int workers = 1;           // threads; 0: the calling thread reads, without prefetching
  int prefetch = 3;          // batches read in advance
  uint64_t seed = 0;         // of order and augmentation
  bool shuffle = false;
  bool drop_last = false;  // omit a last batch that is not full
  Shards shards = Shards::random;
  bool bytes = false;  // batches hold bytes and placements instead of images
  int rank = 0;        // one of world_size ranks, which share each global batch
  int world_size = 1;

  // Above 0: a batch is a group, one of those into which the images are cut, batch_size each, once
  // and for all: no other option changes them. Images that fill no group are left out. Each group
  // takes part in a step with this probability, independently of the others (Poisson sampling), by
  // SecretRandom with this seed. An epoch has 1 / group_rate steps, rounded.
  double group_rate = 0;
  uint64_t group_seed = 0;  // 0: numbers that cannot be repeated
};

// One pass over the data, made by Loader::epoch and used by the thread that called it; batches are
// allocated in the pool of that thread's Context. Its destructor stops the workers.
class Epoch {
 public:
  class iterator {  // for loops over the epoch's batches
   public:
    Batch& operator*() const { return epoch_->batch_; }
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
  // Waits for the next batch; false after the last. Rethrows the first error of reading it.
  bool next();
  // Returns the batch of the last next(); valid until the following one.
  Batch& batch() { return batch_; }
  // Returns whether workers read a batch that next() has not delivered.
  bool coming() const;
  // Waits at most that long for the workers; returns whether next() would deliver a batch, or
  // throw, without waiting for them.
  bool ready(std::chrono::microseconds wait = {}) const;
  // Returns the number of this rank's batches in a step of the epoch, with groups: those that were
  // drawn or, if there is none, one empty batch. Steps before the first batch have none.
  int64_t batches_in_step(int64_t step) const;

 private:
  friend class Loader;
  class State;
  explicit Epoch(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
  Batch batch_;
};

class Loader {
 public:
  // Throws InputError for options out of range and, with drop_last, for a set smaller than one
  // global batch. The data set must be safe to read from several threads.
  Loader(std::shared_ptr<const ImageDataset> dataset, const Augmentation& augmentation,
         const LoaderOptions& options);

  // Returns the number of batches, the same on every rank; with groups, of steps. A rank's share of
  // the last batch may be smaller than another's, and empty if fewer images than ranks remain.
  int64_t batches_per_epoch() const;
  int64_t groups() const;  // of all ranks
  const ImageDataset& dataset() const { return *dataset_; }
  const Augmentation& augmentation() const { return augmentation_; }

  // Starts reading epoch `number` (0, 1, …) from batch `first_batch` (with groups: that step), with
  // the same batches as a whole epoch has from there. Throws InputError for numbers out of range.
  Epoch epoch(int64_t number, int64_t first_batch = 0) const;

 private:
  std::shared_ptr<const ImageDataset> dataset_;
  Augmentation augmentation_;
  LoaderOptions options_;
};

}  // namespace heddle
