// Philox4x32-10: a counter-based random number generator (Salmon et al., SC'11). A number is a pure
// function of (seed, stream, index), so it is the same on every backend and for every thread count.
//
//   Philox rng(seed, stream_id(Stream::dropout, step));
//   float u = rng.uniform(i);   // in [0, 1)
#pragma once

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/bfloat16.h"
#include "core/scalar.h"

namespace heddle {

// The purpose of a random stream; distinct purposes never share numbers.
enum class Stream {
  init,
  shuffle,
  augment,
  dropout,
  shapes,
  codec,
  selection,
  sample,
  network,
  secret,  // repeatable stand-in for SecretRandom, in tests
  partition
};

// A 64-bit stream number: purpose in the top byte, then the caller's key (a step, a parameter's
// index, an epoch; below 2^56).
HEDDLE_HD constexpr uint64_t stream_id(Stream use, uint64_t key = 0) {
  return (static_cast<uint64_t>(use) + 1) << 56 | (key & 0x00ffffffffffffffull);
}

struct Philox {
  struct Block {
    uint32_t word[4];
  };

  uint64_t seed = 0, stream = 0;

  HEDDLE_HD Philox(uint64_t seed_, uint64_t stream_) : seed(seed_), stream(stream_) {}

  // Four independent 32-bit words for counter `index`.
  HEDDLE_HD Block block(uint64_t index) const {
    uint32_t c0 = static_cast<uint32_t>(index), c1 = static_cast<uint32_t>(index >> 32);
    uint32_t c2 = static_cast<uint32_t>(stream), c3 = static_cast<uint32_t>(stream >> 32);
    uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
    for (int round = 0; round < 10; ++round) {
      const uint64_t p0 = uint64_t{0xD2511F53u} * c0, p1 = uint64_t{0xCD9E8D57u} * c2;
      c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
      c1 = static_cast<uint32_t>(p1);
      c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
      c3 = static_cast<uint32_t>(p0);
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    return {{c0, c1, c2, c3}};
  }

  HEDDLE_HD uint32_t bits(uint64_t index) const { return block(index >> 2).word[index & 3]; }
  // Uniform in [0, 1), 24 bits.
  HEDDLE_HD float uniform(uint64_t index) const { return unit(bits(index)); }
  // Uniform integer in [0, bound), bound > 0, with negligible bias (bound far below 2^32).
  HEDDLE_HD uint32_t below(uint64_t index, uint32_t bound) const {
    return static_cast<uint32_t>((uint64_t{bits(index)} * bound) >> 32);
  }
  // Standard normal (Box and Muller), in double so that differences between implementations of
  // libm stay below one float ulp.
  HEDDLE_HD float normal(uint64_t index) const {
    const Block b = block(index >> 1);
    const uint32_t u = b.word[(index & 1) * 2], v = b.word[(index & 1) * 2 + 1];
    const double radius = sqrt(-2.0 * log((u + 1.0) * (1.0 / 4294967296.0)));
    return to_float(radius * cos(6.283185307179586 * (v * (1.0 / 4294967296.0))));
  }

  HEDDLE_HD static float unit(uint32_t bits) { return to_float(bits >> 8) * (1.0f / 16777216.0f); }
};

// Shuffles elements [begin, end) of an order (Fisher and Yates), with numbers begin + 2 … end.
template <class T>
void shuffle(std::vector<T>& order, size_t begin, size_t end, const Philox& rng) {
  for (size_t i = end; i > begin + 1; --i)
    std::swap(order[i - 1], order[begin + rng.below(i, static_cast<uint32_t>(i - begin))]);
}

}  // namespace heddle
