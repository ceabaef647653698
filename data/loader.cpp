#include "data/loader.h"

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/random.h"
#include "core/secret_random.h"

namespace heddle {

// A rank's batch.
struct EpochPart {
  int64_t begin, count;  // images of the epoch's order
  int64_t first_sample;
};

namespace {

constexpr int64_t kChunk = 8;  // images that a worker claims at a time

// Deals each rank's share of the images to its part of every global batch.
std::vector<uint32_t> deal(const std::vector<uint32_t>& sorted, const LoaderOptions& options) {
  const int64_t size = to_int64(sorted.size()), ranks = options.world_size;
  const int64_t full = size / (options.batch_size * ranks);
  std::vector<uint32_t> order(sorted.size());
  auto rest = order.begin() + full * options.batch_size * ranks;  // the last batch, not full
  for (int64_t rank = 0; rank < ranks; ++rank) {
    auto from = sorted.begin() + size * rank / ranks;
    for (int64_t batch = 0; batch < full; ++batch, from += options.batch_size)
      std::copy_n(from, options.batch_size,
                  order.begin() + (batch * ranks + rank) * options.batch_size);
    rest = std::copy(from, sorted.begin() + size * (rank + 1) / ranks, rest);
  }
  return order;
}

// Returns the images in an order in which each rank's share, or a group, is contiguous.
std::vector<uint32_t> cut_order(const ImageDataset& set, const LoaderOptions& options) {
  std::vector<uint32_t> order(to_size(set.size()));
  std::iota(order.begin(), order.end(), 0u);
  if (options.group_rate > 0 || options.shards == Shards::fixed)
    shuffle(order, 0, order.size(), Philox(0, stream_id(Stream::shuffle)));
  else if (options.shards == Shards::by_class)
    std::ranges::stable_sort(order, {}, [&](uint32_t image) { return set.label(image); });
  return order;
}

// Returns the epoch's order of images, shuffled by (seed, epoch), equal on all ranks; if ranks have
// shares of their own, within each.
std::vector<uint32_t> make_order(const ImageDataset& set, const LoaderOptions& options,
                                 int64_t epoch) {
  std::vector<uint32_t> order = cut_order(set, options);
  if (options.group_rate > 0) return order;
  const int64_t size = set.size();
  const int64_t shares = options.shards == Shards::random ? 1 : options.world_size;
  const Philox rng(options.seed, stream_id(Stream::shuffle, static_cast<uint64_t>(epoch)));
  for (int64_t share = 0; share < shares && options.shuffle; ++share)
    shuffle(order, to_size(size * share / shares), to_size(size * (share + 1) / shares), rng);
  return shares == 1 ? order : deal(order, options);
}

// Draws a rank's groups for the steps of an epoch from `first` on.
std::vector<std::vector<EpochPart>> draw_groups(const LoaderOptions& options, int64_t epoch,
                                                int64_t first, int64_t steps, int64_t groups) {
  std::vector<std::vector<EpochPart>> out(to_size(steps));
  for (int64_t step = first; step < steps; ++step) {
    std::vector<EpochPart>& parts = out[to_size(step)];
    SecretRandom random(options.group_seed, static_cast<uint64_t>(epoch) << 36 |
                                                static_cast<uint64_t>(step) << 12 |
                                                static_cast<uint64_t>(options.rank));
    for (int64_t group = options.rank; group < groups; group += options.world_size) {
      if (random.uniform() >= options.group_rate) continue;
      // Which other groups are drawn changes nothing in this one's augmentation.
      parts.push_back({group * options.batch_size, options.batch_size,
                       (step * groups + group) * options.batch_size});
    }
    if (parts.empty()) parts.push_back({0, 0, 0});
  }
  return out;
}

}  // namespace

// Implements the ring of slots pictured in the header.
class Epoch::State {
 public:
  State(std::shared_ptr<const ImageDataset> dataset, const Augmentation& augmentation,
        const LoaderOptions& options, int64_t epoch, int64_t first_batch, int64_t batches,
        int64_t groups)
      : dataset_(std::move(dataset)),
        augmentation_(augmentation),
        options_(options),
        order_(make_order(*dataset_, options, epoch)),
        rng_(options.seed, stream_id(Stream::augment, static_cast<uint64_t>(epoch))),
        ring_(to_size(options.workers > 0 ? options.prefetch : 1)),
        next_(first_batch),
        queued_(first_batch),
        claimed_(first_batch),
        end_(batches) {
    if (options_.group_rate > 0) {
      steps_ = draw_groups(options, epoch, first_batch, batches, groups);
      for (const std::vector<EpochPart>& parts : steps_)
        drawn_.insert(drawn_.end(), parts.begin(), parts.end());
      next_ = queued_ = claimed_ = 0;
      end_ = to_int64(drawn_.size());
    }
    if (options_.workers == 0) return;
    queue_batches();
    try {
      for (int i = 0; i < options_.workers; ++i) workers_.emplace_back([this] { work(); });
    } catch (...) {
      stop();
      throw;
    }
  }

  ~State() { stop(); }

  bool next(Batch& out) {
    out = {};  // its memory may be reused for the batch that is queued next
    if (next_ >= end_) return false;
    queue_batches();
    Slot& slot = slot_of(next_);
    if (workers_.empty()) {
      Image image;
      read_chunk(slot, 0, slot.batch.count, image);
    } else {
      std::unique_lock lock(mutex_);
      ready_.wait(lock, [&] { return slot.missing == 0; });
      if (claimed_ == next_) ++claimed_;  // an empty batch that no worker has come across
    }
    if (slot.error) {
      end_ = next_;
      stop();
      std::rethrow_exception(slot.error);
    }
    out = std::move(slot.batch);
    slot.batch = {};
    ++next_;
    if (!workers_.empty()) queue_batches();
    return true;
  }

  bool coming() const { return next_ < end_ && !workers_.empty(); }

  bool ready(std::chrono::microseconds wait) {
    if (!coming()) return false;
    std::unique_lock lock(mutex_);
    return ready_.wait_for(lock, wait,
                           [&] { return next_ < queued_ && slot_of(next_).missing == 0; });
  }

  int64_t batches_in_step(int64_t step) const { return to_int64(steps_.at(to_size(step)).size()); }

 private:
  struct Slot {
    Batch batch;
    int64_t begin = 0;    // of its images in the order
    int64_t missing = 0;  // images not read yet
    std::exception_ptr error;
    int64_t error_image = 0;  // the first one in the batch is reported
  };

  Slot& slot_of(int64_t batch) { return ring_[to_size(batch) % ring_.size()]; }

  EpochPart part_of(int64_t number) const {
    if (!drawn_.empty()) return drawn_[to_size(number)];
    const int64_t size = dataset_->size(), global = options_.batch_size * options_.world_size;
    const int64_t from = number * global, length = std::min(global, size - from);
    const int64_t begin = from + length * options_.rank / options_.world_size;
    const int64_t end = from + length * (options_.rank + 1) / options_.world_size;
    return {begin, end - begin, begin};
  }

  // Allocates a batch; called by the consumer, from whose pool the memory comes.
  Batch make_batch(const EpochPart& part) const {
    Batch batch;
    batch.first_sample = part.first_sample;
    batch.count = part.count;
    if (batch.count == 0) return batch;
    const int64_t side = augmentation_.size;
    if (options_.bytes) {
      batch.bytes = Tensor::empty_pinned({batch.count, side, side, 3}, DType::u8);
      batch.placements = Tensor::empty_pinned({batch.count, 5}, DType::i32);
    } else {
      batch.images = Tensor::empty_pinned({batch.count, 3, side, side});
    }
    batch.labels = Tensor::empty_on(Device{}, {batch.count}, DType::i32);
    return batch;
  }

  void queue_batches() {
    const int64_t end = std::min(end_, next_ + to_int64(ring_.size()));
    for (; queued_ < end;) {
      const EpochPart part = part_of(queued_);
      Batch batch = make_batch(part);
      {
        const std::lock_guard lock(mutex_);
        Slot& slot = slot_of(queued_);
        slot.begin = part.begin;
        slot.missing = batch.count;
        slot.batch = std::move(batch);
        ++queued_;
      }
      work_.notify_all();
    }
  }

  void read_chunk(Slot& slot, int64_t begin, int64_t end, Image& image) {
    const int64_t values = int64_t{3} * augmentation_.size * augmentation_.size;
    const Batch& batch = slot.batch;
    for (int64_t i = begin; i < end; ++i) {
      const auto position = to_size(batch.first_sample + i);
      dataset_->read(order_[to_size(slot.begin + i)], image);
      batch.labels.data<int32_t>()[i] = image.label;
      if (!options_.bytes) {
        augment(augmentation_, image, rng_, position, batch.images.data<float>() + i * values);
        continue;
      }
      fit(augmentation_, image, rng_, position, batch.bytes.data<uint8_t>() + i * values);
      const Placement p = draw_placement(augmentation_, rng_, position);
      std::memcpy(batch.placements.data<int32_t>() + i * 5, &p, sizeof p);
    }
  }

  void work() {
    Image image;
    std::unique_lock lock(mutex_);
    while (true) {
      work_.wait(lock, [&] { return stopping_ || claimed_ < queued_; });
      if (stopping_) return;
      Slot& slot = slot_of(claimed_);
      const int64_t begin = claimed_images_, end = std::min(begin + kChunk, slot.batch.count);
      claimed_images_ = end;
      if (end == slot.batch.count) {
        ++claimed_;
        claimed_images_ = 0;
      }
      if (begin == end) continue;
      lock.unlock();
      std::exception_ptr error;
      try {
        read_chunk(slot, begin, end, image);
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      if (error && (!slot.error || begin < slot.error_image)) {
        slot.error = error;
        slot.error_image = begin;
      }
      slot.missing -= end - begin;
      if (slot.missing == 0) ready_.notify_one();
    }
  }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    work_.notify_all();
    for (auto& worker : workers_) worker.join();
    workers_.clear();
  }

  const std::shared_ptr<const ImageDataset> dataset_;
  const Augmentation augmentation_;
  const LoaderOptions options_;
  const std::vector<uint32_t> order_;
  const Philox rng_;
  std::vector<std::vector<EpochPart>> steps_;  // with groups: the batches of each step, and
  std::vector<EpochPart> drawn_;               // of all steps

  std::mutex mutex_;
  std::condition_variable work_, ready_;
  std::vector<Slot> ring_;
  std::vector<std::thread> workers_;
  int64_t next_;                // the consumer's next batch
  int64_t queued_;              // end of the batches that are allocated
  int64_t claimed_;             // batch whose images are being claimed,
  int64_t claimed_images_ = 0;  // and how many of them have been
  int64_t end_;
  bool stopping_ = false;
};

Epoch::Epoch(std::unique_ptr<State> state) : state_(std::move(state)) {}
Epoch::~Epoch() = default;
Epoch::Epoch(Epoch&&) noexcept = default;
bool Epoch::next() { return state_->next(batch_); }
bool Epoch::coming() const { return state_->coming(); }
bool Epoch::ready(std::chrono::microseconds wait) const { return state_->ready(wait); }
int64_t Epoch::batches_in_step(int64_t step) const { return state_->batches_in_step(step); }

Loader::Loader(std::shared_ptr<const ImageDataset> dataset, const Augmentation& augmentation,
               const LoaderOptions& options)
    : dataset_(std::move(dataset)), augmentation_(augmentation), options_(options) {
  check_augmentation(augmentation_);
  check(options_.batch_size > 0 && options_.batch_size <= int64_t{1} << 24,
        "loader: expected a batch size from 1 to 2^24, found ", options_.batch_size);
  check(options_.workers >= 0 && options_.workers <= 256,
        "loader: expected 0 to 256 workers, found ", options_.workers);
  check(options_.prefetch > 0 && options_.prefetch <= 256,
        "loader: expected to prefetch 1 to 256 batches, found ", options_.prefetch);
  check(options_.world_size > 0 && options_.rank >= 0 && options_.rank < options_.world_size,
        "loader: expected a rank below ", options_.world_size, ", found ", options_.rank);
  const int64_t size = dataset_->size();
  check(size > 0 && size <= int64_t{0xffffffff}, "loader: expected 1 to 2^32 - 1 images, found ",
        size);
  check(options_.group_rate == 0 || (options_.group_rate >= 1e-6 && options_.group_rate <= 1),
        "loader: expected a rate of groups of 0, or from 1e-6 to 1, found ", options_.group_rate);
  check(options_.group_rate == 0 || groups() >= options_.world_size, "loader: expected a group of ",
        options_.batch_size, " images for each of ", options_.world_size,
        " ranks, found a data set of ", size);
  check(batches_per_epoch() > 0, "loader: expected at least one full batch of ",
        options_.batch_size * options_.world_size, " images, found a data set of ", size);
}

int64_t Loader::groups() const { return dataset_->size() / options_.batch_size; }

int64_t Loader::batches_per_epoch() const {
  if (options_.group_rate > 0) return std::llround(1 / options_.group_rate);
  const int64_t global = options_.batch_size * options_.world_size;
  return (dataset_->size() + (options_.drop_last ? 0 : global - 1)) / global;
}

Epoch Loader::epoch(int64_t number, int64_t first_batch) const {
  check(number >= 0, "loader: expected an epoch from 0 on, found ", number);
  check(first_batch >= 0 && first_batch <= batches_per_epoch(),
        "loader: expected a first batch from 0 to ", batches_per_epoch(), ", found ", first_batch);
  return Epoch(std::make_unique<Epoch::State>(dataset_, augmentation_, options_, number,
                                              first_batch, batches_per_epoch(), groups()));
}

}  // namespace heddle
