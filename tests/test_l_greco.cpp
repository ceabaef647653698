// The planner against brute force, its promises in real numbers, and what it does when there is no
// plan; costs in place of bytes.
#include <doctest/doctest.h>

#include <chrono>
#include <cmath>
#include <limits>

#include "compress/l_greco.h"
#include "core/error.h"
#include "core/random.h"

using namespace heddle;

namespace {

// Errors fall and bytes grow with the candidate's number, as with bits or ranks.
std::vector<LayerChoices> random_layers(uint64_t seed, size_t layers, size_t candidates) {
  const Philox rng(seed, 1);
  uint64_t i = 0;
  std::vector<LayerChoices> out(layers);
  for (LayerChoices& layer : out) {
    double error = 20.0 * std::pow(10.0, rng.uniform(i++)), bytes = 1 + rng.below(i++, 1000);
    const double fall = 0.3 + 0.6 * rng.uniform(i++);
    for (size_t c = 0; c < candidates; ++c) {
      layer.settings.push_back(static_cast<double>(c + 1));
      layer.errors.push_back(error);
      layer.bytes.push_back(static_cast<int64_t>(bytes));
      error *= fall;
      bytes *= 1.2 + rng.uniform(i++);
    }
    layer.uniform = rng.below(i++, static_cast<uint32_t>(candidates));
  }
  return out;
}

// Least cost of all combinations whose rounded errors fit; -1 when none does.
int64_t brute_force(const std::vector<LayerChoices>& layers, double budget, int buckets) {
  int64_t best = -1;
  std::vector<size_t> at(layers.size(), 0);
  for (;;) {
    int64_t cost = 0;
    double steps = 0;
    for (size_t l = 0; l < layers.size(); ++l) {
      cost += layers[l].cost()[at[l]];
      steps += std::ceil(layers[l].errors[at[l]] / (budget / buckets));
    }
    if (steps <= buckets && (best < 0 || cost < best)) best = cost;
    size_t l = 0;
    while (l < layers.size() && ++at[l] == layers[l].settings.size()) at[l++] = 0;
    if (l == layers.size()) return best;
  }
}

}  // namespace

TEST_CASE("L-GreCo: the plan is the best of all, coarsely and finely rounded") {
  int solved = 0, refused = 0;
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    CAPTURE(seed);
    const auto layers = random_layers(seed, 1 + seed % 5, 2 + seed % 3);
    const int buckets = seed % 3 == 0 ? 7 : (seed % 3 == 1 ? 100 : 10000);
    const double alpha = seed % 4 == 0 ? 1.3 : 1.0;
    const LayerPlan plan = plan_layers(layers, {.alpha = alpha, .buckets = buckets});
    CHECK(plan.error <= plan.budget);
    CHECK(plan.bytes <= plan.uniform_bytes);
    const int64_t best = brute_force(layers, plan.budget, buckets);
    if (best < 0 || best > plan.uniform_bytes) {
      CHECK(plan.fallback != "");
      CHECK(plan.bytes == plan.uniform_bytes);
      ++refused;
    } else {
      CHECK(plan.fallback == "");
      CHECK(plan.bytes == best);
      ++solved;
    }
    double error = 0;
    for (size_t l = 0; l < layers.size(); ++l) error += layers[l].errors[plan.chosen[l]];
    CHECK(error == plan.error);
  }
  CHECK(solved > 2000);
  CHECK(refused > 50);
}

TEST_CASE("L-GreCo: a budget of its own, a strict one, and fallbacks that say why") {
  const auto layers = random_layers(5, 6, 4);
  const LayerPlan loose = plan_layers(layers, {.alpha = 3}), even = plan_layers(layers);
  CHECK(loose.bytes < even.bytes);
  CHECK(loose.budget == doctest::Approx(3 * even.budget));
  const LayerPlan own = plan_layers(layers, {.budget = loose.budget});
  CHECK(own.chosen == loose.chosen);
  // alpha below 1 may cost more bytes than the default.
  const LayerPlan strict = plan_layers(layers, {.alpha = 0.5});
  CHECK(strict.fallback == "");
  CHECK(strict.error <= 0.5 * even.budget);

  auto broken = layers;
  broken[2].errors[1] = std::numeric_limits<double>::quiet_NaN();
  CHECK(plan_layers(broken).fallback.find("not a number") != std::string::npos);
  for (LayerChoices& layer : broken) layer.errors.assign(4, 0.0);
  CHECK(plan_layers(broken).fallback.find("zero") != std::string::npos);
  CHECK(plan_layers(layers, {.alpha = 1e-9}).fallback.find("no plan") != std::string::npos);
  broken[0].bytes.pop_back();
  CHECK_THROWS_AS(plan_layers(broken), Error);
  CHECK(plan_layers({}).chosen.empty());
}

TEST_CASE("L-GreCo: layers that are alike are treated by their order, again and again") {
  std::vector<LayerChoices> layers(8, random_layers(9, 1, 5)[0]);
  for (LayerChoices& layer : layers) layer.uniform = 2;
  const LayerPlan first = plan_layers(layers);
  for (int i = 0; i < 3; ++i) CHECK(plan_layers(layers).chosen == first.chosen);
  const auto large = random_layers(11, 60, 12);
  const auto begin = std::chrono::steady_clock::now();
  const LayerPlan plan = plan_layers(large);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  MESSAGE("60 layers, 12 candidates: " << seconds.count() * 1e3 << " ms");
  CHECK(plan.bytes < plan.uniform_bytes);
}

TEST_CASE("L-GreCo: costs in place of bytes decide, and never exceed those of the default") {
  LayerChoices layer{
      .name = "a", .settings = {1, 2, 3}, .errors = {3, 2, 1}, .bytes = {10, 20, 30}};
  layer.uniform = 1;
  CHECK(plan_layers({layer}).chosen[0] == 1);
  layer.costs = {9, 8, 7};
  const LayerPlan plan = plan_layers({layer});
  CHECK(plan.chosen[0] == 2);
  CHECK(plan.bytes == 30);
  CHECK(plan.uniform_bytes == 20);
  CHECK(plan.cost == 7);
  CHECK(plan.uniform_cost == 8);
  layer.costs.pop_back();
  CHECK_THROWS_AS(plan_layers({layer}), Error);

  int solved = 0, larger = 0, refused = 0;
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    CAPTURE(seed);
    auto layers = random_layers(seed, 1 + seed % 5, 2 + seed % 3);
    uint64_t i = 0;
    for (LayerChoices& l : layers)
      for (size_t c = 0; c < l.settings.size(); ++c)
        l.costs.push_back(1 + Philox(seed, 2).below(i++, 1000));
    const int buckets = seed % 2 == 0 ? 7 : 10000;
    const LayerPlan best = plan_layers(layers, {.buckets = buckets});
    CHECK(best.error <= best.budget);
    CHECK(best.cost <= best.uniform_cost);
    const int64_t least = brute_force(layers, best.budget, buckets);
    if (best.fallback.empty())
      CHECK(best.cost == least);
    else
      CHECK((least < 0 || least > best.uniform_cost));
    solved += best.fallback.empty();
    refused += !best.fallback.empty();
    larger += best.bytes > best.uniform_bytes;
  }
  CHECK(solved > 2000);
  CHECK(refused > 50);
  CHECK(larger > 500);
}
