// Codecs and selection, without ranks; values of --compress.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "compress/codecs/bits.h"
#include "compress/codecs/delta_code.h"
#include "compress/codecs/magnitude.h"
#include "compress/codecs/quantize.h"
#include "compress/codecs/select.h"
#include "compress/families.h"
#include "core/error.h"
#include "core/half.h"

using namespace heddle;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<float> normal(int64_t n, uint64_t key) {
  const Philox rng(3, key);
  std::vector<float> x(static_cast<size_t>(n));
  for (size_t i = 0; i < x.size(); ++i) x[i] = rng.normal(i);
  return x;
}

// Returns the indices of the k largest |x|, lower indices first among equals, ascending.
Indices top_by_sort(const std::vector<float>& x, int64_t k) {
  Indices order(x.size());
  for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  const auto size = [&](uint32_t i) { return std::isnan(x[i]) ? 0.0f : std::abs(x[i]); };
  std::ranges::stable_sort(order, [&](uint32_t a, uint32_t b) { return size(a) > size(b); });
  order.resize(static_cast<size_t>(k));
  std::ranges::sort(order);
  return order;
}

Indices chunks_by_loop(const std::vector<float>& x, size_t chunk) {
  Indices out;
  for (size_t begin = 0; begin < x.size(); begin += chunk) {
    size_t best = begin;
    for (size_t i = begin; i < std::min(x.size(), begin + chunk); ++i)
      if (std::abs(x[i]) > (std::isnan(x[best]) ? 0 : std::abs(x[best]))) best = i;
    out.push_back(static_cast<uint32_t>(best));
  }
  return out;
}

// Inputs that are easily mishandled.
std::vector<std::vector<float>> awkward(int64_t n) {
  std::vector<std::vector<float>> all = {normal(n, 1), normal(n, 2)};
  all.emplace_back(static_cast<size_t>(n), 0.0f);
  all.emplace_back(static_cast<size_t>(n), -1.0f);  // ties everywhere
  if (n > 0) {
    all.emplace_back(static_cast<size_t>(n), 0.0f);
    all.back()[static_cast<size_t>(n) / 2] = 1e-42f;
    for (size_t i = 0; i < all[1].size(); i += 3) all[1][i] = all[1][0];  // some ties
    all.push_back(normal(n, 4));
    all.back()[static_cast<size_t>(n) - 1] = kNan;
    all.back()[0] = -kInf;
  }
  return all;
}

std::string complaint(const std::string& text) {
  try {
    parse_compress(text);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("half: all 65536 round trip; rounding to nearest even, overflow, subnormals, NaN") {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    Half h;
    h.bits = static_cast<uint16_t>(bits);
    const auto f = static_cast<float>(h);
    const int exponent = static_cast<int>(bits >> 10 & 31),
              fraction = static_cast<int>(bits & 1023);
    if (exponent == 31 && fraction != 0) {
      CHECK(std::isnan(f));
      CHECK(std::isnan(static_cast<float>(Half(f))));
      continue;
    }
    double expected = exponent == 31  ? kInf
                      : exponent == 0 ? std::ldexp(fraction, -24)
                                      : std::ldexp(1024 + fraction, exponent - 25);
    if (bits >> 15 != 0) expected = -expected;
    if (f != expected || std::signbit(f) != (bits >> 15 != 0) || Half(f).bits != bits)
      FAIL_CHECK("half ", bits);
    // Ties are rounded to even, other values to the nearer one.
    if (exponent == 31 || bits >> 15 != 0) continue;
    Half next;
    next.bits = static_cast<uint16_t>(bits + 1);
    const float above = bits + 1 == 0x7c00 ? 65536.0f : static_cast<float>(next);
    const float middle = (f + above) / 2;
    const uint32_t even = bits + (bits & 1);
    if (Half(middle).bits != even || Half(std::nextafter(middle, 0.0f)).bits != bits ||
        Half(std::nextafter(middle, kInf)).bits != bits + 1)
      FAIL_CHECK("rounding above half ", bits);
  }
  CHECK(Half(65519.0f).bits == 0x7bff);
  CHECK(Half(65520.0f).bits == 0x7c00);
  CHECK(Half(-1e30f).bits == 0xfc00);
  CHECK(Half(-0.0f).bits == 0x8000);
  CHECK(Half(1e-30f).bits == 0);
  CHECK(Half(1e-42f).bits == 0);
}

TEST_CASE("bits: every width, lengths that do not fill a byte, nothing written past the end") {
  for (int bits = 0; bits <= 32; ++bits)
    for (int64_t n : {0, 1, 2, 7, 8, 9, 100}) {
      const Philox rng(1, static_cast<uint64_t>(bits));
      std::vector<uint32_t> values(static_cast<size_t>(n)), back(values.size());
      for (size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<uint32_t>(rng.bits(i) & ((uint64_t{1} << bits) - 1));
      const int64_t size = packed_bytes(n, bits);
      CHECK(size == (n * bits + 7) / 8);
      std::vector<uint8_t> bytes(static_cast<size_t>(size) + 1, 0xab);
      pack_bits(values.data(), n, bits, bytes.data());
      CHECK(bytes.back() == 0xab);
      unpack_bits(bytes.data(), n, bits, back.data());
      CHECK(back == values);
    }
  CHECK(bits_below(1) == 0);
  CHECK(bits_below(2) == 1);
  CHECK(bits_below(112) == 7);
  CHECK(bits_below(400) == 9);
  CHECK(bits_below(512) == 9);
  CHECK(bits_below(513) == 10);
}

TEST_CASE("selection: chunks equal a loop, top k equals a sort; ties, NaN, any length") {
  for (int64_t n : {0, 1, 2, 5, 99, 100, 101, 1000, 40000})
    for (const std::vector<float>& x : awkward(n)) {
      CAPTURE(n);
      for (int64_t chunk : {1, 2, 25, 100, 400, 1000000})
        CHECK(select_chunks(x, chunk) == chunks_by_loop(x, static_cast<size_t>(chunk)));
      for (int64_t k : {int64_t{0}, int64_t{1}, n / 100, n / 2, n - 1, n})
        if (k >= 0 && k <= n) CHECK(select_top(x, k) == top_by_sort(x, k));
    }
  CHECK(kept_elements(0.01, 1000) == 10);
  CHECK(kept_elements(1e-6, 1000) == 1);
  CHECK(kept_elements(1, 1000) == 1000);
  const std::vector<float> x = {3, 0, 4, 0};
  CHECK(kept_energy(x, {2}) == doctest::Approx(16.0 / 25));
  CHECK(kept_energy(x, {}) == 0);
  CHECK(kept_energy({}, {}) == 1);
  // Exact selection never keeps less energy than chunks do.
  const std::vector<float> y = normal(10000, 9);
  CHECK(kept_energy(y, select_top(y, 100)) > kept_energy(y, select_chunks(y, 100)));
}

TEST_CASE("random selection: k distinct elements, uniform, reproducible") {
  std::vector<int> drawn(50);
  for (uint64_t key = 0; key < 2000; ++key)
    for (int64_t k : {0, 5, 25, 45, 50}) {
      // Each k has a generator of its own: with the same, 45 would leave out just what 5 take.
      const Indices indices = select_random(50, k, Philox(static_cast<uint64_t>(k), key));
      REQUIRE(std::ssize(indices) == k);
      for (size_t i = 1; i < indices.size(); ++i) REQUIRE(indices[i] > indices[i - 1]);
      if (k == 5 || k == 45)
        for (const uint32_t i : indices) ++drawn[i];
    }
  for (const int count : drawn) CHECK(std::abs(count - 2000) < 90);  // 4.7 standard deviations
  CHECK(select_random(50, 5, Philox(1, 7)) == select_random(50, 5, Philox(1, 7)));
  CHECK(select_random(50, 5, Philox(1, 7)) != select_random(50, 5, Philox(2, 7)));
}

TEST_CASE("indices: bytes match the formula, round trip, invalid input is refused") {
  for (int64_t n : {1, 2, 63, 1000, 5000})
    for (int64_t chunk : {1, 7, 100, 400, 100000}) {
      const std::vector<float> x = normal(n, 5);
      const Indices indices = select_chunks(x, chunk);
      const IndexCode code{n, (n + chunk - 1) / chunk, chunk};
      CHECK(code.bytes() == packed_bytes(code.k, bits_below(std::min(n, chunk))));
      std::vector<uint8_t> bytes(static_cast<size_t>(code.bytes()));
      code.encode(indices, bytes.data());
      CHECK(code.decode(bytes.data()) == indices);
    }
  for (int64_t n : {1, 2, 63, 1000, 5000})
    for (int64_t k : {int64_t{0}, int64_t{1}, n / 20, n / 3, n}) {
      const Indices indices = select_top(normal(n, 5), k);
      const IndexCode code{n, k};
      CHECK(code.bytes() == std::min((n + 7) / 8, packed_bytes(k, bits_below(n))));
      std::vector<uint8_t> bytes(static_cast<size_t>(code.bytes()));
      code.encode(indices, bytes.data());
      CHECK(code.decode(bytes.data()) == indices);
    }
  const std::vector<uint8_t> ones(1000, 0xff);
  CHECK_THROWS_AS((IndexCode{1000, 10}.decode(ones.data())), Error);
  CHECK_THROWS_AS((IndexCode{1000, 400}.decode(ones.data())), Error);      // a bitmap of all
  CHECK_THROWS_AS((IndexCode{1000, 10, 100}.decode(ones.data())), Error);  // beyond the end
}

TEST_CASE("differences: round trip, announced length, shorter than plain, near the entropy") {
  for (int64_t n : {1, 2, 63, 1000, 5000, 70000})
    for (int64_t k : {int64_t{0}, int64_t{1}, n / 100, n / 20, n / 3, n - 1, n}) {
      CAPTURE(n);
      CAPTURE(k);
      const DeltaCode code{n, k};
      Indices first(static_cast<size_t>(k)), last = first;
      for (uint32_t i = 0; i < k; ++i) first[i] = i, last[i] = static_cast<uint32_t>(n - k) + i;
      for (const Indices& indices : {select_top(normal(n, 5), k), first, last}) {
        std::vector<uint8_t> bytes = code.encode(indices);
        CHECK(std::ssize(bytes) <= code.max_bytes());
        if (indices == last) CHECK(std::ssize(bytes) == code.max_bytes());
        bytes.insert(bytes.end(), {1, 2, 3});  // of the next layer
        std::span<const uint8_t> rest = bytes;
        CHECK(code.decode(rest) == indices);
        CHECK(rest.size() == 3);
      }
      if (n >= 1000 && k > 1 && k < n / 2)
        CHECK(code.encode(select_top(normal(n, 5), k)).size() <
              static_cast<size_t>(IndexCode{n, k}.bytes()));
    }
  // b = 2; gaps 1, 3, 0, 12: 1 10, 1 11, 1 00, 0001 00, the first bit lowest.
  CHECK(DeltaCode{20, 4}.encode({1, 5, 6, 19}) == std::vector<uint8_t>{0b01111011, 0b00010000});
  const DeltaCode longest{(int64_t{1} << 32) - 1, 1};
  const std::vector<uint8_t> bytes = longest.encode({0xfffffffeu});
  std::span<const uint8_t> rest = bytes;
  CHECK(longest.decode(rest) == Indices{0xfffffffeu});
  for (const auto& [k, entropy] : {std::pair{100000, 4.69}, {10000, 8.08}, {1000, 11.41}}) {
    const Indices indices = select_random(1000000, k, Philox(1, 2));
    const double bits = 8.0 * static_cast<double>(DeltaCode{1000000, k}.encode(indices).size()) / k;
    CHECK(bits > entropy - 0.02);
    CHECK(bits < entropy + 0.12);
  }
}

TEST_CASE("differences: truncated or random bytes are refused or decode to indices below n") {
  const DeltaCode code{5000, 60};
  const std::vector<uint8_t> good = code.encode(select_top(normal(5000, 5), 60));
  for (size_t size = 0; size < good.size(); ++size) {
    std::span<const uint8_t> part(good.data(), size);
    CHECK_THROWS_AS((void)code.decode(part), Error);
  }
  std::vector<uint8_t> bytes(static_cast<size_t>(code.max_bytes()) + 8);
  std::span<const uint8_t> zeros = bytes;
  CHECK_THROWS_AS((void)code.decode(zeros), Error);
  int refused = 0;
  for (uint64_t trial = 0; trial < 4000; ++trial) {
    const Philox rng(7, trial);
    for (size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = static_cast<uint8_t>(rng.bits(i));
      if (trial % 2 == 0) bytes[i] |= static_cast<uint8_t>(rng.bits(1000 + i));  // small gaps
    }
    std::span<const uint8_t> rest = bytes;
    try {
      const Indices indices = code.decode(rest);
      CHECK(std::ssize(indices) == 60);
      CHECK(std::ranges::is_sorted(indices));
      CHECK(std::ranges::adjacent_find(indices) == indices.end());
      CHECK(indices.back() < 5000);
    } catch (const Error&) {
      ++refused;
    }
  }
  CHECK(refused > 0);
  CHECK(refused < 4000);
}

TEST_CASE("quantiser: bounds, unbiased over keys, variance; zeros, spikes, NaN, any length") {
  for (int bits = 2; bits <= 8; ++bits)
    for (int64_t n : {0, 1, 3, 64, 509}) {
      CAPTURE(bits);
      const int s = (1 << (bits - 1)) - 1;
      const std::vector<float> x = normal(n, 6);
      std::vector<float> back(x.size());
      const int64_t size = quantized_bytes(n, bits);
      CHECK(size == 4 + (n * bits + 7) / 8);
      std::vector<uint8_t> bytes(static_cast<size_t>(size) + 1, 0xab);
      const float scale = std::bit_cast<float>(largest_magnitude(x.data(), n));
      const float step = scale / static_cast<float>(s);
      for (const bool noisy : {false, true}) {
        std::optional<Philox> noise;
        if (noisy) noise.emplace(1, 2);
        quantize(x.data(), n, bits, noise, 8, bytes.data());
        CHECK(bytes.back() == 0xab);
        dequantize(bytes.data(), n, bits, back.data());
        for (size_t i = 0; i < x.size(); ++i) {
          CHECK(std::abs(back[i] - x[i]) <= step * (noisy ? 1 : 0.5f) * 1.0001f);
          if (std::abs(x[i]) == scale) CHECK(back[i] == x[i]);
        }
      }
    }
  // The mean over many keys is x; the mean squared error is at most step^2 / 4.
  constexpr int kKeys = 4000;
  const std::vector<float> x = normal(32, 7);
  for (int bits = 2; bits <= 8; ++bits) {
    CAPTURE(bits);
    std::vector<double> mean(x.size()), square(x.size());
    std::vector<uint8_t> bytes(static_cast<size_t>(quantized_bytes(32, bits)));
    std::vector<float> back(x.size());
    for (uint64_t key = 0; key < kKeys; ++key) {
      quantize(x.data(), 32, bits, Philox(1, key), 0, bytes.data());
      dequantize(bytes.data(), 32, bits, back.data());
      for (size_t i = 0; i < x.size(); ++i) {
        mean[i] += back[i] / double{kKeys};
        square[i] += (back[i] - x[i]) * double{back[i] - x[i]} / kKeys;
      }
    }
    const double levels = (1 << (bits - 1)) - 1;
    const double step = std::bit_cast<float>(largest_magnitude(x.data(), 32)) / levels;
    for (size_t i = 0; i < x.size(); ++i) {
      CHECK(std::abs(mean[i] - x[i]) < 5 * step / 2 / std::sqrt(kKeys));
      CHECK(square[i] <= step * step / 4 * 1.05);
    }
  }
  std::vector<uint8_t> bytes(static_cast<size_t>(quantized_bytes(32, 4)));
  std::vector<float> back(x.size());
  for (const float odd : {0.0f, 1e-42f, 3e38f, kNan, kInf, -kInf}) {
    CAPTURE(odd);
    std::vector<float> y(32, 0.0f);
    y[5] = odd;
    quantize(y.data(), 32, 4, std::nullopt, 0, bytes.data());
    dequantize(bytes.data(), 32, 4, back.data());
    if (std::isfinite(odd))
      CHECK(back == y);
    else
      CHECK(std::ranges::none_of(back, [](float v) { return std::isfinite(v); }));
  }
}

TEST_CASE("spec: defaults, canonical text, errors suggest the nearest name") {
  CHECK(to_string(parse_compress("scalecom")) ==
        "scalecom:rate=100,beta=1,select=chunk,ramp=0,values=fp32");
  CHECK(to_string(parse_compress("scalecom:select=exact,rate=auto,beta=.1")) ==
        "scalecom:rate=auto,beta=0.1,select=exact,ramp=0,values=fp32");
  CHECK(to_string(parse_compress("qsgd:rounding=nearest")) ==
        "qsgd:bits=4,bucket=512,rounding=nearest");
  CHECK(to_string(parse_compress("topk:density=0.123456789")) ==
        "topk:density=0.123456789,indices=delta,ramp=0,values=fp32");
  for (const Family& family : families()) {
    const std::string text = to_string(parse_compress(family.name));
    CHECK(to_string(parse_compress(text)) == text);
  }
  for (const char* bad : {"",
                          "scalecom:",
                          "scalecom:rate",
                          "scalecom:rate=",
                          "scalecom:rate=0",
                          "scalecom:rate=-1",
                          "scalecom:rate=1.5",
                          "scalecom:rate=nan",
                          "scalecom:rate=1e99",
                          "scalecom:rate=100x",
                          "scalecom:rate=1,rate=2",
                          "scalecom:beta=0",
                          "scalecom:beta=1.1",
                          "scalecom:select=0",
                          "scalecom:select=best",
                          "qsgd:bits=1",
                          "qsgd:bits=9",
                          "qsgd:bucket=0",
                          "qsgd:bits=auto",
                          "powersgd:rank=-1",
                          "powersgd:rank=0",
                          "powersgd:rank=inf",
                          "topk:density=0",
                          "topk:density=1.1",
                          "topk:indices=1",
                          "randomk:rate=5",
                          "none:x=1",
                          "fp16:bits=4",
                          "scalecom:rate=1,,beta=1",
                          "scalecom;rate=1",
                          " topk",
                          "topk:density=0.1,"}) {
    CAPTURE(bad);
    CHECK(complaint(bad) != "");
  }
  CHECK(complaint("scalcom:rate=1").find("the nearest is scalecom") != std::string::npos);
  CHECK(complaint("scalecom:rat=1").find("the nearest is rate") != std::string::npos);
  CHECK(complaint("gzip").find("expected one of none, bf16,") != std::string::npos);
  CHECK(complaint("qsgd:bits=9") ==
        "compress qsgd: bits: expected a whole number from 2 to 8, found \"9\"");
  CHECK(complaint("scalecom:rate=0").find("or auto, found \"0\"") != std::string::npos);
}
