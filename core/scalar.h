// Arithmetic on single numbers that kernels of both devices share.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/bfloat16.h"

namespace heddle {

// Convert as static_cast does, from any number or enumerator, bfloat16 and Half included. No range
// is checked.
template <class T>
HEDDLE_HD constexpr float to_float(T x) {
  return static_cast<float>(x);
}
template <class T>
HEDDLE_HD constexpr double to_double(T x) {
  return static_cast<double>(x);
}
template <class T>
HEDDLE_HD constexpr size_t to_size(T x) {
  return static_cast<size_t>(x);
}
template <class T>
HEDDLE_HD constexpr int to_int(T x) {
  return static_cast<int>(x);
}
template <class T>
HEDDLE_HD constexpr int64_t to_int64(T x) {
  return static_cast<int64_t>(x);
}

// Returns n / unit rounded up, for n >= 0 and unit > 0: how many pieces of `unit` cover n.
HEDDLE_HD constexpr int64_t ceil_div(int64_t n, int64_t unit) { return (n + unit - 1) / unit; }

// Returns beta * old + fresh, the rule by which gradients accumulate. With beta = 0 the old value
// is not read: NaN in fresh memory must not survive.
HEDDLE_HD constexpr float accumulate(float beta, const float& old, float fresh) {
  return (beta == 0.0f ? 0.0f : beta * old) + fresh;
}

}  // namespace heddle
