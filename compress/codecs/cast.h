// Converts elements of one floating type to another, rounding to nearest even.
//
//   cast_elements(x, halves, n);   // const float* to Half*
#pragma once

#include <cstdint>

#include "core/half.h"

namespace heddle {

template <class From, class To>
void cast_elements(const From* from, To* to, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) to[i] = static_cast<To>(static_cast<float>(from[i]));
}

}  // namespace heddle
