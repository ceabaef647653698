// The largest element of every chunk, on the CPU: ScaleCom's selection, in the same pass as
// whatever else reads the elements. Internal to codecs.
//
//   find_in_chunks(n, 100, indices, magnitudes, [=](int64_t begin, int64_t length) {
//     return largest_of(x + begin, length, true);
//   });
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "compress/codecs/magnitude.h"
#include "core/parallel.h"
#include "core/simd.h"

namespace heddle {

// Returns the sort_key() of the largest of n values, the first among equals. values<16>(i) returns
// the 16 values from index i, values<1>(i) the one at i; no value is read twice, so the calls may
// do work of their own. Inlined, because chunks are short.
template <class Values>
[[gnu::always_inline]] inline uint64_t find_largest(int64_t n, const Values& values) {
  u32x16 best{}, where{}, index = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16, index += 16) {
    const u32x16 v = reinterpret_cast<u32x16>(values.template operator()<16>(i)) & 0x7fffffffu;
    const auto more = v > best;
    best = more ? v : best;
    where = more ? index : where;
  }
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
  return found;
}

// Returns the same for n elements; `numbers`: NaN counts as zero.
inline uint64_t largest_of(const float* x, int64_t n, bool numbers) {
  return find_largest(n, [=]<int kLanes>(int64_t i) {
    const auto v = Lanes<kLanes>::load(x + i);
    return !numbers || v == v ? v : Lanes<kLanes>::all(0);
  });
}

// Writes the index and magnitude of the largest element of every chunk of n; find(begin, length)
// returns its sort_key() with an index relative to `begin`. `magnitudes` may be null.
template <class Find>
void find_in_chunks(int64_t n, int64_t chunk, uint32_t* indices, uint32_t* magnitudes,
                    const Find& find) {
  parallel_for(ceil_div(n, chunk), std::max<int64_t>(1, 16384 / chunk),
               [&](int64_t begin, int64_t end) {
                 for (int64_t c = begin; c < end; ++c) {
                   const int64_t at = c * chunk;
                   const uint64_t largest = find(at, std::min(chunk, n - at));
                   indices[c] = static_cast<uint32_t>(at) + index_of_key(largest);
                   if (magnitudes != nullptr) magnitudes[c] = magnitude_of_key(largest);
                 }
               });
}

}  // namespace heddle
