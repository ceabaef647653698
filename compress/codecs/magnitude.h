// |x| as an integer that orders like |x|, infinity above all numbers and NaN above infinity. Maxima
// of integers are exact, do not depend on the order of a loop, and vectorise.
//
//   bool finite = largest_magnitude(x, n) < kInfinite;
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "core/bfloat16.h"

namespace heddle {

constexpr uint32_t kInfinite = 0x7f800000u;
// Largest |x| that a rank may add to a sum, so that the sum stays finite. A residual above it could
// never be sent.
constexpr float kMaxAddend = 1e30f;
constexpr float kMaxSum = 1e36f;  // sums of hundreds of such values are still finite

HEDDLE_HD inline uint32_t magnitude(float x) { return std::bit_cast<uint32_t>(x) & 0x7fffffffu; }

// Returns an integer that is larger for larger magnitudes and, among equal ones, for lower indices.
HEDDLE_HD constexpr uint64_t sort_key(uint32_t magnitude, uint32_t index) {
  return uint64_t{magnitude} << 32 | static_cast<uint32_t>(~index);
}
HEDDLE_HD constexpr uint32_t magnitude_of_key(uint64_t key) {
  return static_cast<uint32_t>(key >> 32);
}
HEDDLE_HD constexpr uint32_t index_of_key(uint64_t key) { return ~static_cast<uint32_t>(key); }

// Returns whether AdaComp sends an element of a bin whose largest magnitude is `largest`
// (sparse_kernels.h). If the gradient x - old is zero, x is compared as it is, without rounding.
HEDDLE_HD inline bool is_active(float x, float old, float ahead, uint32_t largest) {
  return x != 0 && magnitude(x + ahead * (x - old)) >= largest;
}

// Returns the largest magnitude of n elements; 0 for none.
inline uint32_t largest_magnitude(const float* x, int64_t n) {
  uint32_t largest = 0;
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < n; ++i) largest = std::max(largest, magnitude(x[i]));
  return largest;
}

}  // namespace heddle
