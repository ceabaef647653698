// The loader: the same batches with any number of workers, and no hang or loss at the end.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <thread>

#include "core/context.h"
#include "core/error.h"
#include "core/kernels.h"
#include "data/loader.h"
#include "data/shapes.h"
#include "tests/data_files.h"

namespace heddle {
namespace {

const Augmentation kTiny{.size = 8, .crop = Crop::pad, .padding = 1, .flip = true};

// Images whose label is their number; reading may be irregularly slow, and may fail at one of them.
class Numbered final : public ImageDataset {
 public:
  explicit Numbered(int64_t size, int64_t failing = -1, bool slow = false)
      : ImageDataset({"numbered", {"a"}, 8, {}}), size_(size), failing_(failing), slow_(slow) {}
  int64_t size() const override { return size_; }
  int label(int64_t index) const override { return static_cast<int>(index); }
  void read(int64_t index, Image& out) const override {
    ++reads;
    if (slow_) std::this_thread::sleep_for(std::chrono::microseconds(index * 37 % 400));
    check(index != failing_, "image ", index, " is broken");
    out.label = label(index);
    out.width = out.height = 8;
    out.pixels.assign(192, static_cast<uint8_t>(index));
  }
  mutable std::atomic<int64_t> reads{0};

 private:
  int64_t size_, failing_;
  bool slow_;
};

struct Seen {
  std::vector<std::vector<float>> images;
  std::vector<std::vector<float>> labels;
  std::vector<int64_t> first;
  bool operator==(const Seen&) const = default;
};

Seen take(Epoch epoch, int most = 1000000) {
  Seen seen;
  for (auto& batch : epoch) {
    CHECK(batch.images.shape()[0] == batch.count);
    seen.images.push_back(batch.images.to_vector());
    const int32_t* labels = batch.labels.data<int32_t>();
    seen.labels.emplace_back(labels, labels + batch.count);
    seen.first.push_back(batch.first_sample);
    if (static_cast<int>(seen.first.size()) == most) break;
  }
  return seen;
}

std::vector<float> joined(const std::vector<std::vector<float>>& parts) {
  std::vector<float> all;
  for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

TEST_CASE("loader: a batch is ready once its last image is") {
  struct Gated final : ImageDataset {
    Gated() : ImageDataset({"gated", {"a"}, 8, {}}) {}
    int64_t size() const override { return 6; }
    int label(int64_t) const override { return 0; }
    void read(int64_t index, Image& out) const override {
      open[static_cast<size_t>(index)].wait(false);
      out.label = 0;
      out.width = out.height = 8;
      out.pixels.assign(192, 0);
    }
    mutable std::array<std::atomic<bool>, 6> open = {};
  };
  Context context;
  const auto set = std::make_shared<Gated>();
  const auto pass = [&](size_t i) {
    set->open[i] = true;
    set->open[i].notify_all();
  };
  Epoch epoch = Loader(set, kTiny, {.batch_size = 3, .workers = 2}).epoch(0);
  const auto wait_until_ready = [&] {
    while (!epoch.ready()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  CHECK_FALSE(epoch.ready());
  pass(0);
  pass(1);
  CHECK_FALSE(epoch.ready());
  pass(2);
  wait_until_ready();
  CHECK(epoch.next());
  CHECK_FALSE(epoch.ready());
  for (size_t i : {3, 4, 5}) pass(i);
  wait_until_ready();
  CHECK(epoch.next());
  CHECK_FALSE(epoch.ready());  // there is none
  CHECK_FALSE(epoch.next());
}

TEST_CASE("loader: the number of workers changes nothing") {
  Context context;
  const std::shared_ptr<const ImageDataset> shapes =
      render_shapes(Split::train, {.image_size = 16, .train_images = 203});
  const auto augmentation = make_augmentation("cutout", shapes->info(), Split::train, 16);
  LoaderOptions options{.batch_size = 20, .workers = 0, .seed = 9, .shuffle = true};
  const Seen expected = take(Loader(shapes, augmentation, options).epoch(2));
  REQUIRE(expected.first.size() == 11);
  CHECK(expected.labels.back().size() == 3);
  for (const int workers : {1, 3})
    for (const int prefetch : {1, 4}) {
      options.workers = workers;
      options.prefetch = prefetch;
      CHECK(take(Loader(shapes, augmentation, options).epoch(2)) == expected);
    }
  options.seed = 10;
  CHECK(take(Loader(shapes, augmentation, options).epoch(2)).labels != expected.labels);
}

TEST_CASE("loader: bytes augmented as a batch give the same images, bit for bit") {
  Context context;
  const std::shared_ptr<const ImageDataset> shapes =
      render_shapes(Split::train, {.image_size = 16, .train_images = 203});
  Augmentation augmentation = make_augmentation("cutout", shapes->info(), Split::train, 16);
  augmentation.normalization = {{0.4914f, 0.4822f, 0.4465f}, {0.2470f, 0.2435f, 0.2616f}};
  LoaderOptions options{.batch_size = 50, .workers = 2, .seed = 9, .shuffle = true};
  const Seen expected = take(Loader(shapes, augmentation, options).epoch(2));
  options.bytes = true;
  for (Layout layout : {Layout::plain, Layout::nhwc})
    for (DType dtype : {DType::f32, DType::bf16}) {
      size_t number = 0;
      for (auto& batch : Loader(shapes, augmentation, options).epoch(2)) {
        CHECK_FALSE(batch.images.defined());
        const Tensor images = Tensor::empty_on(Device{}, {batch.count, 3, 16, 16}, dtype, layout);
        augment_bytes(augmentation, batch.bytes, batch.placements, images);
        const Tensor whole = Tensor::from(expected.images[number++], images.shape());
        CHECK(images.to_vector() == converted(whole, dtype, Layout::plain).to_vector());
        const int32_t* labels = batch.labels.data<int32_t>();
        CHECK(std::vector<float>(labels, labels + batch.count) == expected.labels[number - 1]);
      }
      CHECK(number == 5);
    }
  augmentation = make_augmentation("none", shapes->info(), Split::train, 8);
  CHECK_FALSE(moves_bytes(augmentation));
  for (auto& batch : Loader(shapes, augmentation, options).epoch(2)) {
    CHECK(batch.images.defined());  // bytes and placements are not enough
    CHECK_FALSE(batch.bytes.defined());
  }
  augmentation.crop = Crop::none;
  CHECK_THROWS_AS(take(Loader(shapes, augmentation, options).epoch(0)), InputError);
}

TEST_CASE("loader: every image once, in a new order each epoch") {
  Context context;
  const auto set = std::make_shared<Numbered>(101, -1, true);
  Loader loader(set, kTiny, {.batch_size = 10, .workers = 3, .shuffle = true});
  CHECK(loader.batches_per_epoch() == 11);
  std::vector<float> numbers(101);
  std::iota(numbers.begin(), numbers.end(), 0.0f);
  const auto first = joined(take(loader.epoch(0)).labels),
             second = joined(take(loader.epoch(1)).labels);
  CHECK(first != second);
  CHECK(first != numbers);
  CHECK(std::is_permutation(first.begin(), first.end(), numbers.begin(), numbers.end()));
  CHECK(std::is_permutation(second.begin(), second.end(), numbers.begin(), numbers.end()));
  Loader plain(set, kTiny, {.batch_size = 10, .workers = 2});
  CHECK(joined(take(plain.epoch(0)).labels) == numbers);
  Loader full(set, kTiny, {.batch_size = 10, .workers = 2, .drop_last = true});
  CHECK(full.batches_per_epoch() == 10);
  CHECK(take(full.epoch(0)).first.back() == 90);
}

TEST_CASE("loader: the first order of images is fixed") {
  // Runs must be repeatable on another day: this fails when shuffling changes.
  Context context;
  Loader loader(std::make_shared<Numbered>(10), kTiny,
                {.batch_size = 10, .workers = 0, .seed = 1, .shuffle = true});
  CHECK(joined(take(loader.epoch(0)).labels) == std::vector<float>{2, 5, 9, 1, 4, 8, 3, 0, 7, 6});
}

TEST_CASE("loader: an epoch resumes at any batch") {
  Context context;
  const auto set = std::make_shared<Numbered>(95);
  for (const int workers : {0, 2}) {
    Loader loader(set, kTiny, {.batch_size = 10, .workers = workers, .shuffle = true});
    const Seen whole = take(loader.epoch(3)), rest = take(loader.epoch(3, 4));
    REQUIRE(rest.first.size() == 6);
    CHECK(joined(rest.images) == joined({whole.images.begin() + 4, whole.images.end()}));
    CHECK(joined(rest.labels) == joined({whole.labels.begin() + 4, whole.labels.end()}));
    CHECK(rest.first.front() == 40);
    CHECK(take(loader.epoch(3, 10)).first.empty());
  }
}

TEST_CASE("loader: ranks share the global batch") {
  Context context;
  const auto set = std::make_shared<Numbered>(102);
  const Seen whole = take(
      Loader(set, kTiny, {.batch_size = 12, .workers = 0, .seed = 4, .shuffle = true}).epoch(1));
  std::vector<Seen> parts;
  for (int rank = 0; rank < 3; ++rank)
    parts.push_back(take(Loader(set, kTiny,
                                {.batch_size = 4,
                                 .workers = 2,
                                 .seed = 4,
                                 .shuffle = true,
                                 .rank = rank,
                                 .world_size = 3})
                             .epoch(1)));
  for (size_t b = 0; b < whole.first.size(); ++b)
    CHECK(joined({parts[0].images[b], parts[1].images[b], parts[2].images[b]}) == whole.images[b]);

  // One image is left for two ranks: the same number of batches, one of them empty.
  const auto odd = std::make_shared<Numbered>(9);
  std::vector<int64_t> counts;
  for (int rank = 0; rank < 2; ++rank) {
    Loader loader(odd, kTiny, {.batch_size = 4, .workers = 1, .rank = rank, .world_size = 2});
    for (auto& batch : loader.epoch(0)) counts.push_back(batch.count);
  }
  CHECK(counts == std::vector<int64_t>{4, 0, 4, 1});
}

TEST_CASE("loader: shares by class are the same images in every epoch, in a new order") {
  Context context;
  const auto set = std::make_shared<Numbered>(59);  // its labels are the images' numbers
  for (const bool shuffle : {false, true})
    for (int rank = 0; rank < 3; ++rank) {
      const Loader loader(set, kTiny,
                          {.batch_size = 4,
                           .workers = 1,
                           .shuffle = shuffle,
                           .shards = Shards::by_class,
                           .rank = rank,
                           .world_size = 3});
      std::vector<float> share(static_cast<size_t>(59 * (rank + 1) / 3 - 59 * rank / 3));
      std::iota(share.begin(), share.end(), static_cast<float>(59 * rank / 3));
      const Seen first = take(loader.epoch(0)), second = take(loader.epoch(1));
      CHECK((joined(first.labels) == joined(second.labels)) == !shuffle);
      CHECK((joined(first.labels) == share) == !shuffle);
      for (const Seen& seen : {first, second}) {
        auto labels = joined(seen.labels);
        std::ranges::sort(labels);
        CHECK(labels == share);
      }
      CHECK(joined(take(loader.epoch(1, 2)).labels) ==
            joined({second.labels.begin() + 2, second.labels.end()}));
    }
}

TEST_CASE("loader: fixed shares depend on the number of ranks alone") {
  Context context;
  const auto set = std::make_shared<Numbered>(59);
  std::vector<float> all;
  for (int rank = 0; rank < 3; ++rank) {
    std::vector<float> share;
    for (const uint64_t seed : {1, 2})
      for (int64_t number = 0; number < 2; ++number) {
        LoaderOptions options{.batch_size = 4, .seed = seed, .shuffle = true};
        options.shards = Shards::fixed;
        options.rank = rank;
        options.world_size = 3;
        auto labels = joined(take(Loader(set, kTiny, options).epoch(number)).labels);
        CHECK(!std::ranges::is_sorted(labels));
        std::ranges::sort(labels);
        if (share.empty()) share = labels;
        CHECK(labels == share);
        options.drop_last = true;  // what is left out is left out of the rank's own share
        for (const float label : joined(take(Loader(set, kTiny, options).epoch(number)).labels))
          CHECK(std::ranges::binary_search(share, label));
      }
    all.insert(all.end(), share.begin(), share.end());
    CHECK(share.back() - share.front() > 30);  // not neighbours
  }
  std::ranges::sort(all);
  std::vector<float> expected(59);
  std::iota(expected.begin(), expected.end(), 0.0f);
  CHECK(all == expected);
}

LoaderOptions group_options(int rank, int ranks, double rate, uint64_t group_seed,
                            uint64_t seed = 1) {
  LoaderOptions options{.batch_size = 4, .seed = seed, .shuffle = true};
  options.rank = rank;
  options.world_size = ranks;
  options.group_rate = rate;
  options.group_seed = group_seed;
  return options;
}

TEST_CASE("loader: groups are the same for every seed, epoch and number of ranks") {
  Context context;
  const auto set = std::make_shared<Numbered>(43);  // ten groups, three images in none
  std::set<std::vector<float>> groups;
  for (const int ranks : {1, 2, 3})
    for (const uint64_t seed : {0, 5}) {
      std::map<std::vector<float>, std::set<int>> owners;
      for (int rank = 0; rank < ranks; ++rank)
        for (int64_t number = 0; number < 3; ++number)
          for (auto& batch :
               Loader(set, kTiny, group_options(rank, ranks, 0.3, seed, seed + 3)).epoch(number))
            if (batch.count > 0) {
              const int32_t* labels = batch.labels.data<int32_t>();
              owners[{labels, labels + batch.count}].insert(rank);
            }
      for (const auto& [group, ranks_of_it] : owners) {
        CHECK(group.size() == 4);
        CHECK(ranks_of_it.size() == 1);
        groups.insert(group);
      }
    }
  CHECK(groups.size() == 10);
  std::set<float> images;
  for (const auto& group : groups) images.insert(group.begin(), group.end());
  CHECK(images.size() == 40);
}

TEST_CASE("loader: the groups of a step are drawn independently") {
  Context context;
  const auto set = std::make_shared<Numbered>(400);
  constexpr double kRate = 0.002;  // 500 steps an epoch
  std::map<std::vector<float>, int64_t> times;
  double mean = 0, squares = 0;
  int64_t empty = 0, steps = 0, repeated = 0;
  std::set<std::vector<float>> before;
  for (const uint64_t seed : {0, 7})
    for (int64_t number = 0; number < 10; ++number) {
      const Loader loader(set, kTiny, group_options(0, 1, kRate * 10, seed));
      CHECK(loader.batches_per_epoch() == 50);
      CHECK(loader.groups() == 100);
      Epoch epoch = loader.epoch(number);
      for (int64_t step = 0; step < 50; ++step, ++steps) {
        const int64_t batches = epoch.batches_in_step(step);
        int64_t drawn = 0;
        std::set<std::vector<float>> now;
        for (int64_t i = 0; i < batches; ++i) {
          CHECK(epoch.next());
          if (epoch.batch().count == 0) continue;
          const int32_t* labels = epoch.batch().labels.data<int32_t>();
          ++times[{labels, labels + 4}];
          now.insert({labels, labels + 4});
          ++drawn;
        }
        CHECK(batches == std::max<int64_t>(drawn, 1));
        repeated += !now.empty() && now == before ? 1 : 0;
        before = now;
        empty += drawn == 0 ? 1 : 0;
        mean += static_cast<double>(drawn);
        squares += static_cast<double>(drawn * drawn);
      }
      CHECK(!epoch.next());
    }
  mean /= static_cast<double>(steps);
  // Binomial: 100 groups, probability 0.02; within five standard deviations over 1000 steps.
  CHECK(mean == doctest::Approx(2).epsilon(0.11));
  CHECK(squares / static_cast<double>(steps) - mean * mean == doctest::Approx(1.96).epsilon(0.25));
  CHECK(static_cast<double>(empty) == doctest::Approx(1000 * std::pow(0.98, 100)).epsilon(0.4));
  CHECK(repeated < 10);  // equal draws of one group each: three are expected
  CHECK(times.size() == 100);
  for (const auto& [group, n] : times) CHECK((n > 0 && n < 43));  // five standard deviations
}

TEST_CASE("loader: a group's images do not depend on which others are drawn") {
  Context context;
  const auto set = std::make_shared<Numbered>(400);
  std::map<std::pair<int64_t, float>, std::vector<float>> seen;  // by step and first label
  int64_t both = 0;
  for (const double rate : {0.1, 0.3})
    for (int rank = 0; rank < 2; ++rank) {
      Epoch epoch = Loader(set, kTiny, group_options(rank, 2, rate, 5)).epoch(1);
      for (int64_t step = 0; step < 3; ++step)
        for (int64_t i = 0; i < epoch.batches_in_step(step); ++i) {
          CHECK(epoch.next());
          if (epoch.batch().count == 0) continue;
          const auto images = epoch.batch().images.to_vector();
          const auto label = static_cast<float>(epoch.batch().labels.data<int32_t>()[0]);
          const auto [at, first] = seen.try_emplace({step, label}, images);
          both += first ? 0 : 1;
          CHECK(at->second == images);
        }
    }
  CHECK(both >= 5);
}

TEST_CASE("loader: groups drawn with a seed continue after a resume, others are drawn anew") {
  Context context;
  const auto set = std::make_shared<Numbered>(400);
  const auto rest = [&](uint64_t seed, int64_t first) {
    const Loader loader(set, kTiny, group_options(1, 2, 0.1, seed));
    Epoch epoch = loader.epoch(2, first);
    Seen seen;
    for (int64_t step = first; step < 10; ++step)
      for (int64_t i = 0; i < epoch.batches_in_step(step); ++i) {
        CHECK(epoch.next());
        if (step < 6 || epoch.batch().count == 0) continue;
        seen.images.push_back(epoch.batch().images.to_vector());
        const int32_t* labels = epoch.batch().labels.data<int32_t>();
        seen.labels.emplace_back(labels, labels + 4);
        seen.first.push_back(epoch.batch().first_sample);
      }
    CHECK(!epoch.next());
    return seen;
  };
  CHECK(rest(9, 0) == rest(9, 6));
  CHECK(rest(9, 0) == rest(9, 0));
  CHECK(rest(0, 0) != rest(0, 0));
  CHECK(rest(9, 10).labels.empty());
  CHECK_THROWS_AS(Loader(set, kTiny, group_options(0, 1, 1.5, 0)), InputError);
  CHECK_THROWS_AS(Loader(std::make_shared<Numbered>(7), kTiny, group_options(0, 2, 0.5, 0)),
                  InputError);
}

TEST_CASE("loader: a worker's exception arrives with its batch") {
  Context context;
  for (const int workers : {0, 1, 3}) {
    Loader loader(std::make_shared<Numbered>(100, 57, true), kTiny,
                  {.batch_size = 10, .workers = workers});
    int batches = 0;
    const auto loop = [&] {
      for (auto& batch : loader.epoch(0)) batches += batch.count == 10;
    };
    CHECK(input_error(loop) == "image 57 is broken");
    CHECK(batches == 5);
  }
}

TEST_CASE("loader: stopping early does not hang and reads no further") {
  Context context;
  for (const int workers : {0, 1, 3}) {
    const auto set = std::make_shared<Numbered>(100000);
    Loader loader(set, kTiny, {.batch_size = 10, .workers = workers, .prefetch = 4});
    for (const int batches : {1, 3}) CHECK(take(loader.epoch(0), batches).first.size() == batches);
    { const Epoch unused = loader.epoch(1); }
    CHECK(set->reads <= 10 * (1 + 4 + 3 + 4 + 4));
  }
}

TEST_CASE("loader: a batch that is kept does not change") {
  Context context;
  Loader loader(std::make_shared<Numbered>(100), kTiny, {.batch_size = 10, .workers = 2});
  std::vector<Tensor> kept;
  std::vector<std::vector<float>> values;
  for (auto& batch : loader.epoch(0)) {
    kept.push_back(batch.images);
    values.push_back(batch.images.to_vector());
  }
  for (size_t i = 0; i < kept.size(); ++i) CHECK(kept[i].to_vector() == values[i]);
}

TEST_CASE("loader: invalid options are refused") {
  const auto set = std::make_shared<Numbered>(100);
  const auto make = [&](const LoaderOptions& options) {
    return input_error([&] { Loader(set, kTiny, options); });
  };
  CHECK(contains(make({.batch_size = 0}), "found 0"));
  CHECK(contains(make({.workers = -1}), "found -1"));
  CHECK(contains(make({.prefetch = 0}), "found 0"));
  CHECK(contains(make({.rank = 1}), "expected a rank below 1, found 1"));
  CHECK(contains(make({.batch_size = 101, .drop_last = true}),
                 "at least one full batch of 101 images, found a data set of 100"));
  Loader loader(set, kTiny, {.batch_size = 50});
  CHECK(contains(input_error([&] { loader.epoch(0, 3); }), "expected a first batch from 0 to 2"));
}

}  // namespace
}  // namespace heddle
