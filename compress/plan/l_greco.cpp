#include "compress/plan/l_greco.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"

namespace heddle {
namespace {

// The cost of what no plan reaches; any larger sum means the same.
constexpr int64_t kNone = std::numeric_limits<int64_t>::max() / 2;

void check_layers(const std::vector<LayerChoices>& layers) {
  for (const LayerChoices& layer : layers)
    for (const size_t n : {layer.errors.size(), layer.bytes.size(), layer.cost().size()})
      check(n == layer.settings.size() && layer.uniform < n, layer.name,
            ": expected an error, a size and a cost for each setting, found ", n, " for ",
            layer.settings.size(), ", uniform ", layer.uniform);
}

// Returns errors in units of budget / buckets, rounded up; buckets + 1 for one that never fits.
std::vector<std::vector<int>> rounded_errors(const std::vector<LayerChoices>& layers, double budget,
                                             int buckets) {
  std::vector<std::vector<int>> out;
  for (const LayerChoices& layer : layers) {
    out.emplace_back();
    for (const double error : layer.errors) {
      const double steps = std::ceil(error / (budget / buckets));
      out.back().push_back(steps <= buckets ? static_cast<int>(steps) : buckets + 1);
    }
  }
  return out;
}

// Returns the cheapest plan whose rounded errors sum to at most `limit`; empty if there is none.
std::vector<size_t> solve(const std::vector<LayerChoices>& layers,
                          const std::vector<std::vector<int>>& errors, int limit) {
  const auto states = static_cast<size_t>(limit) + 1;
  // least[l][b]: least cost of the first l layers with errors of exactly b units.
  std::vector<std::vector<int64_t>> least(1, std::vector<int64_t>(states, kNone));
  least[0][0] = 0;
  for (size_t l = 0; l < layers.size(); ++l) {
    least.emplace_back(states, kNone);
    for (size_t c = 0; c < errors[l].size(); ++c) {
      if (errors[l][c] > limit) continue;
      const auto step = static_cast<size_t>(errors[l][c]);
      const int64_t cost = layers[l].cost()[c];
      const int64_t* from = least[l].data();
      int64_t* into = least[l + 1].data() + step;
      for (size_t b = 0; b < states - step; ++b) into[b] = std::min(into[b], from[b] + cost);
    }
  }
  size_t best = 0;
  for (size_t b = 1; b < states; ++b)
    if (least.back()[b] < least.back()[best]) best = b;
  if (least.back()[best] >= kNone) return {};
  std::vector<size_t> chosen(layers.size());
  for (size_t l = layers.size(); l-- > 0;) {
    const auto leads_here = [&](size_t c) {
      const auto step = static_cast<size_t>(errors[l][c]);
      return step <= best && least[l][best - step] + layers[l].cost()[c] == least[l + 1][best];
    };
    while (!leads_here(chosen[l])) ++chosen[l];
    best -= static_cast<size_t>(errors[l][chosen[l]]);
  }
  return chosen;
}

}  // namespace

void measure_plan(const std::vector<LayerChoices>& layers, LayerPlan& plan) {
  plan.error = 0, plan.bytes = 0, plan.cost = 0;
  for (size_t l = 0; l < layers.size(); ++l) {
    plan.error += layers[l].errors[plan.chosen[l]];
    plan.bytes += layers[l].bytes[plan.chosen[l]];
    plan.cost += layers[l].cost()[plan.chosen[l]];
  }
}

LayerPlan plan_layers(const std::vector<LayerChoices>& layers, const LayerPlanOptions& options) {
  check_layers(layers);
  LayerPlan uniform;
  for (const LayerChoices& layer : layers) uniform.chosen.push_back(layer.uniform);
  measure_plan(layers, uniform);
  uniform.uniform_bytes = uniform.bytes;
  uniform.uniform_cost = uniform.cost;
  uniform.budget = options.budget > 0 ? options.budget : options.alpha * uniform.error;
  const auto fall_back = [&](const std::string& why) {
    uniform.fallback = why;
    return uniform;
  };
  bool finite = std::isfinite(uniform.budget);
  for (const LayerChoices& layer : layers)
    for (const double error : layer.errors) finite = finite && std::isfinite(error) && error >= 0;
  if (!finite) return fall_back("an error or the budget is negative or not finite");
  if (uniform.budget <= 0) return fall_back("the budget is zero");

  const auto errors = rounded_errors(layers, uniform.budget, options.buckets);
  LayerPlan plan = uniform;
  // Rounding up keeps the exact sum within the budget, except for the last bits of a double.
  for (int limit = options.buckets; limit > 0; --limit) {
    plan.chosen = solve(layers, errors, limit);
    if (plan.chosen.empty()) break;
    measure_plan(layers, plan);
    if (plan.error <= plan.budget) break;
  }
  if (plan.chosen.empty() || plan.error > plan.budget)
    return fall_back("no plan stays within the budget");
  if (uniform.error <= plan.budget && plan.cost > uniform.cost)
    return fall_back("with errors rounded up, no plan costs less than the uniform one");
  return plan;
}

}  // namespace heddle
