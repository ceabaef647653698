// Evaluations for the page: scores, samples of text, mistakes.
#include <algorithm>
#include <functional>
#include <map>

#include "apps/cli/json.h"
#include "apps/report/report_json.h"

namespace heddle {

using Json = RunRecord::Json;

constexpr size_t kMostNamed = 20, kMostPairs = 200;  // classes with a matrix; else pairs

// Returns at most `most` evenly spaced records, the last among them.
std::vector<const Json*> sampled(const std::vector<Json>& all, int64_t most) {
  const size_t count = std::min(all.size(), static_cast<size_t>(most));
  std::vector<const Json*> out;
  for (size_t i = 0; i < count; ++i)
    out.push_back(&all[count == 1 ? all.size() - 1 : i * (all.size() - 1) / (count - 1)]);
  return out;
}

Json texts_json(const RunRecord& run, int64_t cells) {
  constexpr int64_t kCellsPerText = 500;
  constexpr size_t kLongest = 4000;
  Json out = Json::array();
  for (const Json* line : sampled(run.texts, std::max<int64_t>(1, cells / kCellsPerText)))
    out.push_back({{"epoch", rounded(number_at(*line, "epoch"))},
                   {"text", text_at(*line, "sample").substr(0, kLongest)}});
  return out;
}

Json scores_json(const RunRecord& run, int64_t points) {
  Json out = Json::array();
  for (const Json* score : sampled(run.scores, points)) {
    out.push_back(*score);
    for (auto& value : out.back())
      if (value.is_number()) value = rounded(value.get<double>());
  }
  return out;
}

Json mistakes_json(const RunRecord& run) {
  if (run.mistakes.is_null()) return nullptr;
  Json out = run.mistakes;
  std::vector<Json> pairs;
  std::map<int64_t, int64_t> images;
  for (const Json& pair : out["confusion"]) {
    images[pair[0].get<int64_t>()] += pair[2].get<int64_t>();
    if (pair[0] != pair[1]) pairs.push_back(pair);
  }
  if (out["classes"].size() > kMostNamed || images.size() > kMostNamed) {
    const auto count = [](const Json& pair) { return pair[2].get<int64_t>(); };
    std::ranges::stable_sort(pairs, std::greater<>(), count);
    pairs.resize(std::min(pairs.size(), kMostPairs));
    out["confusion"] = pairs;
  }
  out["sizes"] = Json::array();
  for (const auto& [label, count] : images) out["sizes"].push_back({label, count});
  return out;
}

}  // namespace heddle
