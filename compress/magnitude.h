// |x| as an integer that orders like |x|, infinity above all numbers and NaN above infinity. Maxima
// of integers are exact, do not depend on the order of a loop, and vectorise.
//
//   bool finite = largest_magnitude(x, n) < kInfinite;
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace heddle {

constexpr uint32_t kInfinite = 0x7f800000u;

inline uint32_t magnitude(float x) { return std::bit_cast<uint32_t>(x) & 0x7fffffffu; }

// Over n elements, 0 for none.
inline uint32_t largest_magnitude(const float* x, int64_t n) {
  uint32_t largest = 0;
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < n; ++i) largest = std::max(largest, magnitude(x[i]));
  return largest;
}

// Whether all of them are numbers so small that sums over hundreds of ranks stay finite.
inline bool summable(const float* x, int64_t n) {
  return largest_magnitude(x, n) <= magnitude(1e36f);
}

}  // namespace heddle
