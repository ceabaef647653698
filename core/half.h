// IEEE half precision (1 sign, 5 exponent, 10 fraction bits) as 16 bits in memory. Conversion
// rounds to nearest even; 65520 and above become infinite; NaN stays NaN; subnormals are kept.
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
    uint32_t h = 0;
    if (a > 0x7f800000u) {
      h = 0x7e00u;
    } else if (a >= 0x477ff000u) {  // 65520: halfway between the largest half and the next one
      h = 0x7c00u;
    } else if (a < 0x38800000u) {  // below 2^-14; floats next to 0.5 are as far apart as subnormals
      const float shifted = __builtin_bit_cast(float, a) + 0.5f;
      h = __builtin_bit_cast(uint32_t, shifted) - 0x3f000000u;
    } else {
      h = (a + 0xfffu + ((a >> 13) & 1u) - 0x38000000u) >> 13;
    }
    bits = static_cast<uint16_t>(h | (u >> 16 & 0x8000u));
  }
  HEDDLE_HD explicit operator float() const {
    const uint32_t sign = (bits & 0x8000u) << 16, a = bits & 0x7fffu;
    if (a < 0x0400u) {  // a multiple of 2^-24
      const float magnitude = static_cast<float>(a) * 5.9604644775390625e-8f;
      return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, magnitude) | sign);
    }
    const uint32_t u = a >= 0x7c00u ? 0x7f800000u | (a & 0x3ffu) << 13 : (a << 13) + 0x38000000u;
    return __builtin_bit_cast(float, u | sign);
  }
};

}  // namespace heddle
