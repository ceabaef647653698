#include "apps/models/guesses.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "core/error.h"

namespace heddle {

std::vector<Guess> best_classes(std::span<const float> logits, int count,
                                const std::string& where) {
  const auto finite = [](float z) { return std::isfinite(z); };
  check(!logits.empty() && std::ranges::all_of(logits, finite), where,
        ": the network's output is not finite");
  const auto best = static_cast<double>(std::ranges::max(logits));
  double total = 0;
  for (const float z : logits) total += std::exp(static_cast<double>(z) - best);
  std::vector<int> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto at = [&](int label) { return logits[static_cast<size_t>(label)]; };
  std::ranges::stable_sort(order, [&](int a, int b) { return at(a) > at(b); });
  std::vector<Guess> out;
  for (int i = 0; i < std::min(count, static_cast<int>(order.size())); ++i) {
    const int label = order[static_cast<size_t>(i)];
    out.push_back({label, std::exp(static_cast<double>(at(label)) - best) / total});
  }
  return out;
}

nlohmann::ordered_json guesses_json(const char* key, const std::string& name,
                                    const std::vector<Guess>& guesses,
                                    const std::vector<std::string>& classes, std::string& text) {
  text += name + '\n';
  nlohmann::ordered_json best = nlohmann::ordered_json::array();
  for (const Guess& guess : guesses) {
    const auto label = static_cast<size_t>(guess.label);
    const std::string label_name =
        label < classes.size() ? classes[label] : concat("class ", label);
    char percent[32];
    std::snprintf(percent, sizeof percent, "  %6.2f %%  ", 100 * guess.probability);
    text += percent + label_name + '\n';
    best.push_back({{"class", label_name}, {"probability", guess.probability}});
  }
  return {{key, name}, {"best", best}};
}

}  // namespace heddle
