// The quality meter: its figures against those of a plain calculation, at its extremes, and a step
// that is not measured.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "compress/plan/quality_meter.h"
#include "core/kernels.h"
#include "tests/compress_helpers.h"

using namespace heddle;

namespace {

using Looks = std::vector<std::vector<LayerQuality>>;  // by step

// Returns the samples of rank 0; every rank must have the same.
Looks look(int p, const std::string& spec, int steps,
           const std::function<void(CompressModel&, int rank, int64_t step)>& fill,
           std::vector<RankRun>* runs = nullptr) {
  std::vector<Looks> looks(static_cast<size_t>(p));
  if (runs != nullptr) runs->assign(static_cast<size_t>(p), {});
  expect_none(run_ranks(p, [&](Communicator& comm) {
    const auto rank = static_cast<size_t>(comm.rank());
    CompressModel model;
    const auto reducer = make_reducer(parse_compress(spec), {.seed = 5}, model.store);
    QualityMeter meter(dynamic_cast<CompressedReducer&>(*reducer));
    Ledger ledger;
    for (int64_t step = 0; step < steps; ++step) {
      fill(model, comm.rank(), step);
      if (runs != nullptr) (*runs)[rank].given.push_back(flat_values(model.store.grads()));
      const GradientBucket bucket = model.bucket(step);
      meter.before(bucket, comm, ledger);
      const bool accepted = reducer->reduce(bucket, comm, ledger);
      meter.after(comm, ledger, accepted);
      looks[rank].push_back(meter.take());
      if (runs == nullptr) continue;
      (*runs)[rank].sums.push_back(flat_values(model.store.grads()));
      (*runs)[rank].states.push_back(state_of(*reducer));
    }
  }));
  for (size_t r = 1; r < looks.size(); ++r)
    for (size_t s = 0; s < looks[0].size(); ++s) {
      REQUIRE(looks[r][s].size() == looks[0][s].size());
      for (size_t l = 0; l < looks[0][s].size(); ++l) {
        CHECK(looks[r][s][l].contraction == looks[0][s][l].contraction);
        CHECK(looks[r][s][l].correlation == looks[0][s][l].correlation);
        CHECK(looks[r][s][l].residual_norm == looks[0][s][l].residual_norm);
      }
    }
  return looks[0];
}

double square(const Values& x) {
  double sum = 0;
  for (const float v : x) sum += static_cast<double>(v) * v;
  return sum;
}

// Returns the index of the largest |x| of each chunk, or as many indices of the largest anywhere.
std::vector<size_t> largest_of(const Values& x, size_t chunk, bool anywhere) {
  const auto larger = [&](size_t a, size_t b) { return std::abs(x[a]) > std::abs(x[b]); };
  std::vector<size_t> order(x.size()), out;
  std::iota(order.begin(), order.end(), size_t{0});
  const size_t k = (x.size() + chunk - 1) / chunk;
  if (anywhere) {
    std::ranges::sort(order, larger);
    order.resize(k);
    return order;
  }
  for (size_t c = 0; c < x.size(); c += chunk) {
    const auto end = order.begin() + static_cast<std::ptrdiff_t>(std::min(c + chunk, x.size()));
    out.push_back(*std::min_element(order.begin() + static_cast<std::ptrdiff_t>(c), end, larger));
  }
  return out;
}

}  // namespace

TEST_CASE("quality: figures equal a plain calculation, residuals included") {
  constexpr int kRanks = 3, kSteps = 4;
  for (const char* spec : {"scalecom:rate=50,beta=0.3", "scalecom:rate=50,select=exact",
                           "topk:density=0.02", "powersgd:rank=2", "qsgd:bits=4,bucket=64"}) {
    CAPTURE(spec);
    std::vector<RankRun> runs;
    const Looks looks = look(
        kRanks, spec, kSteps,
        [](CompressModel& m, int rank, int64_t step) { m.fill_random(rank, step); }, &runs);
    const double beta = std::string(spec).find("beta") == std::string::npos ? 1 : 0.3;
    for (size_t step = 0; step < kSteps; ++step) {
      REQUIRE(looks[step].size() == 2);  // of five parameters
      for (const LayerQuality& layer : looks[step]) {
        CAPTURE(layer.name);
        const Values sent = part_of(runs[0].sums[step], layer.name);
        Values gradient(sent.size()), all(sent.size());
        double own = 0, own_gradient = 0, residual = 0;
        for (const RankRun& run : runs) {
          Values x = part_of(run.given[step], layer.name);
          own_gradient += square(x);
          for (size_t i = 0; i < x.size(); ++i) gradient[i] += x[i];
          const std::string key = "residual." + layer.name;
          if (step > 0 && run.states[step - 1].contains(key))
            for (size_t i = 0; i < x.size(); ++i) x[i] += run.states[step - 1].at(key)[i];
          own += square(x);
          for (size_t i = 0; i < x.size(); ++i) all[i] += x[i];
          if (run.states[step].contains(key)) residual += square(run.states[step].at(key));
        }
        Values lost = all;
        double product = 0;
        for (size_t i = 0; i < all.size(); ++i) {
          lost[i] -= sent[i];
          product += static_cast<double>(sent[i]) * gradient[i];
        }
        CHECK(layer.contraction == doctest::Approx(square(lost) / square(all)).epsilon(1e-5));
        CHECK(layer.cosine ==
              doctest::Approx(product / std::sqrt(square(sent) * square(gradient))).epsilon(1e-5));
        CHECK(layer.residual_norm ==
              doctest::Approx(std::sqrt(residual / kRanks) / beta).epsilon(1e-5));
        CHECK(layer.gradient_norm ==
              doctest::Approx(std::sqrt(own_gradient / kRanks)).epsilon(1e-5));
        CHECK(layer.correlation ==
              doctest::Approx((square(all) - own) / ((kRanks - 1) * own)).epsilon(1e-4));
        const bool shared = std::string(spec).find("scalecom") == 0;
        CHECK(std::isnan(layer.mismatch) == !shared);
        if (!shared) continue;
        const std::vector<size_t> right =
            largest_of(all, 50, std::string(spec).find("exact") != std::string::npos);
        double missed = 0, kept = 0;
        for (const size_t i : right) {
          missed += sent[i] == 0 ? 1.0 / static_cast<double>(right.size()) : 0;
          kept += static_cast<double>(all[i]) * all[i];
        }
        CHECK(layer.mismatch == doctest::Approx(missed));
        CHECK(layer.mismatch > 0);
        CHECK(layer.mismatch < 1);
        const double rest = 1 - kept / square(all);
        CHECK(layer.bound == doctest::Approx(missed + (1 - missed) * rest).epsilon(1e-5));
      }
    }
  }
}

TEST_CASE("quality: learners that are equal, that cancel, and that are uncorrelated") {
  const auto equal = [](CompressModel& m, int, int64_t step) { m.fill_random(0, step); };
  const Looks equals = look(4, "scalecom:rate=50", 1, equal);
  for (const LayerQuality& layer : equals[0]) {
    CHECK(layer.correlation == doctest::Approx(1));
    CHECK(layer.mismatch == 0);
    CHECK(layer.contraction == doctest::Approx(layer.bound));
    CHECK(layer.contraction < 1);
  }
  const auto opposed = [](CompressModel& m, int rank, int64_t step) {
    m.fill_random(0, step);
    if (rank == 1) scale(m.store.grads(), -1);
  };
  const Looks opposites = look(2, "scalecom:rate=50", 1, opposed);
  for (const LayerQuality& layer : opposites[0]) CHECK(layer.correlation == doctest::Approx(-1));
  const auto strangers = [](CompressModel& m, int rank, int64_t step) {
    const Philox own(3, static_cast<uint64_t>(rank * 1000 + step));
    m.fill([&](uint64_t i) { return own.normal(i); });
  };
  const Looks others = look(8, "scalecom:rate=50", 1, strangers);
  for (const LayerQuality& layer : others[0]) {
    CHECK(std::abs(layer.correlation) < 0.05);
    CHECK(layer.mismatch > 0.5);
    CHECK(layer.bound > layer.mismatch);
  }
}

TEST_CASE("quality: a step with NaN on one rank is not measured") {
  const auto spoiled = [](CompressModel& m, int rank, int64_t step) {
    m.fill_random(rank, step);
    if (rank == 1 && step == 1) m.store.parameters()[2].grad.data<float>()[0] = NAN;
  };
  const Looks looks = look(2, "scalecom:rate=50", 3, spoiled);
  CHECK(looks[0].size() == 2);
  CHECK(looks[1].empty());
  REQUIRE(looks[2].size() == 2);
  CHECK(std::isfinite(looks[2][0].contraction));
}
