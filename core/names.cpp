#include "core/names.h"

#include <algorithm>
#include <limits>

#include "core/scalar.h"

namespace heddle {

int edit_distance(const std::string& a, const std::string& b) {
  const size_t columns = b.size() + 1;
  std::vector<int> before(columns), last(columns), row(columns);
  for (size_t j = 0; j < columns; ++j) last[j] = to_int(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = to_int(i);
    for (size_t j = 1; j < columns; ++j) {
      const int change = a[i - 1] == b[j - 1] ? 0 : 1;
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + change});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before.swap(last);
    last.swap(row);
  }
  return last.back();
}

std::string nearest_name(const std::string& name, const std::vector<std::string>& known) {
  std::string best;
  int best_distance = std::numeric_limits<int>::max();
  for (const std::string& candidate : known) {
    const bool prefix = name.size() >= 3 && candidate.starts_with(name);
    const int distance = prefix ? 1 : edit_distance(name, candidate);
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string suggestion(const std::string& name, const std::vector<std::string>& known) {
  const std::string best = nearest_name(name, known);
  if ((!name.empty() && best.starts_with(name)) ||
      2 * edit_distance(name, best) < to_int(name.size()))
    return "the nearest is " + best;
  std::string all = "expected one of";
  for (const std::string& each : known) all += (&each == known.data() ? " " : ", ") + each;
  return all;
}

}  // namespace heddle
