// Sixteen floats as one value, for the CPU's bandwidth-bound kernels: plain + - * / and ?: work on
// it (GCC and Clang vector extensions). Kernels are templates over Lanes<16> and Lanes<1>, so that
// the vector path and the path for other channel counts share one source.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/bfloat16.h"
#include "core/scalar.h"

// Unrolls the following loop of constant length, so that an array of vectors stays in registers.
#ifdef __clang__
#define HEDDLE_UNROLL _Pragma("unroll")
#else
#define HEDDLE_UNROLL _Pragma("GCC unroll 36")
#endif

namespace heddle {

// Whether registers hold sixteen floats. Where they do not, oneDNN's kernels, compiled at run time
// for this processor, are faster than ours.
#ifdef __AVX512F__
constexpr bool kWideRegisters = true;
#else
constexpr bool kWideRegisters = false;
#endif

typedef float f32x16 __attribute__((vector_size(64)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));
typedef uint16_t u16x16 __attribute__((vector_size(32)));

template <int kLanes>
struct Lanes;

template <>
struct Lanes<16> {
  using Vec = f32x16;
  static Vec load(const float* p) {
    Vec v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
  static void store(float* p, Vec v) { std::memcpy(p, &v, sizeof v); }
  static Vec load(const bfloat16* p) {
    u16x16 half;
    std::memcpy(&half, p, sizeof half);
    return reinterpret_cast<Vec>(__builtin_convertvector(half, u32x16) << 16);
  }
  // Rounds to nearest even; NaN stays NaN.
  static void store(bfloat16* p, Vec v) {
    const u32x16 u = reinterpret_cast<u32x16>(v);
    const u32x16 rounded = u + 0x7fffu + ((u >> 16) & 1u);
    const u32x16 safe = (u & 0x7fffffffu) > 0x7f800000u ? u | 0x00400000u : rounded;
    const u16x16 half = __builtin_convertvector(safe >> 16, u16x16);
    std::memcpy(static_cast<void*>(p), &half, sizeof half);
  }
  static Vec all(float value) { return value - Vec{}; }
  // Returns `value` where `condition` is above 0, and 0 elsewhere.
  static Vec positive(Vec condition, Vec value) { return condition > 0.0f ? value : Vec{}; }
  // Returns max(value, 0); NaN stays NaN.
  static Vec relu(Vec value) { return value < 0.0f ? Vec{} : value; }
};

template <>
struct Lanes<1> {
  using Vec = float;
  template <class T>
  static Vec load(const T* p) {
    return to_float(*p);
  }
  template <class T>
  static void store(T* p, Vec v) {
    *p = T(v);
  }
  static Vec all(float value) { return value; }
  static Vec positive(Vec condition, Vec value) { return condition > 0.0f ? value : 0.0f; }
  static Vec relu(Vec value) { return value < 0.0f ? 0.0f : value; }
};

}  // namespace heddle
