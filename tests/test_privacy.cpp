// The privacy accountant: reference values, closed forms, bounds, and properties. The table is
// computed once with an independent implementation in Python; Opacus tests a value near one of its
// rows.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/error.h"
#include "core/privacy.h"
#include "core/random.h"

using namespace heddle;

namespace {

constexpr double kDelta = 1e-5;

RdpCurve times(RdpCurve curve, double n) {
  for (double& x : curve) x *= n;
  return curve;
}

double at(const RdpCurve& curve, int64_t order) {
  for (size_t i = 0; i < curve.size(); ++i)
    if (rdp_orders()[i] == order) return curve[i];
  return std::numeric_limits<double>::quiet_NaN();
}

// The conversion of Mironov 2017, never better than the library's.
PrivacySpent classic_epsilon_of(const RdpCurve& curve, double delta) {
  PrivacySpent best{INFINITY, 0};
  for (size_t i = 0; i < curve.size(); ++i) {
    const int64_t order = rdp_orders()[i];
    const double epsilon = curve[i] - std::log(delta) / (static_cast<double>(order) - 1);
    if (epsilon < best.epsilon) best = {epsilon, order};
  }
  return best;
}

// Returns log(mean of (P / Q)^order under Q) / (order - 1) for the signs of 1 and 0 votes plus
// noise, from the distribution function itself.
double ternary_by_hand(double order, double sigma, double threshold, double v, double w) {
  const auto below = [&](double x) { return std::erfc(-x / sigma / std::sqrt(2.0)) / 2; };
  const auto parts = [&](double sum) {
    const double up = 1 - below(threshold - sum), down = below(-threshold - sum);
    return std::vector<double>{up, down, 1 - up - down};
  };
  const auto p = parts(v), q = parts(w);
  double mean = 0;
  for (size_t i = 0; i < 3; ++i)
    if (p[i] > 0) mean += std::pow(p[i], order) * std::pow(q[i], 1 - order);
  return std::log(mean) / (order - 1);
}

}  // namespace

TEST_CASE("privacy: epsilons of the reference table") {
  struct Row {
    RdpCurve curve;
    double classic, improved;
    int64_t classic_order, improved_order;
  };
  const auto votes = [](double k, double sigma, double queries) {
    return times(gaussian_rdp(sigma / (2 * std::sqrt(k))), queries);
  };
  const std::vector<Row> rows = {
      {gaussian_rdp(1), 5.302585, 4.752728, 6, 5},
      {times(gaussian_rdp(10), 100), 5.302585, 4.752728, 6, 5},
      {times(sampled_gaussian_rdp(0.01, 1.1), 10000), 6.279812, 5.654308, 5, 5},
      {times(sampled_gaussian_rdp(0.02, 1), 500), 0, 3.145759, 0, 6},
      {times(sampled_gaussian_rdp(0.04, 1.5), 2250), 0, 7.329877, 0, 4},
      {votes(200, 5000, 1300), 0.999705, 0.811430, 25, 21},
      {votes(700, 9000, 1204), 0.999952, 0.811637, 25, 21},
      {votes(300, 800, 1643), 9.998892, 9.249112, 4, 4},
      {votes(350, 1000, 2200), 9.997642, 9.247862, 4, 4},
      {votes(500, 700, 754), 9.992744, 9.242964, 4, 4}};
  for (size_t i = 0; i < rows.size(); ++i) {
    CAPTURE(i);
    const PrivacySpent improved = epsilon_of(rows[i].curve, kDelta);
    CHECK(std::abs(improved.epsilon - rows[i].improved) < 1e-6);
    CHECK(improved.order == rows[i].improved_order);
    if (rows[i].classic_order == 0) continue;
    const PrivacySpent classic = classic_epsilon_of(rows[i].curve, kDelta);
    CHECK(std::abs(classic.epsilon - rows[i].classic) < 1e-6);
    CHECK(classic.order == rows[i].classic_order);
  }
  CHECK(classic_epsilon_of(votes(200, 5000, 1301), kDelta).epsilon > 1);
}

TEST_CASE("privacy: divergences of the sampled Gaussian") {
  const RdpCurve curve = sampled_gaussian_rdp(0.01, 1.1);
  CHECK(at(curve, 2) == doctest::Approx(1.285101e-4).epsilon(1e-6));
  CHECK(at(curve, 4) == doctest::Approx(2.667183e-4).epsilon(1e-6));
  CHECK(at(curve, 8) == doctest::Approx(5.840703e-4).epsilon(1e-6));
  CHECK(at(curve, 16) == doctest::Approx(1.699827).epsilon(1e-6));
  CHECK(at(curve, 32) == doctest::Approx(8.469416).epsilon(1e-6));
  for (const double q : {0.001, 0.3, 0.9})
    for (const double z : {0.7, 2.0, 30.0, 1e6})
      CHECK(at(sampled_gaussian_rdp(q, z), 2) ==
            doctest::Approx(std::log1p(q * q * std::expm1(1 / (z * z)))).epsilon(1e-9));
  CHECK(sampled_gaussian_rdp(1, 3) == gaussian_rdp(3));
  CHECK(at(sampled_gaussian_rdp(0, 1), 64) == 0);
  CHECK(std::isinf(at(sampled_gaussian_rdp(0.5, 0), 2)));
  CHECK(std::isinf(epsilon_of(gaussian_rdp(0), kDelta).epsilon));
}

TEST_CASE("privacy: more releases, a smaller delta or more sampling never cost less") {
  const Philox random(5, 1);
  for (uint64_t i = 0; i < 60; ++i) {
    const double q = 0.001 + 0.9 * random.uniform(4 * i), z = 0.5 + 5.0 * random.uniform(4 * i + 1),
                 n = 1 + std::floor(300.0 * random.uniform(4 * i + 2)),
                 delta = std::pow(10, -3 - 6.0 * random.uniform(4 * i + 3));
    const double epsilon = epsilon_of(times(sampled_gaussian_rdp(q, z), n), delta).epsilon;
    CHECK(epsilon_of(times(sampled_gaussian_rdp(q, z), n + 1), delta).epsilon >= epsilon);
    CHECK(epsilon_of(times(sampled_gaussian_rdp(q, z), n), delta / 2).epsilon >= epsilon);
    CHECK(epsilon_of(times(sampled_gaussian_rdp(q * 1.05, z), n), delta).epsilon >= epsilon);
    CHECK(classic_epsilon_of(times(sampled_gaussian_rdp(q, z), n), delta).epsilon >= epsilon);
  }
}

TEST_CASE("privacy: noise_for stays within epsilon, and hardly less noise would") {
  for (const double epsilon : {0.1, 1.0, 8.0, 50.0})
    for (const double q : {0.01, 1.0})
      for (const int64_t n : {1, 1000}) {
        CAPTURE(epsilon);
        CAPTURE(q);
        CAPTURE(n);
        const double z = noise_for(epsilon, kDelta, q, n), count = static_cast<double>(n);
        CHECK(epsilon_of(times(sampled_gaussian_rdp(q, z), count), kDelta).epsilon <= epsilon);
        CHECK(epsilon_of(times(sampled_gaussian_rdp(q, z * (1 - 1e-6)), count), kDelta).epsilon >
              epsilon);
      }
  CHECK_THROWS_AS((void)noise_for(1e-6, 1e-12, 1, 1000), InputError);
}

TEST_CASE("privacy: signs of noisy votes tell less than the noisy votes") {
  // The share of the Fisher information that three levels keep, at a change far below sigma.
  const auto share = [](double threshold) {
    return at(ternary_rdp(1000, 1000 * threshold, 7, false), 2) /
           at(gaussian_rdp(1000 / std::sqrt(7.0)), 2);
  };
  CHECK(share(0.56) == doctest::Approx(0.8085).epsilon(1e-3));
  CHECK(share(1.0) == doctest::Approx(0.7381).epsilon(1e-3));
  for (const double sigma : {0.3, 2.0, 50.0})
    for (const double threshold : {0.0, 0.5, 4.0})
      for (const bool replaced : {false, true}) {
        const RdpCurve signs = ternary_rdp(sigma * 10, threshold * sigma * 10, 20, replaced);
        const RdpCurve sums = gaussian_rdp(sigma * 10 / std::sqrt(20.0) / (replaced ? 2 : 1));
        for (size_t i = 0; i < signs.size(); ++i) {
          CHECK(signs[i] > 0);
          CHECK(signs[i] <= sums[i]);
        }
      }
  // The higher of two maxima, and one near a threshold far away; calculated with 34 digits.
  CHECK(at(ternary_rdp(100, 240, 1, false), 40) == doctest::Approx(0.00127683544005).epsilon(1e-9));
  CHECK(at(ternary_rdp(0.1, 0.15, 1, false), 3) == doctest::Approx(148.453219928).epsilon(1e-9));
  CHECK(at(ternary_rdp(1, 1e5, 1, false), 2) == doctest::Approx(0.66182547585).epsilon(1e-8));
  // No pair of sums of votes exceeds it: one unit's vote comes or goes, or turns.
  const RdpCurve once = ternary_rdp(5, 3, 1, false), turned = ternary_rdp(5, 3, 1, true);
  for (int v = -30; v <= 30; ++v)
    for (const int64_t order : {2, 8, 24}) {
      const auto a = static_cast<double>(order);
      CHECK(ternary_by_hand(a, 5, 3, v, v + 1) <= at(once, order) * (1 + 1e-6) + 1e-12);
      CHECK(ternary_by_hand(a, 5, 3, v + 2, v) <= at(turned, order) * (1 + 1e-6) + 1e-12);
    }
  double most = 0;
  for (double v = -20; v <= 20; v += 0.01)
    most = std::max(most, ternary_by_hand(8, 5, 3, v, v + 1));
  CHECK(at(once, 8) == doctest::Approx(most).epsilon(1e-5));
}

TEST_CASE("privacy: at the limits of numbers nothing is protected that is not") {
  CHECK(rdp_orders().back() == 1024);
  for (const double x : sampled_gaussian_rdp(0.5, 1e-200)) CHECK(std::isinf(x));
  for (const double x : ternary_rdp(1e-308, 10, 1, true)) CHECK(std::isinf(x));
  for (const double x : ternary_rdp(1e-309, 0, 1, true)) CHECK(std::isinf(x));
  for (const double x : ternary_rdp(1, 1, 0, true)) CHECK(x == 0);
  // Thresholds at which the middle outcome is as good as impossible.
  for (const double threshold : {0.0, 1e-300, 1e-17, 1e-9})
    CHECK(at(ternary_rdp(3, threshold, 1, false), 2) ==
          doctest::Approx(at(ternary_rdp(3, 0, 1, false), 2)).epsilon(1e-6));
  CHECK(epsilon_of(RdpCurve(rdp_orders().size()), 0.9).epsilon == 0);
  CHECK(noise_for(1, kDelta, 1, 0) < 1e-6);
  CHECK(noise_for(1e305, kDelta, 0.5, 1) < 1e-100);
  // Calculated with 50 digits: logarithms of 1 + tiny would give 1.0000.
  CHECK(std::abs(epsilon_of(times(sampled_gaussian_rdp(0.001, 389143), 1e16), kDelta).epsilon -
                 1.0432) < 1e-3);
}

TEST_CASE("privacy: impossible numbers are refused") {
  const double nan = std::nan("");
  CHECK_THROWS_AS((void)gaussian_rdp(nan), InputError);
  CHECK_THROWS_AS((void)sampled_gaussian_rdp(0.5, nan), InputError);
  CHECK_THROWS_AS((void)ternary_rdp(nan, 1, 1, true), InputError);
  CHECK_THROWS_AS((void)ternary_rdp(1, nan, 1, true), InputError);
  CHECK_THROWS_AS((void)epsilon_of(gaussian_rdp(1), 1), InputError);
  CHECK_THROWS_AS((void)epsilon_of(gaussian_rdp(1), nan), InputError);
  CHECK_THROWS_AS((void)epsilon_of(RdpCurve(rdp_orders().size(), -1), 0.1), InputError);
  CHECK_THROWS_AS((void)noise_for(nan, 1e-5, 1, 1), InputError);
  CHECK_THROWS_AS((void)gaussian_rdp(-1), InputError);
  CHECK_THROWS_AS((void)sampled_gaussian_rdp(1.5, 1), InputError);
  CHECK_THROWS_AS((void)sampled_gaussian_rdp(std::nan(""), 1), InputError);
  CHECK_THROWS_AS((void)ternary_rdp(1, -1, 1, true), InputError);
  CHECK_THROWS_AS((void)epsilon_of(gaussian_rdp(1), 0), InputError);
  CHECK_THROWS_AS((void)epsilon_of({1, 2}, 1e-5), InputError);
  CHECK_THROWS_AS((void)noise_for(0, 1e-5, 1, 1), InputError);
}
