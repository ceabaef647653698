#include "apps/log/quality_report.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "apps/cli/format.h"
#include "core/error.h"

namespace heddle {
namespace {

constexpr int64_t kSamplesBeforeWarning = 3;  // the correlation of a single step is mostly noise

void add_to(LayerQuality& sum, const LayerQuality& x) {
  for (double LayerQuality::*measure :
       {&LayerQuality::contraction, &LayerQuality::cosine, &LayerQuality::residual_norm,
        &LayerQuality::gradient_norm, &LayerQuality::energy, &LayerQuality::correlation,
        &LayerQuality::mismatch, &LayerQuality::bound})
    sum.*measure += x.*measure;
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
    auto sum = std::ranges::find(sums_, layer.name, [](const Sum& s) { return s.layer.name; });
    if (sum == sums_.end()) {
      sums_.push_back({layer, 1});
      continue;
    }
    add_to(sum->layer, layer);
    ++sum->samples;
  }
  correlation_ = energy > 0 ? weighted / energy : 1.0;
  correlation_sum_ += correlation_;
  recent_[to_size(samples_++) % recent_.size()] = correlation_;
  const auto n = std::min(samples_, to_int64(recent_.size()));  // the rest is zero
  const double mean = std::accumulate(recent_.begin(), recent_.end(), 0.0) / to_double(n);
  if (samples_ < kSamplesBeforeWarning || mean > 0) return true;
  if (warn_)
    warn_(concat("step ", step, ": the learners' gradients are not correlated (mean correlation ",
                 mean, "), so one learner's selection does not suit the others"));
  warn_ = {};
  return true;
}

nlohmann::ordered_json QualityReport::json() const {
  nlohmann::ordered_json layers = nlohmann::ordered_json::object();
  for (const LayerQuality& layer : last_) {
    auto& entry = layers[layer.name] = {{"contraction", layer.contraction},
                                        {"cosine", layer.cosine},
                                        {"residual_norm", layer.residual_norm},
                                        {"gradient_norm", layer.gradient_norm},
                                        {kCorrelationKey, layer.correlation}};
    if (std::isnan(layer.mismatch)) continue;
    entry["mismatch"] = layer.mismatch;
    entry["bound"] = layer.bound;
  }
  return {{"step", step_}, {"quality", layers}, {kCorrelationKey, correlation_}};
}

std::string QualityReport::table() const {
  if (samples_ == 0) return {};
  size_t width = sizeof "all layers";
  for (const Sum& sum : sums_) width = std::max(width, sum.layer.name.size());
  std::string out;
  const auto add_row = [&](const std::string& name, const std::vector<std::string>& cells) {
    constexpr size_t kWidths[] = {13, 9, 13, 12, 9, 9};
    out += pad_right(name, width);
    for (size_t i = 0; i < cells.size(); ++i) out += pad_left(cells[i], kWidths[i]);
    out += '\n';
  };
  add_row("quality", {"contraction", "cosine", "residual / g", "correlation", "d / k", "bound"});
  for (const Sum& sum : sums_) {
    const LayerQuality& layer = sum.layer;
    const auto mean = [&](double x) { return decimals(x / to_double(sum.samples), 4); };
    const double backlog =
        layer.gradient_norm > 0 ? layer.residual_norm / layer.gradient_norm : 0.0;
    std::vector<std::string> cells = {mean(layer.contraction), mean(layer.cosine),
                                      decimals(backlog, 2), mean(layer.correlation)};
    if (!std::isnan(layer.mismatch))
      cells.insert(cells.end(), {mean(layer.mismatch), mean(layer.bound)});
    add_row(layer.name, cells);
  }
  return out + concat(pad_right("all layers", width), " means of ", samples_,
                      " samples; correlation ", decimals(correlation_sum_ / to_double(samples_), 4),
                      "\n");
}

}  // namespace heddle
