// Copies of batches to the device of HEDDLE_TEST_DEVICE.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/kernels.h"
#include "data/feed.h"
#include "data/shapes.h"
#include "tests/device.h"

using namespace heddle;

namespace {

constexpr int64_t kImages = 26, kBatch = 4;

Augmentation moved() { return {.size = 8, .crop = Crop::pad, .padding = 1, .flip = true}; }

Loader loader_of(std::shared_ptr<const ImageDataset> set, bool bytes, int workers) {
  return {std::move(set),
          moved(),
          {.batch_size = kBatch, .workers = workers, .seed = 3, .shuffle = true, .bytes = bytes}};
}

std::shared_ptr<const ImageDataset> shapes() {
  return render_shapes(Split::train, {.image_size = 8, .train_images = kImages});
}

// Waits until the next batch is being copied.
void prefetch_surely(BatchFeed& feed) {
  for (int tries = 0; tries < 5000 && !feed.prefetch(); ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace

TEST_CASE("batch feed: the loader's batches, copied ahead or not") {
  Context context(on_test_device());
  const auto set = shapes();
  for (bool bytes : {false, true})
    for (int workers : {0, 2})
      for (DType dtype : {DType::f32, DType::bf16}) {
        CAPTURE(bytes);
        CAPTURE(workers);
        CAPTURE(dtype_name(dtype));
        const Loader loader = loader_of(set, bytes, workers), plain = loader_of(set, false, 0);
        BatchFeed feed(loader.epoch(1), loader.augmentation(), context.device(), dtype);
        // Copies that a GPU may execute arbitrarily late.
        std::vector<Tensor> found;
        std::vector<std::vector<float>> expected;
        for (auto& batch : plain.epoch(1)) {
          REQUIRE(feed.next());
          const FedBatch& fed = feed.batch();
          CHECK(fed.images.device() == context.device());
          CHECK(fed.images.dtype() == dtype);
          CHECK(fed.count == batch.count);
          CHECK(fed.first_sample == batch.first_sample);
          CHECK(fed.labels.to_vector() == batch.labels.to_vector());
          found.push_back(fed.images.clone());
          expected.push_back(converted(batch.images, dtype, Layout::plain).to_vector());
          const bool last = std::ssize(found) * kBatch >= kImages;
          if (on_gpu() && workers > 0 && !last) prefetch_surely(feed);
          CHECK(feed.prefetch() == (on_gpu() && workers > 0 && !last));
          if (on_gpu() && workers > 0 && !last) {
            const SideStream copies(StreamUse::copy);
            CHECK(context.pool(context.device())->bytes_in_use() > 0);
          }
        }
        CHECK_FALSE(feed.next());
        CHECK_FALSE(feed.prefetch());
        REQUIRE(found.size() == 7);
        for (size_t i = 0; i < found.size(); ++i) CHECK(found[i].to_vector() == expected[i]);
      }
}

TEST_CASE("batch feed: a broken image fails its own batch") {
  struct Broken final : ImageDataset {
    Broken() : ImageDataset({"broken", {"a"}, 8, {}}) {}
    int64_t size() const override { return kImages; }
    int label(int64_t) const override { return 0; }
    void read(int64_t index, Image& out) const override {
      check(index != 9, "image ", index, " is broken");
      out.label = 0;
      out.width = out.height = 8;
      out.pixels.assign(192, 7);
    }
  };
  Context context(on_test_device());
  for (bool ahead : {false, true}) {
    const Loader loader(std::make_shared<Broken>(), moved(), {.batch_size = kBatch, .bytes = true});
    BatchFeed feed(loader.epoch(0), loader.augmentation(), context.device(), DType::f32);
    for (int i = 0; i < 2; ++i) {
      REQUIRE(feed.next());
      if (ahead && on_gpu()) prefetch_surely(feed);
    }
    CHECK_THROWS_WITH_AS(feed.next(), "image 9 is broken", InputError);
  }
}

#ifdef HEDDLE_SIMULATED_GPU
TEST_CASE("batch feed: waits for the loader as long as the GPU works on the step") {
  struct Held final : ImageDataset {
    Held() : ImageDataset({"held", {"a"}, 8, {}}) {}
    int64_t size() const override { return 2 * kBatch; }
    int label(int64_t) const override { return 0; }
    void read(int64_t index, Image& out) const override {
      while (index >= kBatch && held) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      out.label = 0;
      out.width = out.height = 8;
      out.pixels.assign(192, 7);
    }
    mutable std::atomic<bool> held = true;
  };
  Context context(on_test_device());
  if (!on_gpu()) return;
  const auto set = std::make_shared<Held>();
  const Loader loader(set, moved(), {.batch_size = kBatch, .bytes = true});
  BatchFeed feed(loader.epoch(0), loader.augmentation(), context.device(), DType::f32);
  struct Later {  // destroyed before the feed, whose workers wait for `held`
    const Held& set;
    std::thread thread;
    ~Later() {
      set.held = false;
      if (thread.joinable()) thread.join();
      unsetenv("SIMULATED_GPU_BUSY");
    }
  } later{*set, {}};
  REQUIRE(feed.next());
  CHECK_FALSE(feed.prefetch());  // the GPU has nothing to do
  setenv("SIMULATED_GPU_BUSY", "1", 1);
  const Tensor step = feed.batch().images.clone();
  later.thread = std::thread([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    set->held = false;
  });
  CHECK(feed.prefetch());
  REQUIRE(feed.next());
  CHECK(feed.batch().first_sample == kBatch);
  CHECK_FALSE(feed.prefetch());  // there is no batch to wait for
  const Loader alone(set, moved(), {.batch_size = kBatch, .workers = 0, .bytes = true});
  BatchFeed unread(alone.epoch(0), alone.augmentation(), context.device(), DType::f32);
  REQUIRE(unread.next());
  CHECK_FALSE(unread.prefetch());
}

TEST_CASE("batch feed: without memory for the next batch it is copied after the step") {
  Context context(on_test_device());
  if (!on_gpu()) return;
  struct Counted final : ImageDataset {
    explicit Counted(std::shared_ptr<const ImageDataset> of)
        : ImageDataset(of->info()), images(std::move(of)) {}
    int64_t size() const override { return images->size(); }
    int label(int64_t index) const override { return images->label(index); }
    void read(int64_t index, Image& out) const override {
      images->read(index, out);
      ++reads;
    }
    std::shared_ptr<const ImageDataset> images;
    mutable std::atomic<int64_t> reads = 0;
  };
  const auto set = std::make_shared<Counted>(shapes());
  const Loader loader = loader_of(set, true, 2), plain = loader_of(shapes(), false, 0);
  BatchFeed feed(loader.epoch(0), loader.augmentation(), context.device(), DType::f32);
  for (auto& batch : plain.epoch(0)) {
    REQUIRE(feed.next());
    CHECK(feed.batch().images.to_vector() == batch.images.to_vector());
    if (batch.first_sample + batch.count == kImages) break;
    // The loader has the next batch, or is about to: only memory is missing.
    const int64_t needed = std::min(kImages, batch.first_sample + 2 * kBatch);
    for (int tries = 0; tries < 10000 && set->reads < needed; ++tries)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    REQUIRE(set->reads >= needed);
    setenv("SIMULATED_GPU_MIB", "1", 1);  // from now on nothing is left
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CHECK_FALSE(feed.prefetch());
    CHECK_FALSE(feed.prefetch());
    unsetenv("SIMULATED_GPU_MIB");
  }
  CHECK_FALSE(feed.next());
}
#endif
