// |x| as an integer that orders like |x|, infinity above all numbers and NaN above infinity. Maxima
// of integers are exact, do not depend on the order of a loop, and vectorise.
//
//   bool finite = largest_magnitude(x, n) < kInfinite;
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "core/simd.h"

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

struct Largest {
  uint32_t magnitude = 0, index = 0;
};

// The largest of n values, the first among equals; 0 at 0 for none. values<16>(i) and values<1>(i)
// return those from i on, and are asked for each of them once, so that they may do work of their
// own on the way. Inlined, because chunks are short.
template <class Values>
[[gnu::always_inline]] inline Largest find_largest(int64_t n, const Values& values) {
  u32x16 best{}, where{}, index = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16, index += 16) {
    const u32x16 v = reinterpret_cast<u32x16>(values.template operator()<16>(i)) & 0x7fffffffu;
    const auto more = v > best;
    best = more ? v : best;
    where = more ? index : where;
  }
  // One integer, larger for larger magnitudes and, among equal ones, for lower indices.
  const auto sort_key = [](uint32_t magnitude, uint32_t index) {
    return uint64_t{magnitude} << 32 | ~index;
  };
  uint32_t magnitudes[16], indices[16];
  std::memcpy(magnitudes, &best, sizeof best);
  std::memcpy(indices, &where, sizeof where);
  uint64_t found = sort_key(0, 0);
#pragma omp simd reduction(max : found)
  for (int lane = 0; lane < 16; ++lane)
    found = std::max(found, sort_key(magnitudes[lane], indices[lane]));
  for (; i < n; ++i)
    found = std::max(
        found, sort_key(magnitude(values.template operator()<1>(i)), static_cast<uint32_t>(i)));
  return {static_cast<uint32_t>(found >> 32), ~static_cast<uint32_t>(found)};
}

// Up to here sums over hundreds of ranks stay finite.
constexpr float kMaxSum = 1e36f;

}  // namespace heddle
