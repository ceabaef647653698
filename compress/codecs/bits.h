// Packs unsigned integers of a few bits, the first in the lowest bits of the first byte.
//
//   pack_bits(values, n, 7, bytes);   // writes packed_bytes(n, 7) bytes
#pragma once

#include <bit>
#include <cstdint>

#include "core/bfloat16.h"

namespace heddle {

// Returns the bits of the integers below n: ceil(log2 n).
constexpr int bits_below(int64_t n) {
  return n > 1 ? std::bit_width(static_cast<uint64_t>(n - 1)) : 0;
}
HEDDLE_HD constexpr int64_t packed_bytes(int64_t n, int bits) { return (n * bits + 7) / 8; }

// Each value below 2^bits, bits from 0 (nothing is written) to 32.
inline void pack_bits(const uint32_t* values, int64_t n, int bits, uint8_t* bytes) {
  uint64_t window = 0;  // bits that wait for their byte to fill up
  int held = 0;
  for (int64_t i = 0; i < n; ++i) {
    window |= static_cast<uint64_t>(values[i]) << held;
    for (held += bits; held >= 8; held -= 8, window >>= 8) *bytes++ = static_cast<uint8_t>(window);
  }
  if (held > 0) *bytes = static_cast<uint8_t>(window);
}

inline void unpack_bits(const uint8_t* bytes, int64_t n, int bits, uint32_t* values) {
  const uint64_t mask = (uint64_t{1} << bits) - 1;
  uint64_t window = 0;
  int held = 0;
  for (int64_t i = 0; i < n; ++i, window >>= bits, held -= bits) {
    for (; held < bits; held += 8) window |= static_cast<uint64_t>(*bytes++) << held;
    values[i] = static_cast<uint32_t>(window & mask);
  }
}

// Packs with random access, for GPUs. Returns byte j of n packed values; value(i) returns the i-th.
// bits from 1 to 32.
template <class Value>
HEDDLE_HD uint8_t packed_byte(int64_t n, int bits, int64_t j, const Value& value) {
  int64_t i = 8 * j / bits;
  int skip = static_cast<int>(8 * j - i * bits);
  uint32_t out = 0;
  for (int filled = 0; filled < 8 && i < n; filled += bits - skip, skip = 0, ++i)
    out |= value(i) >> skip << filled;
  return static_cast<uint8_t>(out);
}

// Returns the i-th packed value, bits from 0 to 32.
HEDDLE_HD inline uint32_t unpacked_value(const uint8_t* bytes, int bits, int64_t i) {
  const int64_t first = i * bits / 8;
  const int skip = static_cast<int>(i * bits - 8 * first);
  uint64_t window = 0;
  for (int k = 0; 8 * k < skip + bits; ++k)
    window |= static_cast<uint64_t>(bytes[first + k]) << 8 * k;
  return static_cast<uint32_t>(window >> skip & ((uint64_t{1} << bits) - 1));
}

}  // namespace heddle
