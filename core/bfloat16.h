// bfloat16: the upper half of a float. Conversion rounds to nearest even; NaN stays NaN, on a GPU
// without its payload.
#pragma once

#include <bit>
#include <cstdint>

#ifdef __CUDACC__
#define HEDDLE_HD __host__ __device__
#else
#define HEDDLE_HD
#endif

namespace heddle {

struct bfloat16 {
  uint16_t bits = 0;

  bfloat16() = default;
  HEDDLE_HD explicit bfloat16(float value) {
#ifdef __CUDA_ARCH__
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
#else
    uint32_t u = __builtin_bit_cast(uint32_t, value);
    const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
    u = nan ? u | 0x00400000u : u + 0x7fffu + ((u >> 16) & 1u);
    bits = static_cast<uint16_t>(u >> 16);
#endif
  }
  HEDDLE_HD explicit operator float() const {
    return __builtin_bit_cast(float, static_cast<uint32_t>(bits) << 16);
  }
};

}  // namespace heddle
