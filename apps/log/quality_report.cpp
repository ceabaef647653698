#include "apps/log/quality_report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numeric>

#include "core/error.h"

namespace heddle {
namespace {

constexpr int64_t kLooksBeforeWarning = 3;  // a single step's correlation is mostly noise

void add_to(LayerQuality& sum, const LayerQuality& x) {
  sum.contraction += x.contraction;
  sum.cosine += x.cosine;
  sum.residual_norm += x.residual_norm;
  sum.gradient_norm += x.gradient_norm;
  sum.energy += x.energy;
  sum.correlation += x.correlation;
  sum.mismatch += x.mismatch;
  sum.bound += x.bound;
}

}  // namespace

bool QualityReport::add(int64_t step, const std::vector<LayerQuality>& layers) {
  if (layers.empty()) return false;
  step_ = step;
  last_ = layers;
  double weighted = 0, energy = 0;
  for (const LayerQuality& layer : layers) {
    weighted += layer.correlation * layer.energy;
    energy += layer.energy;
    auto mean = std::ranges::find(means_, layer.name, [](const Mean& m) { return m.sum.name; });
    if (mean == means_.end()) {
      means_.push_back({layer, 1});
      continue;
    }
    add_to(mean->sum, layer);
    ++mean->looks;
  }
  alike_ = energy > 0 ? weighted / energy : 1.0;
  alike_sum_ += alike_;
  recent_[static_cast<size_t>(looks_++) % recent_.size()] = alike_;
  const auto n = std::min(looks_, static_cast<int64_t>(recent_.size()));  // the others are zero
  const double mean = std::accumulate(recent_.begin(), recent_.end(), 0.0) / static_cast<double>(n);
  const bool apart = looks_ >= kLooksBeforeWarning && mean <= 0;
  if (apart && warn_)
    warn_(concat("step ", step,
                 ": what the learners would send has nothing in common (mean correlation ", mean,
                 "): what one of them selects does not suit the others"));
  if (apart) warn_ = {};
  return true;
}

nlohmann::ordered_json QualityReport::json() const {
  nlohmann::ordered_json layers = nlohmann::ordered_json::object();
  for (const LayerQuality& layer : last_) {
    auto& entry = layers[layer.name] = {{"contraction", layer.contraction},
                                        {"cosine", layer.cosine},
                                        {"residual_norm", layer.residual_norm},
                                        {"gradient_norm", layer.gradient_norm},
                                        {"alike", layer.correlation}};
    if (std::isnan(layer.mismatch)) continue;
    entry["mismatch"] = layer.mismatch;
    entry["bound"] = layer.bound;
  }
  return {{"step", step_}, {"quality", layers}, {"alike", alike_}};
}

std::string QualityReport::table() const {
  if (looks_ == 0) return {};
  size_t width = sizeof "all layers";
  for (const Mean& mean : means_) width = std::max(width, mean.sum.name.size());
  const auto name = [&](const std::string& text) {
    return text + std::string(width - text.size(), ' ');
  };
  char text[160];
  std::snprintf(text, sizeof text, " %12s %8s %12s %8s %8s %8s\n", "contraction", "cosine",
                "residual / g", "alike", "d / k", "bound");
  std::string out = name("quality") + text;
  for (const auto& [sum, looks] : means_) {
    const auto n = static_cast<double>(looks);
    const double backlog = sum.gradient_norm > 0 ? sum.residual_norm / sum.gradient_norm : 0.0;
    std::snprintf(text, sizeof text, " %12.4f %8.4f %12.2f %8.4f", sum.contraction / n,
                  sum.cosine / n, backlog, sum.correlation / n);
    out += name(sum.name) + text;
    if (!std::isnan(sum.mismatch)) {
      std::snprintf(text, sizeof text, " %8.4f %8.4f", sum.mismatch / n, sum.bound / n);
      out += text;
    }
    out += '\n';
  }
  std::snprintf(text, sizeof text, " means of %lld looks; learners alike %.4f\n",
                static_cast<long long>(looks_), alike_sum_ / static_cast<double>(looks_));
  return out + name("all layers") + text;
}

}  // namespace heddle
