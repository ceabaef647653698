// Philox, bfloat16 and the vector lanes.
#include <doctest/doctest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/random.h"
#include "core/simd.h"

using namespace heddle;

namespace {

// Philox4x32-10 as the paper states it (Salmon et al., section 2.2): counter words, key words.
std::array<uint32_t, 4> paper_philox(std::array<uint32_t, 4> c, std::array<uint32_t, 2> k) {
  for (int round = 0; round < 10; ++round) {
    if (round > 0) k = {k[0] + 0x9E3779B9u, k[1] + 0xBB67AE85u};
    const uint64_t left = uint64_t{c[0]} * 0xD2511F53u, right = uint64_t{c[2]} * 0xCD9E8D57u;
    c = {static_cast<uint32_t>(right >> 32) ^ c[1] ^ k[0], static_cast<uint32_t>(right),
         static_cast<uint32_t>(left >> 32) ^ c[3] ^ k[1], static_cast<uint32_t>(left)};
  }
  return c;
}

std::array<uint32_t, 4> words(const Philox::Block& b) {
  return {b.word[0], b.word[1], b.word[2], b.word[3]};
}

// Rounds to nearest even by comparing the dropped bits with half a step.
uint16_t reference_rounding(float value) {
  const uint32_t u = std::bit_cast<uint32_t>(value);
  const auto low = static_cast<uint16_t>(u >> 16);
  const uint32_t rest = u & 0xffffu;
  if (rest > 0x8000u || (rest == 0x8000u && low % 2 == 1)) return static_cast<uint16_t>(low + 1);
  return low;
}

}  // namespace

TEST_CASE("Philox: known answers from Random123") {
  using W = std::array<uint32_t, 4>;
  CHECK(words(Philox(0, 0).block(0)) == W{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  const uint64_t ones = ~uint64_t{0};
  CHECK(words(Philox(ones, ones).block(ones)) == W{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(words(Philox(0x299f31d0a4093822u, 0x0370734413198a2eu).block(0x85a308d3243f6a88u)) ==
        W{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
  for (uint64_t i = 0; i < 100; ++i) {
    const uint64_t index = i * 0x123456789abcdefu, stream = i * 0xfedcba987654321u, seed = ~index;
    CHECK(words(Philox(seed, stream).block(index)) ==
          paper_philox({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
                        static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)},
                       {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)}));
  }
}

TEST_CASE("Philox: uniform and normal numbers have the right moments; streams differ") {
  const Philox rng(42, stream_id(Stream::sample, 1));
  constexpr int kCount = 400000;
  double mean = 0, square = 0, lag = 0;
  std::vector<int> bins(64, 0);
  for (int i = 0; i < kCount; ++i) {
    const double u = rng.uniform(i);
    REQUIRE(u >= 0.0);
    REQUIRE(u < 1.0);
    mean += u;
    square += u * u;
    lag += u * rng.uniform(i + 1);
    ++bins[static_cast<int>(u * 64)];
  }
  // Four standard deviations each.
  CHECK(std::abs(mean / kCount - 0.5) < 4 * 0.2887 / std::sqrt(kCount));
  CHECK(std::abs(square / kCount - 1.0 / 3) < 4 * 0.2981 / std::sqrt(kCount));
  CHECK(std::abs(lag / kCount - 0.25) < 4 * 0.2205 / std::sqrt(kCount));
  double chi = 0;
  for (int b : bins) chi += std::pow(b - kCount / 64.0, 2) / (kCount / 64.0);
  CHECK(chi < 63 + 5 * std::sqrt(2.0 * 63));
  double moments[5] = {};
  for (int i = 0; i < kCount; ++i) {
    const double z = rng.normal(i);
    for (int k = 1; k <= 4; ++k) moments[k] += std::pow(z, k) / kCount;
  }
  CHECK(std::abs(moments[1]) < 4 / std::sqrt(kCount));
  CHECK(std::abs(moments[2] - 1) < 4 * std::sqrt(2.0 / kCount));
  CHECK(std::abs(moments[3]) < 4 * std::sqrt(15.0 / kCount));
  CHECK(std::abs(moments[4] - 3) < 4 * std::sqrt(96.0 / kCount));
  for (uint32_t bound : {1u, 2u, 10u, 1000003u}) {
    uint32_t top = 0;
    for (int i = 0; i < 1000; ++i) top = std::max(top, rng.below(i, bound));
    CHECK(top < bound);
    if (bound == 10) CHECK(top == 9);
  }
  CHECK(stream_id(Stream::init, 5) != stream_id(Stream::dropout, 5));
  CHECK(stream_id(Stream::init, 0) != 0);
  // A key that is too large must not reach another purpose's numbers.
  CHECK((stream_id(Stream::init, ~uint64_t{0}) >> 56) == (stream_id(Stream::init) >> 56));
  // The smallest and largest words give finite normal numbers: log(1) and log(2^-32).
  CHECK(std::isfinite(std::sqrt(-2.0 * std::log(1.0 / 4294967296.0))));
}

TEST_CASE("bfloat16: all halves survive, rounding is to nearest even, NaN stays NaN") {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float exact = std::bit_cast<float>(bits << 16);
    const bfloat16 back(exact);
    if (std::isnan(exact)) {
      REQUIRE(std::isnan(static_cast<float>(back)));
      continue;
    }
    REQUIRE(back.bits == bits);
    for (uint32_t rest : {1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const float between = std::bit_cast<float>(bits << 16 | rest);
      if (std::isnan(between)) {
        REQUIRE(std::isnan(static_cast<float>(bfloat16(between))));
        continue;
      }
      REQUIRE(bfloat16(between).bits == reference_rounding(between));
    }
  }
  CHECK(static_cast<float>(bfloat16(std::numeric_limits<float>::max())) ==
        std::numeric_limits<float>::infinity());
  CHECK(std::isnan(static_cast<float>(bfloat16(std::bit_cast<float>(0x7f800001u)))));
  CHECK(std::isnan(static_cast<float>(bfloat16(std::bit_cast<float>(0xffffffffu)))));
}

TEST_CASE("simd: sixteen lanes give the bits of one, for every pattern of the upper half") {
  for (uint32_t rest : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
    for (uint32_t upper = 0; upper < 65536; upper += 16) {
      float values[16];
      bfloat16 wide[16];
      for (uint32_t i = 0; i < 16; ++i) values[i] = std::bit_cast<float>((upper + i) << 16 | rest);
      const f32x16 v = Lanes<16>::load(values);
      Lanes<16>::store(wide, v);
      const f32x16 relu = Lanes<16>::relu(v), again = Lanes<16>::load(wide);
      const f32x16 positive = Lanes<16>::positive(v, Lanes<16>::all(2.0f));
      for (uint32_t i = 0; i < 16; ++i) {
        bfloat16 one;
        Lanes<1>::store(&one, values[i]);
        REQUIRE(wide[i].bits == one.bits);
        REQUIRE(std::bit_cast<uint32_t>(float{again[i]}) == uint32_t{one.bits} << 16);
        REQUIRE(std::bit_cast<uint32_t>(float{relu[i]}) ==
                std::bit_cast<uint32_t>(Lanes<1>::relu(values[i])));
        REQUIRE(positive[i] == Lanes<1>::positive(values[i], 2.0f));
      }
    }
}
