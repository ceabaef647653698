#include "compress/plan/accordion.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>

namespace heddle {
namespace {

constexpr double kEta = 0.5;    // relative change of a norm that makes a layer critical
constexpr double kDecay = 0.5;  // a learning rate that has fallen to this fraction has decayed

size_t half_of_uniform(const LayerChoices& layer) {
  const auto distance = [&](int64_t bytes) {
    return std::abs(2 * bytes - layer.bytes[layer.uniform]);
  };
  return static_cast<size_t>(std::ranges::min_element(layer.bytes, {}, distance) -
                             layer.bytes.begin());
}

}  // namespace

std::vector<bool> Accordion::judge(const std::vector<double>& norms, double lr) {
  const bool all = last_.norms.empty() || (lr < last_.lr && lr <= kDecay * last_.lr);
  std::vector<bool> critical;
  for (size_t l = 0; l < norms.size(); ++l) {
    // Written so that NaN and Inf are critical too.
    critical.push_back(all || !(std::abs(last_.norms[l] - norms[l]) < kEta * last_.norms[l]));
  }
  last_ = {norms, lr};
  return critical;
}

std::vector<size_t> accordion_settings(const std::vector<LayerChoices>& layers,
                                       const std::vector<bool>& critical) {
  std::vector<size_t> settings;
  for (size_t l = 0; l < layers.size(); ++l)
    settings.push_back(critical[l] ? layers[l].uniform : half_of_uniform(layers[l]));
  return settings;
}

}  // namespace heddle
