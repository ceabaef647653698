// Codes of innovations: what they lose, lengths, the same values on both sides, scales, and what is
// refused.
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "compress/codecs/bits.h"
#include "compress/innovation.h"
#include "core/context.h"
#include "core/error.h"
#include "core/random.h"

using namespace heddle;

namespace {

using Floats = std::vector<float>;

Floats noise(int64_t n, uint64_t step, float size) {
  Floats v(static_cast<size_t>(n));
  for (size_t i = 0; i < v.size(); ++i) v[i] = size * Philox(3, step).normal(i);
  return v;
}

// Returns what v decodes to on a rank that has not coded it.
Floats decoded(InnovationCoder& coder, const InnovationCoder& other, const Floats& v,
               int64_t step) {
  std::vector<uint8_t> bytes(static_cast<size_t>(coder.bytes(0)));
  coder.encode(0, v.data(), step, bytes.data());
  Floats own(v.size()), there(v.size());
  coder.decode(0, bytes.data(), own.data());
  other.decode(0, bytes.data(), there.data());
  CHECK(own == there);
  return own;
}

double squares(const Floats& a, const Floats& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::pow(double{a[i]} - b[i], 2);
  return sum;
}

}  // namespace

TEST_CASE(
    "innovation: codes of normal numbers lose less than there is, and decode to the same on all "
    "ranks") {
  Context context;
  struct Case {
    const char* text;
    double kept;  // at most this part of the energy is lost, for normal numbers
  };
  for (const Case& c :
       {Case{"none", 0}, Case{"qsgd:bits=8", 1e-3}, Case{"qsgd:bits=4", 0.06},
        Case{"qsgd:bits=4,rounding=stochastic", 0.1}, Case{"qsgd:bits=2,bucket=64", 0.85},
        Case{"topk:density=0.25", 0.4}, Case{"dyna:bits=2", 0.7}, Case{"dyna:bits=4", 0.05}}) {
    CAPTURE(c.text);
    for (const int64_t n : {16, 64, 1000, 1027}) {
      CAPTURE(n);
      InnovationCoder coder(parse_innovation(c.text), {n}, 5),
          other(parse_innovation(c.text), {n}, 6);
      const Floats v = noise(n, 1, 0.3f), zero(v.size());
      const double lost = squares(v, decoded(coder, other, v, 0)) / squares(v, zero);
      CHECK(lost <= c.kept);
      if (!std::string(c.text).starts_with("dyna"))  // its parts have no middle at zero
        CHECK(squares(decoded(coder, other, zero, 1), zero) == 0);
    }
  }
}

TEST_CASE("innovation: stochastic rounding differs from step to step, and is unbiased") {
  Context context;
  InnovationCoder coder(parse_innovation("qsgd:bits=4,rounding=stochastic"), {1000}, 5);
  const Floats v = noise(1000, 1, 0.3f), first = decoded(coder, coder, v, 0);
  CHECK(decoded(coder, coder, v, 0) == first);
  CHECK(decoded(coder, coder, v, 1) != first);
  std::vector<float> mean(1000);
  for (int64_t step = 0; step < 200; ++step) {
    const Floats q = decoded(coder, coder, v, step);
    for (size_t i = 0; i < mean.size(); ++i) mean[i] += q[i] / 200;
  }
  CHECK(squares(mean, v) < 0.02 * squares(first, v));  // expected: a two hundredth
}

TEST_CASE("innovation: stochastic rounding differs from bucket to bucket and from rank to rank") {
  Context context;
  const auto spec = parse_innovation("qsgd:bits=4,bucket=8,rounding=stochastic");
  InnovationCoder coder(spec, {16}, 5), other(spec, {16}, 6);
  const Floats half = noise(8, 1, 0.3f);
  Floats v = half;
  v.insert(v.end(), half.begin(), half.end());
  int halves = 0, ranks = 0;  // steps in which they differ
  for (int64_t step = 0; step < 50; ++step) {
    const Floats q = decoded(coder, coder, v, step);
    halves += std::equal(q.begin(), q.begin() + 8, q.begin() + 8) ? 0 : 1;
    ranks += decoded(other, other, v, step) == q ? 0 : 1;
  }
  CHECK(halves > 25);
  CHECK(ranks > 25);
}

TEST_CASE("innovation: a code of zeros decodes to zeros, and changes no scale") {
  Context context;
  for (const char* text : {"none", "qsgd:bits=4", "topk:density=0.1", "topk:density=0.4", "dyna"})
    for (const int64_t n : {10, 1000}) {
      CAPTURE(text);
      InnovationCoder coder(parse_innovation(text), {n}, 5);
      (void)decoded(coder, coder, noise(n, 1, 0.3f), 0);
      const Floats scales = coder.scales().to_vector();
      std::vector<uint8_t> bytes(static_cast<size_t>(coder.bytes(0)), 0xff);
      coder.encode_zero(0, bytes.data());
      Floats q(static_cast<size_t>(n), 1);
      coder.decode(0, bytes.data(), q.data());
      for (const float x : q) CHECK(x == 0);
      CHECK(coder.scales().to_vector() == scales);
    }
}

TEST_CASE("innovation: lengths") {
  Context context;
  const auto bytes = [](const char* text, int64_t n) {
    return InnovationCoder(parse_innovation(text), {n}, 1).bytes(0);
  };
  CHECK(bytes("none", 1000) == 4000);
  CHECK(bytes("qsgd:bits=4", 1025) == 2 * 4 + 513);
  CHECK(bytes("qsgd:bits=4,bucket=100", 1000) == 10 * 4 + 500);
  CHECK(bytes("dyna", 1001) == 16 * 2 + 126);
  CHECK(bytes("dyna:bits=2", 1000) == 16 * 2 + 250);
  CHECK(bytes("dyna:bucket=1000", 1000) == 2 + 125);
  CHECK(bytes("topk:density=0.1", 1000) == 100 * 4 + packed_bytes(1000, 1));
  for (const char* text : {"none", "qsgd:bits=4", "dyna", "topk:density=0.1"}) {
    CHECK(bytes(text, 15) == 4 * 15);  // too small to be coded
    CHECK((bytes(text, 16) < 4 * 16) == (std::string(text) != "none"));
  }
}

TEST_CASE("innovation: dyna's parts and scales") {
  Context context;
  // One bit: the middles of [-s, 0] and [0, s].
  InnovationCoder one(parse_innovation("dyna:bits=1"), {64}, 1);
  Floats v(64, 0.1f);
  v[3] = -4;
  const Floats q = decoded(one, one, v, 0);
  CHECK(q[3] == -2);
  CHECK(q[0] == 2);
  CHECK(one.scales().data<float>()[0] == 4);
  const auto scale_after = [](InnovationCoder& coder, float largest, int64_t step) {
    Floats x(64, 0.0f);
    x[7] = largest;
    (void)decoded(coder, coder, x, step);
    return coder.scales().data<float>()[0];
  };
  CHECK(scale_after(one, 5.9f, 1) == 4);  // between 0.9 s and 1.5 s
  CHECK(scale_after(one, 6.1f, 2) == 8);  // above 1.5 s
  CHECK(scale_after(one, 7.1f, 3) == doctest::Approx(7.2).epsilon(0.004));  // below 0.9 s
  CHECK(scale_after(one, 0, 4) == doctest::Approx(6.48).epsilon(0.008));    // and again
  InnovationCoder two(parse_innovation("dyna:bits=2"), {64}, 1);
  CHECK(scale_after(two, 4, 0) == 4);
  CHECK(scale_after(two, 4.1f, 1) == 8);  // more than a hundredth of 64 is beyond: one is
  CHECK(scale_after(two, 4.1f, 2) == 8);
  CHECK(scale_after(two, 3.9f, 3) == 4);
  const Floats parts = decoded(two, two, Floats(64, 2.1f), 4);  // s = 4: parts of width 2
  CHECK(parts[0] == 3);
  InnovationCoder geometric(parse_innovation("dyna:scale=geometric,first=8,ratio=0.5"), {64}, 1);
  CHECK(scale_after(geometric, 1, 0) == 8);
  CHECK(scale_after(geometric, 1, 3) == 1);
}

TEST_CASE("innovation: settings and steps of mixing") {
  CHECK(default_mixing(parse_innovation("none")) == 1);
  CHECK(default_mixing(parse_innovation("qsgd")) == 1);
  CHECK(default_mixing(parse_innovation("qsgd:bits=2")) == 0.5);
  CHECK(default_mixing(parse_innovation("topk:density=0.1")) == 0.1);
  CHECK(default_mixing(parse_innovation("topk:density=0.9")) == 0.5);
  CHECK(default_mixing(parse_innovation("dyna")) == 0.5);
  CHECK(default_mixing(parse_innovation("dyna:bits=2")) == 1);
  CHECK(parse_innovation("qsgd").values.at("rounding") == 1);
  for (const char* text : {"", "qsdg", "qsgd:bits=1", "qsgd:bits=9", "sign", "dyna:scale=no",
                           "topk:density=0", "qsgd:bits=3,rounding=stochastic", "none:x=1"})
    CHECK_THROWS_AS(parse_innovation(text), InputError);
}

TEST_CASE("innovation: indices that are none are refused") {
  Context context;
  InnovationCoder coder(parse_innovation("topk:density=0.01"), {1000}, 1);
  std::vector<uint8_t> bytes(static_cast<size_t>(coder.bytes(0)), 0xff);
  Floats x(1000);
  CHECK_THROWS_AS(coder.decode(0, bytes.data(), x.data()), Error);
}
