// The gradients of tests/planner_helpers.h, which take most of the time of the planner's tests.
#include <cmath>

#include "core/random.h"
#include "tests/planner_helpers.h"

namespace heddle {

void PlannedModel::fill(uint64_t rank, int64_t step, size_t shift) {
  auto& all = store.parameters();
  common.resize(all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    const Philox own(2 + rank, static_cast<uint64_t>(step) * 100 + i);
    const size_t peaks = (i + shift) % 3;  // from flat to steep
    const double size = std::exp2(-2 * static_cast<double>((i + shift) % 4));
    const int64_t count = all[i].size();
    float* grad = all[i].grad.data<float>();
    for (auto j = static_cast<int64_t>(common[i].size()); j < count; ++j)
      common[i].push_back(Philox(1, i).normal(static_cast<uint64_t>(j)));
    for (int64_t j = 0; j < count; ++j) {
      const auto at = static_cast<size_t>(j);
      const double x = common[i][at] + 0.3 * own.normal(at);
      const double steeper = peaks == 0 ? 1 : peaks == 1 ? std::abs(x) : x * x;
      grad[j] = static_cast<float>(x * steeper * size);
    }
  }
}

}  // namespace heddle
