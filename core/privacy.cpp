#include "core/privacy.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <utility>

#include "core/error.h"

namespace heddle {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kMostNoise = 1e6;  // noise_for's largest z
constexpr int kGrid = 1000;         // intervals of a range of sums of votes

double log_sum(double a, double b) {
  if (std::isnan(b)) return b;  // std::max() would drop it
  const double most = std::max(a, b);
  return std::isinf(most) ? most : most + std::log1p(std::exp(std::min(a, b) - most));
}

// Returns log(e^a - e^b) for a >= b.
double log_difference(double a, double b) {
  return a <= b ? -kInfinity : a + std::log1p(-std::exp(b - a));
}

// Returns the logarithm of the probability that a standard normal number exceeds x.
double log_tail(double x) {
  if (x < 25) return std::log(std::erfc(x / std::numbers::sqrt2) / 2);
  const double y = 1 / (x * x);  // an asymptotic series, below 1e-9 off
  return -x * x / 2 - std::log(x * std::sqrt(2 * std::numbers::pi)) +
         std::log1p(-y * (1 - 3 * y * (1 - 5 * y)));
}

template <class Divergence>
RdpCurve curve(const Divergence& at) {
  RdpCurve out;
  out.reserve(rdp_orders().size());
  for (const int64_t order : rdp_orders()) out.push_back(at(static_cast<double>(order)));
  return out;
}

// Log-probabilities of the outcomes 1, -1 and 0 where the votes sum to v; everything in units of
// sigma.
struct Outcomes {
  double up, down, none;
};
Outcomes outcomes(double v, double threshold) {
  const double low = -threshold - v, high = threshold - v;
  Outcomes out{log_tail(high), log_tail(-low), -kInfinity};
  if (low >= 0)
    out.none = log_difference(log_tail(low), out.up);
  else if (high <= 0)
    out.none = log_difference(log_tail(-high), out.down);
  else
    out.none = std::log1p(-std::min(1.0, std::exp(log_sum(out.up, out.down))));
  return out;
}

double divergence(double order, const Outcomes& p, const Outcomes& q) {
  double sum = -kInfinity;
  for (const auto part : {&Outcomes::up, &Outcomes::down, &Outcomes::none})
    if (p.*part != -kInfinity) sum = log_sum(sum, order * p.*part - (order - 1) * q.*part);
  return std::isnan(sum) ? kInfinity : std::max(0.0, sum / (order - 1));
}

// Returns the largest value of a function between two points, if it has one maximum there.
template <class Function>
double maximum(const Function& at, double low, double high) {
  constexpr double kGolden = 0.6180339887498949;
  double most = 0;
  for (int i = 0; i < 40; ++i) {
    const double a = high - kGolden * (high - low), b = low + kGolden * (high - low);
    const double at_a = at(a), at_b = at(b);
    most = std::max({most, at_a, at_b});
    (at_a > at_b ? high : low) = at_a > at_b ? b : a;
  }
  return most;
}

// Returns the largest divergence, over all sums of votes, between a sum and one `change` larger. A
// sum one `change` smaller gives the same, with all signs changed. The divergence has a maximum
// near each threshold; at a high order it is largest for sums up to order * change beyond it, where
// an outcome is improbable. Each maximum on the grids is refined: two may be almost equal.
RdpCurve most_ternary(double change, double any_threshold) {
  return curve([=](double order) {
    // With a threshold farther away the maximum is the same.
    const double threshold = std::min(any_threshold, 40 + order * change);
    const auto at = [&](double v) {
      return divergence(order, outcomes(v, threshold), outcomes(v + change, threshold));
    };
    double most = 0;
    for (const double centre : {-threshold, threshold})
      for (const double beyond : {0.0, order * change}) {
        const double begin = centre - change - 6, step = (change + 12 + beyond) / kGrid;
        double before = -1, here = at(begin);
        for (int i = 1; i <= kGrid + 1; ++i) {
          const double after = i > kGrid ? -1 : at(begin + i * step);
          if (here >= before && here >= after && here > 0.9 * most)
            most = std::max({most, here, maximum(at, begin + (i - 2) * step, begin + i * step)});
          before = std::exchange(here, after);
        }
      }
    return most + 1e-15;  // rounding of divergence()
  });
}

}  // namespace

std::span<const int64_t> rdp_orders() {
  static const std::vector<int64_t> kOrders = [] {
    std::vector<int64_t> out;
    for (int64_t order = 2; order <= 64; ++order) out.push_back(order);
    for (const int64_t order : {72, 80, 96, 112, 128, 160, 192, 256, 320, 384, 512, 768, 1024})
      out.push_back(order);
    return out;
  }();
  return kOrders;
}

RdpCurve gaussian_rdp(double z) {
  check(z >= 0, "privacy: expected noise of at least 0, found ", z);
  return curve([z](double order) { return z > 0 ? order / (2 * z * z) : kInfinity; });
}

RdpCurve sampled_gaussian_rdp(double q, double z) {
  check(q >= 0 && q <= 1, "privacy: expected a sampling rate from 0 to 1, found ", q);
  if (q == 1) return gaussian_rdp(z);
  check(z >= 0, "privacy: expected noise of at least 0, found ", z);
  return curve([=](double order) {
    if (q == 0) return 0.0;
    if (z == 0) return kInfinity;
    // The mean of the ratios less one: a sum of positive terms, in logarithms.
    double sum = -kInfinity;
    for (double i = 2; i <= order; ++i) {
      const double power = (i * i - i) / 2 / z / z;
      sum = log_sum(sum, std::lgamma(order + 1) - std::lgamma(i + 1) - std::lgamma(order - i + 1) +
                             (order - i) * std::log1p(-q) + i * std::log(q) +
                             (power > 40 ? power : std::log(std::expm1(power))));
    }
    if (sum <= 40) sum = std::log1p(std::exp(sum));
    return std::isnan(sum) ? kInfinity : sum / (order - 1);
  });
}

RdpCurve ternary_rdp(double sigma, double threshold, int64_t k, bool replaced) {
  check(sigma >= 0 && threshold >= 0 && k >= 0,
        "privacy: expected noise, a threshold and votes of at least 0, found ", sigma, ", ",
        threshold, " and ", k);
  const auto votes = static_cast<double>(k);
  RdpCurve out = gaussian_rdp(k > 0 ? sigma / (std::sqrt(votes) * (replaced ? 2 : 1)) : kInfinity);
  const bool beyond_range =
      std::isinf(1 / sigma) || (std::isinf(threshold / sigma) && !std::isinf(threshold));
  if (k == 0 || beyond_range || std::isinf(threshold)) return out;
  const RdpCurve one = most_ternary(1 / sigma, threshold / sigma);
  const RdpCurve two = replaced ? most_ternary(2 / sigma, threshold / sigma) : RdpCurve(one.size());
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = std::min(out[i], votes * std::max((replaced ? 2 : 1) * one[i], two[i]));
  return out;
}

PrivacySpent epsilon_of(const RdpCurve& curve, double delta) {
  const auto orders = rdp_orders();
  check(delta > 0 && delta < 1, "privacy: expected a delta above 0 and below 1, found ", delta);
  check(curve.size() == orders.size(), "privacy: expected ", orders.size(), " divergences, found ",
        curve.size());
  for (const double x : curve)
    check(x >= 0, "privacy: expected divergences of at least 0, found ", x);
  PrivacySpent best{kInfinity, orders.front()};
  for (size_t i = 0; i < curve.size(); ++i) {
    const auto a = static_cast<double>(orders[i]);  // alpha
    const auto epsilon = curve[i] + std::log1p(-1 / a) - (std::log(delta) + std::log(a)) / (a - 1);
    if (epsilon < best.epsilon) best = {std::max(0.0, epsilon), orders[i]};
  }
  return best;
}

double noise_for(double epsilon, double delta, double q, int64_t times) {
  check(epsilon > 0, "privacy: expected an epsilon above 0, found ", epsilon);
  check(times >= 0, "privacy: expected at least 0 releases, found ", times);
  const auto fits = [&](double z) {
    RdpCurve curve = sampled_gaussian_rdp(q, z);
    for (double& x : curve) x = times == 0 ? 0 : x * static_cast<double>(times);
    return epsilon_of(curve, delta).epsilon <= epsilon;
  };
  double low = 0, high = 1;
  while (!fits(high)) {
    check(high < kMostNoise, "privacy: no noise up to ", kMostNoise, " stays within epsilon ",
          epsilon, " and delta ", delta, " in ", times, " releases");
    low = std::exchange(high, std::min(2 * high, kMostNoise));
  }
  for (int i = 0; i < 1100 && high - low > 1e-7 * high; ++i) {
    const double middle = (low + high) / 2;
    (fits(middle) ? high : low) = middle;
  }
  return high;
}

void RdpAccountant::count() {
  ++state_.queries;
  for (size_t i = 0; i < query_.size(); ++i) state_.spent[i] += query_[i];
  if (on_count_) on_count_(state_);
}

void RdpAccountant::raise_to(const State& other) {
  const bool numbers =
      std::ranges::all_of(other.spent, [](double x) { return x >= 0; });  // NaN is not
  check(other.spent.size() == state_.spent.size() && numbers && other.queries >= 0,
        "privacy: expected ", state_.spent.size(), " divergences of at least 0");
  state_.queries = std::max(state_.queries, other.queries);
  for (size_t i = 0; i < other.spent.size(); ++i)
    state_.spent[i] = std::max(state_.spent[i], other.spent[i]);
}

PrivacySpent RdpAccountant::spent_after(int64_t queries) const {
  RdpCurve curve = state_.spent;
  for (size_t i = 0; i < curve.size(); ++i)
    if (queries > 0) curve[i] += static_cast<double>(queries) * query_[i];
  return epsilon_of(curve, mechanism_.delta);
}

}  // namespace heddle
