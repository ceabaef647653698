// How much differential privacy a run has spent, counted by Rényi divergences (RDP; Mironov 2017,
// arXiv 1702.07476): the curve of a mechanism holds its divergence at some orders, and the curves
// of all that was released add up.
//
//   RdpCurve spent = sampled_gaussian_rdp(/*q=*/0.02, /*z=*/1);   // one release
//   for (double& x : spent) x *= 500;
//   epsilon_of(spent, /*delta=*/1e-5).epsilon                     // 3.1458
//
// A mechanism is private for one unit (a record, a group of them, a learner): its output hardly
// tells whether that unit's data were added or removed or, where a function says so, replaced.
// Curves of the two kinds must not be added up. The functions throw InputError for numbers out of
// range, NaN among them, and return infinity where nothing is protected.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

namespace heddle {

// The orders: 2 to 64, then fewer up to 1024; integers, at which sampling has an exact formula.
std::span<const int64_t> rdp_orders();
using RdpCurve = std::vector<double>;  // by order

// A sum plus Gaussian noise; z: the noise's standard deviation over the largest
// change, in L2, that one unit makes.
RdpCurve gaussian_rdp(double z);
// The same when each unit takes part with probability q, independently of the others, and one is
// added or removed (Mironov, Talwar and Zhang 2019, arXiv 1908.10530; recalled).
RdpCurve sampled_gaussian_rdp(double q, double z);
// The signs of sums of votes plus Gaussian noise, independent for each coordinate: 1, -1, or 0
// where the noisy sum is not beyond `threshold` in magnitude. A unit votes +1 or -1 at up to k
// coordinates; it is replaced, or added or removed. Not above gaussian_rdp(sigma / (2 sqrt(k))), or
// (sigma / sqrt(k)). This project's own: the largest divergence of one coordinate, over all sums of
// votes, is found numerically, to about 1e-9, and coordinates add up.
RdpCurve ternary_rdp(double sigma, double threshold, int64_t k, bool replaced);

struct PrivacySpent {
  double epsilon;
  int64_t order;  // that gave it; the first or last one may not be the best that exists
};
// Returns the smallest epsilon for which these orders prove that all that the curve describes is
// (epsilon, delta)-private, by the conversion of Balle et al. 2020, arXiv 1905.09982 (recalled).
PrivacySpent epsilon_of(const RdpCurve& curve, double delta);
// Returns a z for which `times` releases with sampling rate q (1: Gaussian, without sampling) stay
// within epsilon, relatively at most 1e-6 more than needed. Throws InputError if none up to 1e6
// does.
double noise_for(double epsilon, double delta, double q, int64_t times);

// A sum over units, each of which adds a vector, plus Gaussian noise on every element.
struct NoisySum {
  double sigma = 0;        // standard deviation of the noise
  double sensitivity = 1;  // L2; the most by which one unit changes the sum
  int64_t elements = 0;    // that a unit may change
  double rate = 1;         // probability with which a unit takes part in a query
  bool replaced = false;   // a unit is replaced; false: it is added or removed
  double delta = 1e-5;
  bool secret = true;  // false: the noise can be repeated, so that nothing is protected
  double noise_multiplier() const { return sigma / sensitivity; }
};

// Counts the queries of one mechanism, with what was spent before.
//
//   RdpAccountant accountant(mechanism, sampled_gaussian_rdp(mechanism.rate, z));
//   accountant.count();   // before the noisy sum is used
//
// Not thread-safe.
class RdpAccountant {
 public:
  struct State {
    int64_t queries = 0;
    RdpCurve spent = RdpCurve(rdp_orders().size(), 0);
  };

  // `query`: the curve of one query.
  RdpAccountant(const NoisySum& mechanism, RdpCurve query)
      : mechanism_(mechanism), query_(std::move(query)) {}

  // Counts a query, then calls the observer: when count() returns, the query may be answered.
  // Throws what the observer throws, and then the answer must not be used.
  void count();
  void on_count(std::function<void(const State&)> observer) { on_count_ = std::move(observer); }
  // Counts what other processes have spent: raises the numbers to those of `other`, where they are
  // smaller. Throws InputError for a curve that is not one.
  void raise_to(const State& other);

  const NoisySum& mechanism() const { return mechanism_; }
  const State& state() const { return state_; }
  PrivacySpent spent() const { return epsilon_of(state_.spent, mechanism_.delta); }
  // Returns what would be spent after that many queries more.
  PrivacySpent spent_after(int64_t queries) const;

 private:
  NoisySum mechanism_;
  RdpCurve query_;
  State state_;
  std::function<void(const State&)> on_count_;
};

}  // namespace heddle
