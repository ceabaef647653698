// LGC's autoencoder: lengths, the tape against plain loops, gradients, what it learns, and a step
// of training that fails.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "compress/lgc_autoencoder.h"
#include "core/random.h"
#include "tests/ranks.h"

using namespace heddle;

namespace {

using Kind = GradientAutoencoder::Kind;

// Draws from the normal distribution, magnitudes above `least` only (rejection, Robert 1995).
class Tail {
 public:
  Tail(double least, const Philox& rng) : least_(least), rng_(rng) {}
  double next() {
    for (;;) {
      const double x = std::sqrt(least_ * least_ - 2 * std::log(1 - uniform()));
      if (uniform() * x <= least_) return uniform() < 0.5 ? -x : x;
    }
  }

 private:
  double uniform() { return rng_.uniform(at_++); }
  double least_;
  Philox rng_;
  uint64_t at_ = 0;
};

// Returns the values (P, k) that four ranks with independent normal gradients have at the leader's
// largest 0.1 %, in units of the root mean square of the leader's own values.
Tensor selected_values(int64_t k, uint64_t step, bool by_value) {
  const int64_t ranks = 4;
  Tail tail(3.2905, Philox(7, step));
  const Philox others(8, step);
  std::vector<float> values(static_cast<size_t>(ranks * k));
  const auto own = values.begin() + k * static_cast<int64_t>(step % 4);
  for (int64_t i = 0; i < ranks * k; ++i)
    values[static_cast<size_t>(i)] = others.normal(static_cast<uint64_t>(i));
  double squares = 0;
  std::generate_n(own, k, [&] { return static_cast<float>(tail.next()); });
  if (by_value) std::sort(own, own + k);
  std::for_each(own, own + k, [&](float x) { squares += double{x} * x; });
  const auto rho = static_cast<float>(std::sqrt(squares / static_cast<double>(k)));
  for (float& x : values) x /= rho;
  return Tensor::from(values, {ranks, k});
}

// Trains for some steps on make(step), and returns the mean error and gap of the last fifty.
GradientAutoencoder::Fit trained(GradientAutoencoder& autoencoder, int steps, double lr,
                                 const std::function<Tensor(uint64_t step)>& make) {
  GradientAutoencoder::Fit mean{0, 0};
  for (int step = 0; step < steps; ++step) {
    const auto fit = autoencoder.train(make(static_cast<uint64_t>(step)), lr);
    if (step < steps - 50) continue;
    mean.error += fit.error / 50;
    mean.gap += fit.gap / 50;
  }
  return mean;
}

}  // namespace

TEST_CASE("lgc: lengths of codes") {
  const std::vector<std::pair<int64_t, int64_t>> codes = {
      {1, 4}, {15, 4}, {16, 4}, {31, 4}, {32, 8}, {100, 24}, {268, 64}, {1000, 248}};
  for (const auto& [k, size] : codes) {
    CHECK(GradientAutoencoder::code_size(k) == size);
    CHECK(GradientAutoencoder::padded(k) == 4 * size + 15);
    CHECK(GradientAutoencoder::padded(k) >= k);
  }
  Context context({.threads = 1});
  for (const Kind kind : {Kind::linear, Kind::paper}) {
    const GradientAutoencoder autoencoder(kind, 1);
    CHECK(std::ssize(autoencoder.weights().to_vector()) >= (kind == Kind::paper ? 216677 : 248));
    for (const auto& [k, size] : codes) {
      const Tensor code = autoencoder.encode(Tensor::from(std::vector<float>(to_size(k), 1)));
      CHECK(code.size() == size);
      CHECK(autoencoder.decode(code).size() == GradientAutoencoder::padded(k));
    }
  }
}

namespace {

// The loss that training minimises, the error and the gap, computed by the plain loops.
struct ByLoops {
  double loss = 0, error = 0, gap = 0;
  ByLoops(const GradientAutoencoder& a, const Tensor& x) {
    const int64_t ranks = x.shape()[0], k = x.shape()[1], n = GradientAutoencoder::padded(k);
    std::vector<double> mean(to_size(n)), code(to_size(GradientAutoencoder::code_size(k))),
        sum(to_size(n));
    for (int64_t r = 0; r < ranks; ++r) {
      const Tensor row = x.slice(r, r + 1).reshape({k}), c = a.encode(row), y = a.decode(c);
      for (int64_t i = 0; i < n; ++i) {
        const double value = i < k ? row.data<float>()[i] : 0, decoded = y.data<float>()[i];
        loss += (decoded - value) * (decoded - value) / static_cast<double>(n * ranks);
        mean[to_size(i)] += value / static_cast<double>(ranks);
        sum[to_size(i)] += decoded;
      }
      for (int64_t i = 0; i < c.size(); ++i)
        code[to_size(i)] += double{c.data<float>()[i]} / static_cast<double>(ranks);
    }
    const Tensor y = a.decode(Tensor::from({code.begin(), code.end()}));
    double wrong = 0, all = 0, gaps = 0, delivered = 0;
    for (int64_t i = 0; i < n; ++i) {
      const double decoded = y.data<float>()[i], whole = static_cast<double>(ranks) * decoded;
      wrong += (decoded - mean[to_size(i)]) * (decoded - mean[to_size(i)]);
      all += mean[to_size(i)] * mean[to_size(i)];
      gaps += (whole - sum[to_size(i)]) * (whole - sum[to_size(i)]);
      delivered += whole * whole;
    }
    loss += wrong / static_cast<double>(n);
    error = wrong / all;
    gap = std::sqrt(gaps / delivered);
  }
};

}  // namespace

TEST_CASE("lgc: the tape computes what the loops compute, and its gradient") {
  Context context({.threads = 1});
  std::vector<float> values(3 * 47);
  for (size_t i = 0; i < values.size(); ++i) values[i] = Philox(3, 4).normal(i);
  const Tensor x = Tensor::from(values, {3, 47});
  for (const Kind kind : {Kind::linear, Kind::paper}) {
    CAPTURE(static_cast<int>(kind));
    GradientAutoencoder a(kind, 5);
    const ByLoops before(a, x);
    const Tensor start = a.weights().clone();
    const GradientAutoencoder::Fit fit = a.train(x, 1e-3);
    CHECK(fit.error == doctest::Approx(before.error).epsilon(1e-5));
    CHECK(fit.gap == doctest::Approx(before.gap).epsilon(1e-4));
    CHECK((fit.gap > 1e-3) == (kind == Kind::paper));
    CHECK(ByLoops(a, x).loss < before.loss);
    // Adam's first moments are a tenth of the first gradient. It is checked along a direction: one
    // weight of many changes the loss by less than its last bits.
    const Tensor moments = a.named_state()[1].second;
    REQUIRE(a.named_state()[1].first == "autoencoder.first_moments");
    for (uint64_t direction = 0; direction < 4; ++direction) {
      std::vector<float> along(to_size(start.size()));
      double slope = 0, squares = 0;
      for (size_t i = 0; i < along.size(); ++i) {
        // Every component has the gradient's sign, so that the slope is far from zero.
        along[i] = moments.data<float>()[i] == 0
                       ? 0
                       : std::copysign(Philox(6, direction).uniform(i), moments.data<float>()[i]);
        slope += 10 * double{moments.data<float>()[i]} * along[i];
        squares += double{along[i]} * along[i];
      }
      const double h = 3e-3 / std::sqrt(squares);
      const auto loss_at = [&](double t) {
        for (size_t i = 0; i < along.size(); ++i)
          a.weights().data<float>()[i] = start.data<float>()[i] + static_cast<float>(t * along[i]);
        return ByLoops(a, x).loss;
      };
      CHECK((loss_at(h) - loss_at(-h)) / (2 * h) == doctest::Approx(slope).epsilon(3e-3));
    }
  }
}

TEST_CASE("lgc: a curve is learned, noise is not") {
  Context context({.threads = 1});
  const auto curve = [](float noise) {
    return [noise](uint64_t step) {
      std::vector<float> values(4 * 200);
      for (size_t i = 0; i < values.size(); ++i)
        values[i] = (noise < 1 ? static_cast<float>(i % 200) / 100 - 1 : 0) +
                    noise * Philox(9, step).normal(i);
      return Tensor::from(values, {4, 200});
    };
  };
  for (const Kind kind : {Kind::linear, Kind::paper}) {
    CAPTURE(static_cast<int>(kind));
    const double lr = kind == Kind::linear ? 0.01 : 0.001;
    GradientAutoencoder smooth(kind, 1), noisy(kind, 1);
    CHECK(trained(smooth, 300, lr, curve(0.1f)).error < 0.1);
    CHECK(trained(noisy, 300, lr, curve(1)).error > 0.5);
    CHECK(smooth.steps() == 300);
  }
}

TEST_CASE("lgc: what the linear code loses of independent gradients, by order") {
  Context context({.threads = 1});
  for (const bool by_value : {true, false}) {
    GradientAutoencoder a(Kind::linear, 1);
    const auto fit =
        trained(a, 300, 0.01, [&](uint64_t step) { return selected_values(1000, step, by_value); });
    MESSAGE("error of the linear code, by ", by_value ? "value: " : "index: ", fit.error);
    if (by_value)  // the best linear code of windows of 16: 0.16
      CHECK(fit.error <= 0.25);
    else
      CHECK(fit.error >= 0.7);
    CHECK(fit.gap < 1e-5);
  }
}

TEST_CASE("lgc: a step of training that diverges is taken back, and Adam begins anew") {
  Context context({.threads = 1});
  const Tensor x = selected_values(100, 0, true);
  for (const Kind kind : {Kind::linear, Kind::paper}) {
    CAPTURE(static_cast<int>(kind));
    GradientAutoencoder a(kind, 1);
    CHECK(a.steps() == 0);
    a.train(x, 1e-3);
    CHECK(a.steps() == 1);
    const auto good = a.weights().to_vector();
    a.train(x, 1e4);  // Adam moves every weight by about that much
    CHECK(a.weights().to_vector() == good);
    CHECK(a.steps() == 0);
    for (const auto& [name, state] : a.named_state())
      if (name != "autoencoder.weights")
        for (const float v : state.to_vector()) CHECK(v == 0);
    a.train(x, 1e-3);
    CHECK(a.steps() == 1);
    CHECK(a.weights().to_vector() != good);
  }
}
