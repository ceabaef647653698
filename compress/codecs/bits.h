// Packs unsigned integers of a few bits, the first in the lowest bits of the first byte.
//
//   pack_bits(values, n, 7, bytes);   // writes packed_bytes(n, 7) bytes
#pragma once

#include <bit>
#include <cstdint>

namespace heddle {

// Bits for the integers below n: ceil(log2 n).
constexpr int bits_below(int64_t n) {
  return n > 1 ? std::bit_width(static_cast<uint64_t>(n - 1)) : 0;
}
constexpr int64_t packed_bytes(int64_t n, int bits) { return (n * bits + 7) / 8; }

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

}  // namespace heddle
