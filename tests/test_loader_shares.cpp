// Which rank gets which images: shares of the global batch, by class, fixed, and groups.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <set>

#include "core/context.h"
#include "core/error.h"
#include "tests/loader_helpers.h"

namespace heddle {
namespace {

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

}  // namespace
}  // namespace heddle
