// L-GreCo (Alimohammadi, Markov, Frantar and Alistarh 2024, arXiv 2210.17357): chooses a setting
// for each layer, so that the bytes (or another cost) are minimal while the sum of the layers'
// errors stays within a budget: alpha times the error of the uniform setting. A knapsack over
// rounded errors, solved exactly, then checked with the exact errors.
//
//   const LayerPlan plan = plan_layers(choices, {.alpha = 1});
//   for (size_t i = 0; i < choices.size(); ++i) use(choices[i].settings[plan.chosen[i]]);
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace heddle {

// One layer's candidates. All lists have the length of `settings`.
struct LayerChoices {
  std::string name;
  std::vector<double> settings;     // rate, density, bits or low rank
  std::vector<double> errors;       // ||x - decode(encode(x))||, not squared
  std::vector<int64_t> bytes;       // of the payload
  size_t uniform = 0;               // index of the uniform default
  std::vector<int64_t> costs = {};  // minimised by plans, in any unit; empty: the bytes
  const std::vector<int64_t>& cost() const { return costs.empty() ? bytes : costs; }
};

struct LayerPlanOptions {
  double alpha = 1;     // the budget is alpha times the uniform default's error,
  double budget = 0;    // or this, if it is above 0
  int buckets = 10000;  // errors are rounded up to multiples of budget / buckets
};

struct LayerPlan {
  std::vector<size_t> chosen;  // index of a candidate, for each layer
  double error = 0, budget = 0;
  int64_t bytes = 0, uniform_bytes = 0, cost = 0, uniform_cost = 0;
  std::string fallback;  // why it is the uniform default; empty if the problem was solved
};

// Adds up error, bytes and cost of the chosen candidates.
void measure_plan(const std::vector<LayerChoices>& layers, LayerPlan& plan);

// Returns the plan of least cost. Deterministic: of plans with equal cost the one with the least
// rounded error, then the first candidates. Returns the uniform default if the budget is zero or
// not finite, if no plan is within it, and if the default is within it and the plan would cost
// more. Throws Error for lists of unequal length.
LayerPlan plan_layers(const std::vector<LayerChoices>& layers,
                      const LayerPlanOptions& options = {});

}  // namespace heddle
