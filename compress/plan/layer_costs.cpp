#include "compress/plan/layer_costs.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "core/error.h"

namespace heddle {

std::vector<LayerChoices> LayerCosts::candidates() const {
  std::vector<LayerChoices> layers;
  for (const auto& [name, layer] : layers_) {
    if (!layer.compressed || !layers_.has_settings() || !shrinks(layer)) continue;
    LayerChoices& choices = layers.emplace_back();
    choices.name = name;
    const bool open = layers_.undecided(layer.choice);
    choices.settings = open ? std::vector<double>{0} : settings(layer);
    for (const double setting : choices.settings)
      choices.bytes.push_back(open ? layer.size() * 4 : bytes(layer, setting));
    const auto uniform = std::ranges::find(choices.settings, layer.choice);
    choices.uniform = to_size(uniform - choices.settings.begin());
  }
  return layers;
}

std::vector<double> LayerCosts::errors(const LayerChoices& layer, const Tensor& x) const {
  if (layers_.undecided(layer.settings[0])) return {std::numeric_limits<double>::infinity()};
  return lost_norms(layers_.at(layer.name), x, layer.settings);
}

std::vector<double> LayerCosts::seconds(const LayerChoices& layer, const Tensor& x) const {
  if (layers_.undecided(layer.settings[0])) return {std::numeric_limits<double>::infinity()};
  return for_each_setting(layer.settings, [&](double setting) {
    return codec_seconds(layers_.at(layer.name), x, setting);
  });
}

int64_t LayerCosts::payload(const std::string& parameter) const {
  const Layer& layer = layers_.at(parameter);
  const bool compressed = is_compressed(layer) && !layers_.undecided(layer.choice);
  return compressed ? bytes(layer, layer.choice) : layer.size() * 4;
}

std::vector<double> LayerCosts::settings(const Layer& layer) const {
  const SpecKey& key = layers_.family().keys[0];
  std::set<double> around;
  for (int i = -4; i <= 4; ++i) {
    const double setting = layer.choice * std::exp2(i / 2.0);
    around.insert(std::clamp(key.whole ? std::round(setting) : setting, key.low, key.high));
  }
  return {around.begin(), around.end()};
}

std::vector<double> LayerCosts::lost_norms(const Layer& /*layer*/, const Tensor& /*x*/,
                                           const std::vector<double>& /*settings*/) const {
  throw InputError(
      concat(layers_.family().name, " does not say what it loses: no plan of its settings"));
}

double LayerCosts::codec_seconds(const Layer& layer, const Tensor& x, double setting) const {
  return timed([&] { (void)lost_norms(layer, x, {setting}); });
}

}  // namespace heddle
