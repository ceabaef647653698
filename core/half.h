// IEEE half precision (1 sign, 5 exponent, 10 fraction bits) as 16 bits in memory. Conversion
// rounds to nearest even; 65520 and above become infinite; NaN stays NaN; subnormals are kept.
// Neither way has a branch, so that loops are vectorised.
//
//   Half h(0.1f);   float f = static_cast<float>(h);
#pragma once

#include <bit>
#include <cstdint>

#include "core/bfloat16.h"

namespace heddle {

struct Half {
  uint16_t bits = 0;

  Half() = default;
  HEDDLE_HD explicit Half(float value) {
    const uint32_t u = __builtin_bit_cast(uint32_t, value), a = u & 0x7fffffffu;
    // Below 2^-14 a multiple of 2^-24: the significand, shifted by 14 to 25 bits.
    const uint32_t significand = (a & 0x7fffffu) | 0x800000u, exponent = a >> 23;
    const uint32_t shift = exponent < 101u ? 25u : exponent > 112u ? 14u : 126u - exponent;
    const uint32_t half = (1u << (shift - 1u)) - 1u + (significand >> shift & 1u);
    uint32_t h = (a + 0xfffu + ((a >> 13) & 1u) - 0x38000000u) >> 13;
    h = a < 0x38800000u ? (significand + half) >> shift : h;
    h = a >= 0x477ff000u ? 0x7c00u : h;  // 65520: halfway between the largest half and the next one
    h = a > 0x7f800000u ? 0x7e00u : h;
    bits = static_cast<uint16_t>(h | (u >> 16 & 0x8000u));
  }
  HEDDLE_HD explicit operator float() const {
    const uint32_t sign = (bits & 0x8000u) << 16, a = bits & 0x7fffu;
    const float subnormal = static_cast<float>(a) * 5.9604644775390625e-8f;  // a multiple of 2^-24
    const uint32_t u = a >= 0x7c00u ? 0x7f800000u | (a & 0x3ffu) << 13 : (a << 13) + 0x38000000u;
    const uint32_t mask = a < 0x0400u ? 0xffffffffu : 0u;
    return __builtin_bit_cast(
        float, (__builtin_bit_cast(uint32_t, subnormal) & mask) | (u & ~mask) | sign);
  }
};

}  // namespace heddle
