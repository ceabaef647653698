// L-GreCo (Alimohammadi, Markov, Frantar and Alistarh 2024, arXiv 2210.17357): a setting for each
// layer, so that the bytes (or another cost) are fewest while the sum of the layers' errors stays
// within a budget: what the same setting everywhere would cost, times alpha. A knapsack over
// rounded errors, solved exactly; then looked at in real numbers.
//
//   const LayerPlan plan = plan_layers(choices, {.alpha = 1});
//   for (size_t i = 0; i < choices.size(); ++i) use(choices[i].settings[plan.chosen[i]]);
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace heddle {

// What is known of one layer: its candidates, and which of them is the uniform default.
struct LayerChoices {
  std::string name;
  std::vector<double> settings;  // rate, density, bits or rank
  std::vector<double> errors;    // norm of what is lost, not squared, of each
  std::vector<int64_t> bytes;
  size_t uniform = 0;
  std::vector<int64_t> costs = {};  // what plans make small; empty: the bytes
  const std::vector<int64_t>& cost() const { return costs.empty() ? bytes : costs; }
};

struct LayerPlanOptions {
  double alpha = 1;     // budget over the uniform default's error
  double budget = 0;    // instead of that, when above 0
  int buckets = 10000;  // steps into which errors are rounded, upwards
};

struct LayerPlan {
  std::vector<size_t> chosen;  // a candidate for each layer
  double error = 0, budget = 0;
  int64_t bytes = 0, uniform_bytes = 0, cost = 0, uniform_cost = 0;
  std::string fallback;  // why it is the uniform default; empty when it was solved for
};

// Adds up error, bytes and cost of the chosen candidates.
void measure_plan(const std::vector<LayerChoices>& layers, LayerPlan& plan);

// Deterministic: of plans with equal cost that with the least rounded error, then the first
// candidates. The uniform default where the budget is zero or not a number, where no plan keeps it,
// and where the default keeps it and the plan would cost more. Throws Error for lists of unequal
// length.
LayerPlan plan_layers(const std::vector<LayerChoices>& layers,
                      const LayerPlanOptions& options = {});

}  // namespace heddle
