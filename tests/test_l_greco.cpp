// The planner against brute force, its guarantees in real numbers, and its fallback if there is no
// plan; budgets from Accordion, and costs from times.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "compress/plan/accordion.h"
#include "compress/plan/gradient_window.h"
#include "compress/plan/l_greco.h"
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

// Returns the least cost of all combinations whose rounded errors fit; -1 if none does.
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

TEST_CASE("L-GreCo: the plan is optimal, with coarse and fine rounding") {
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

TEST_CASE("L-GreCo: a given budget, a strict one, and fallbacks with a reason") {
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
  CHECK(plan_layers(broken).fallback.find("not finite") != std::string::npos);
  for (LayerChoices& layer : broken) layer.errors.assign(4, 0.0);
  CHECK(plan_layers(broken).fallback.find("zero") != std::string::npos);
  CHECK(plan_layers(layers, {.alpha = 1e-9}).fallback.find("no plan") != std::string::npos);
  broken[0].bytes.pop_back();
  CHECK_THROWS_AS(plan_layers(broken), Error);
  CHECK(plan_layers({}).chosen.empty());
}

TEST_CASE("L-GreCo: equal layers are treated in their order, deterministically") {
  std::vector<LayerChoices> layers(8, random_layers(9, 1, 5)[0]);
  for (LayerChoices& layer : layers) layer.uniform = 2;
  const LayerPlan first = plan_layers(layers);
  for (int i = 0; i < 3; ++i) CHECK(plan_layers(layers).chosen == first.chosen);
  const LayerPlan large = plan_layers(random_layers(11, 60, 12));
  CHECK(large.bytes < large.uniform_bytes);
}

TEST_CASE("L-GreCo: over budget by the last bit of a double; ties between plans") {
  // 7 and 3 of 10 steps of the budget, but the sum is 83.00000000000001.
  const LayerChoices a{.name = "a",
                       .settings = {1, 2},
                       .errors = {58.10000000000001, 1},
                       .bytes = {10, 20},
                       .uniform = 1};
  const LayerChoices b{.name = "b",
                       .settings = {1, 2},
                       .errors = {24.900000000000002, 1},
                       .bytes = {10, 15},
                       .uniform = 1};
  REQUIRE(a.errors[0] + b.errors[0] > 83);
  const LayerPlan strict = plan_layers({a, b}, {.budget = 83, .buckets = 10});
  CHECK(strict.chosen == std::vector<size_t>{0, 1});
  CHECK(strict.fallback == "");
  // Among equal bytes the smallest error wins, and among equal errors the first; layers are
  // compared from the last.
  const LayerChoices even{
      .name = "c", .settings = {1, 2, 3, 4}, .errors = {3, 2, 2, 1}, .bytes = {5, 5, 5, 9}};
  CHECK(plan_layers({even}, {.budget = 10}).chosen == std::vector<size_t>{1});
  const LayerChoices two{
      .name = "d", .settings = {1, 2}, .errors = {3, 1}, .bytes = {1, 2}, .uniform = 1};
  CHECK(plan_layers({two, two}, {.budget = 5}).chosen == std::vector<size_t>{1, 0});
}

TEST_CASE("L-GreCo: costs decide instead of bytes, and never exceed the default's") {
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

TEST_CASE("Accordion: critical at first, if a norm changes by half, after a decay to half") {
  using Judged = std::vector<bool>;
  Accordion accordion;
  CHECK(accordion.judge({1, 4, 0}, 0.1) == Judged{true, true, true});
  // A norm that was zero always counts as changed.
  CHECK(accordion.judge({1.25, 2.25, 0}, 0.1) == Judged{false, false, true});
  CHECK(accordion.judge({1.875, 1.125, 5}, 0.1) == Judged{true, true, true});
  CHECK(accordion.judge({1.875, 1.125, 5}, 0.1) == Judged{false, false, false});
  CHECK(accordion.judge({0.9, 1.125, 5}, 0.1) == Judged{true, false, false});
  CHECK(accordion.judge({0.9, 1.125, 5}, 0.06) == Judged{false, false, false});
  // Half of the rate at the last plan, not of the initial rate.
  CHECK(accordion.judge({0.9, 1.125, 5}, 0.04) == Judged{false, false, false});
  CHECK(accordion.judge({0.9, 1.125, 5}, 0.02) == Judged{true, true, true});
  CHECK(accordion.judge({0.9, 1.125, 5}, 0.02) == Judged{false, false, false});
  CHECK(accordion.judge({0.9, 1.125, 5}, 0.2) == Judged{false, false, false});
  CHECK(accordion.judge({NAN, INFINITY, 5}, 0.2) == Judged{true, true, false});
  CHECK(accordion.judge({0.9, 1.125, 5}, 0.2) == Judged{true, true, false});
  CHECK(accordion.judge({0.9, 1.125, 5}, 0) == Judged{true, true, true});
  CHECK(accordion.judge({0.9, 1.125, 5}, 0) == Judged{false, false, false});
}

TEST_CASE("Accordion: layers that are not critical get about half of the uniform bytes") {
  LayerChoices layer{
      .name = "a", .settings = {4, 3, 2, 1}, .errors = {1, 2, 3, 4}, .bytes = {100, 53, 48, 20}};
  CHECK(accordion_settings({layer, layer}, {true, false}) == std::vector<size_t>{0, 2});
  layer.uniform = 2;
  CHECK(accordion_settings({layer, layer}, {true, false}) == std::vector<size_t>{2, 3});
  layer.uniform = 3;  // there is nothing smaller
  CHECK(accordion_settings({layer, layer}, {true, false}) == std::vector<size_t>{3, 3});
}

TEST_CASE("Accordion: plans keep its budget and are never larger than the default") {
  int smaller = 0, refused = 0;
  for (uint64_t seed = 0; seed < 4000; ++seed) {
    CAPTURE(seed);
    const auto layers = random_layers(seed, 1 + seed % 5, 2 + seed % 3);
    std::vector<bool> critical;
    for (size_t l = 0; l < layers.size(); ++l) critical.push_back(Philox(seed, 3).below(l, 2) == 0);
    LayerPlan basis;
    basis.chosen = accordion_settings(layers, critical);
    measure_plan(layers, basis);
    const int buckets = seed % 2 == 0 ? 7 : 10000;
    const LayerPlan plan = plan_layers(layers, {.budget = basis.error, .buckets = buckets});
    CHECK(plan.budget == basis.error);
    CHECK(plan.error <= plan.budget);
    CHECK(plan.bytes <= plan.uniform_bytes);
    const int64_t best = brute_force(layers, plan.budget, buckets);
    if (plan.fallback.empty())
      CHECK(plan.bytes == best);
    else
      CHECK((best < 0 || best > plan.uniform_bytes));
    refused += !plan.fallback.empty();
    smaller += plan.bytes < plan_layers(layers, {.buckets = buckets}).bytes;
  }
  CHECK(refused > 50);
  CHECK(smaller > 1000);
}

TEST_CASE("time per byte: the slope of a line, or total seconds over total bytes") {
  const auto slope = [](const std::vector<TimedExchange>& e) { return seconds_per_byte(e); };
  CHECK(slope({}) == 0);
  CHECK(slope({{0, 0.5}, {0, 0.25}}) == 0);
  CHECK(slope({{100, 3}, {300, 7}}) == doctest::Approx(0.02));
  // 1 + 0.02 x with noise.
  CHECK(slope({{100, 3.1}, {200, 4.9}, {300, 6.9}, {400, 9.1}}) == doctest::Approx(0.02));
  CHECK(1000000007 * slope({{1000000007, 3}, {1000000007, 5}, {1000000007, 4}}) ==
        doctest::Approx(4));
  CHECK(slope({{100, 7}, {300, 3}}) == doctest::Approx(0.025));  // falling
  CHECK(slope({{100, 1}, {300, 9}}) == doctest::Approx(0.025));  // from below zero
}
