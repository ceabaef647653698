// Elementary functions without branches, for shared kernels: the same text runs on CUDA, and loops
// over it vectorise on the CPU (libm's calls do not). Error below 3 ulp, NaN stays NaN.
#pragma once

#include <bit>
#include <cstdint>

#include "core/bfloat16.h"

namespace heddle {

// Returns e^x: 2^n times a polynomial in the remainder (coefficients of Cephes expf). 0 below
// -87.33, infinity above 88.37.
HEDDLE_HD inline float exp_of(float x) {
  const float low = x < -87.33f ? -87.33f : x, inside = low > 88.37f ? 88.37f : low;
  const float shifted = inside * 1.44269504f + 12582912.0f;  // an integer in its low bits
  const float n = shifted - 12582912.0f;
  const float r = (inside - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const uint32_t scale = (std::bit_cast<uint32_t>(shifted) << 23) + 0x3f800000u;
  const float value = p * std::bit_cast<float>(scale);
  const float bounded = x > 88.37f ? __builtin_huge_valf() : value;
  return x < -87.33f ? 0.0f : bounded;
}

HEDDLE_HD inline float sigmoid_of(float x) { return 1.0f / (1.0f + exp_of(-x)); }

// Returns tanh x, near 0 by an odd polynomial (Cephes tanhf), where 1 - 2 / (e^2x + 1) would
// cancel.
HEDDLE_HD inline float tanh_of(float x) {
  const float far = 1.0f - 2.0f / (exp_of(2.0f * x) + 1.0f);
  const float z = x * x;
  float p = -5.70498872745e-3f;
  p = p * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  return z < 0.390625f ? p * z * x + x : far;
}

}  // namespace heddle
