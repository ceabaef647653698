// LGC: its autoencoder (lengths, gradients, loops against the tape, what it learns), conservation
// in both stages, the gate, and the same bits on all ranks.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "compress/codecs/bits.h"
#include "compress/lgc_autoencoder.h"
#include "core/kernels.h"
#include "core/random.h"
#include "tests/compress_helpers.h"

using namespace heddle;

namespace {

using Kind = GradientAutoencoder::Kind;

// Returns normal numbers whose magnitude is above `least` (Robert 1995: by rejection).
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
// largest 0.1 %, in units of their root mean square.
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

// The loss that the autoencoder trains on, its error and its gap, by its plain loops.
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
    // Adam's first moments are a tenth of the first gradient. Along a direction, because single
    // weights of many change the loss by less than its last bits.
    const Tensor moments = a.named_state()[1].second;
    REQUIRE(a.named_state()[1].first == "autoencoder.first_moments");
    for (uint64_t direction = 0; direction < 4; ++direction) {
      std::vector<float> along(to_size(start.size()));
      double slope = 0, squares = 0;
      for (size_t i = 0; i < along.size(); ++i) {
        // Half of them along the gradient itself, so that the slope is far from zero.
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
    CHECK(smooth.trained());
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

namespace {

// Returns the sum over the ranks and their layers' norm of what a step lost: residuals before plus
// gradients, minus residuals after, minus the sums; relative to the sums.
double lost(const std::vector<RankRun>& runs, size_t step) {
  double wrong = 0, all = 0;
  for (const std::string layer : {"conv2.weight", "fc.weight"}) {
    const Values sum = part_of(runs[0].sums[step], layer);
    std::vector<double> rest(sum.size());
    for (const RankRun& run : runs) {
      const Values given = part_of(run.given[step], layer);
      const Values& after = run.states[step].at("residual." + layer);
      for (size_t i = 0; i < rest.size(); ++i) {
        rest[i] += double{given[i]} - after[i];
        if (step > 0) rest[i] += run.states[step - 1].at("residual." + layer)[i];
      }
    }
    for (size_t i = 0; i < rest.size(); ++i) {
      wrong += (rest[i] - sum[i]) * (rest[i] - sum[i]);
      all += double{sum[i]} * sum[i];
    }
  }
  return std::sqrt(wrong / all);
}

}  // namespace

TEST_CASE("lgc: nothing is lost, but what a nonlinear decoder makes of a mean") {
  for (const int ranks : {1, 3})
    for (const std::string order : {"value", "index"})
      for (const std::string codec : {"linear", "paper"}) {
        CAPTURE(ranks);
        const std::string spec =
            concat("lgc:density=0.02,train=4,gate=10,codec=", codec, ",order=", order);
        CAPTURE(spec);
        const auto runs = reduce_ranks(ranks, spec, {.steps = 8});
        for (size_t step = 0; step < 8; ++step) {
          CAPTURE(step);
          const bool coded = step >= 4;  // decided at the end of step 3
          CHECK((runs[0].states[step].at("autoencoder.progress")[1] > 0) == (step >= 3));
          if (coded && codec == "paper" && ranks > 1)
            CHECK(lost(runs, step) > 1e-5);
          else
            CHECK(lost(runs, step) < 5e-6);
          for (const RankRun& run : runs) CHECK(run.sums[step] == runs[0].sums[step]);
        }
      }
}

TEST_CASE("lgc: elements of stage 2 are the sums at the leader's largest") {
  const auto runs = reduce_ranks(3, "lgc:density=0.02,train=5", {.steps = 3});
  for (size_t step = 0; step < 3; ++step) {
    const Values led = part_of(runs[step].given[step], "fc.weight");
    std::vector<float> x = led;
    if (step > 0)
      for (size_t i = 0; i < x.size(); ++i)
        x[i] += runs[step].states[step - 1].at("residual.fc.weight")[i];
    const Indices largest = select_top(x, 35);
    const Values sum = part_of(runs[0].sums[step], "fc.weight");
    size_t sent = 0;
    for (size_t i = 0; i < sum.size(); ++i) sent += sum[i] != 0 ? 1 : 0;
    CHECK(sent == 35);
    for (const uint32_t i : largest) {
      double expected = 0;
      for (const RankRun& run : runs) {
        expected += part_of(run.given[step], "fc.weight")[i];
        if (step > 0) expected += run.states[step - 1].at("residual.fc.weight")[i];
        CHECK(run.states[step].at("residual.fc.weight")[i] == 0);
      }
      CHECK(sum[i] == doctest::Approx(expected).epsilon(1e-5));
    }
  }
}

TEST_CASE("lgc: the leader's order of values is easier to code than that of their places") {
  const auto error = [](const std::string& order) {
    const auto runs = reduce_ranks(4, "lgc:density=0.02,train=1000,order=" + order, {.steps = 150});
    return runs[0].states[149].at("autoencoder.progress")[2];
  };
  const float by_value = error("value"), by_index = error("index");
  CHECK(by_value < 0.5);
  CHECK(by_index > 0.6);
}

TEST_CASE("lgc: an invalid message of the leader is refused, and the residuals are unchanged") {
  // The message has rho and 35 places of eleven bits, which lie in fc.weight below 1750.
  std::vector<uint32_t> places(35);
  std::iota(places.begin(), places.end(), 1u);
  const auto result = [&](float rho) {
    std::string complaint;
    expect_none(run_ranks(2, [&](Communicator& comm) {
      if (comm.rank() == 1) {
        const Tensor sent = Tensor::zeros({4 + packed_bytes(35, 11)}, DType::u8);
        std::memcpy(sent.raw(), &rho, 4);
        pack_bits(places.data(), 35, 11, sent.data<uint8_t>() + 4);
        comm.broadcast(sent, 1);
        if (rho >= 0 && places[7] < 1750 && places[6] != places[7])
          comm.all_gather(Tensor::zeros({1 + 4 * 35}, DType::u8),
                          Tensor::empty_on(Device{}, {2, 1 + 4 * 35}, DType::u8));
        return;
      }
      CompressModel model;
      const auto reducer = make_reducer(parse_compress("lgc:density=0.02"), {}, model.store);
      const auto before = state_of(*reducer);
      model.fill_random(0, 0);
      Ledger ledger;
      try {
        complaint = reducer->reduce(model.bucket(1, 1, 2), comm, ledger) ? "accepted" : "rejected";
      } catch (const Error& error) {
        complaint = error.what();
        CHECK(state_of(*reducer) == before);
      }
    }));
    return complaint;
  };
  CHECK(result(1) == "accepted");
  CHECK(result(-1) == "lgc: expected a root mean square, found -1");
  CHECK(result(std::numeric_limits<float>::quiet_NaN()).starts_with("lgc: expected a root"));
  places[6] = places[7];
  CHECK(result(1) == "lgc: the leader selects an element twice");
  places[6] = 7;
  places[7] = 1750;
  CHECK(result(1) == "lgc: the leader selects 34 elements of fc.weight, expected 35");
}

TEST_CASE("lgc: the gate stays closed for an error above it") {
  std::vector<std::map<std::string, double>> figures;
  std::mutex mutex;
  ReduceOptions o{.steps = 40};
  o.before = [&](Reducer& reducer, int64_t step) {
    const std::lock_guard lock(mutex);
    if (step == 39) figures.push_back(reducer.figures());
  };
  (void)reduce_ranks(2, "lgc:density=0.02,train=5,gate=0.01", o);
  REQUIRE(figures.size() == 2);
  for (auto& each : figures) {
    CHECK(each["stage"] == 2);
    CHECK(each["decoder_error"] > 0.01);
  }
  figures.clear();
  (void)reduce_ranks(2, "lgc:density=0.02,train=5,gate=10", o);
  for (auto& each : figures) CHECK(each["stage"] == 3);
  CHECK(figures[0]["decoder_error"] == figures[1]["decoder_error"]);
}

TEST_CASE("lgc: in its third stage the wire has a quarter of the values") {
  const auto runs = reduce_ranks(4, "lgc:density=0.5,train=2,gate=10,order=index", {.steps = 3});
  const auto& entries = runs[0].ledger.entries();
  const auto payload = [&](PayloadKind kind) {
    return entries.at({"fc.weight", kind}).payload + entries.at({"conv2.weight", kind}).payload;
  };
  const int64_t k = 875 + 576;
  CHECK(payload(PayloadKind::values) == 2 * 4 * k + 4 * GradientAutoencoder::code_size(k));
  CHECK(entries.at({"rho", PayloadKind::control}).payload == 3 * 2 * 4);  // of two layers
  const int64_t weights = entries.at({"autoencoder", PayloadKind::control}).payload;
  CHECK(weights >= 4 * 248);
  CHECK(weights < 4 * 248 + 4 * 256);
}

TEST_CASE("lgc: a layer of small gradients is coded as well as one of large gradients") {
  ReduceOptions o{.steps = 20};
  const auto even = reduce_ranks(3, "lgc:density=0.02,train=10,gate=10", o);
  o.fill = [](CompressModel& m, int rank, int64_t step) {
    m.fill_random(rank, step);
    scale(m.store.find("conv2.weight")->grad, 1.0f / 64);
  };
  const auto uneven = reduce_ranks(3, "lgc:density=0.02,train=10,gate=10", o);
  for (size_t step = 0; step < 20; ++step) {
    CHECK(part_of(uneven[0].sums[step], "fc.weight") == part_of(even[0].sums[step], "fc.weight"));
    Values small = part_of(uneven[0].sums[step], "conv2.weight");
    for (float& x : small) x *= 64;
    CHECK(small == part_of(even[0].sums[step], "conv2.weight"));
  }
}

TEST_CASE("lgc: refreshed, the weights of all ranks move on together") {
  const auto runs = reduce_ranks(3, "lgc:density=0.02,train=4,gate=10,refresh=3", {.steps = 14});
  const auto weights = [&](size_t rank, size_t step) {
    return runs[rank].states[step].at("autoencoder.weights");
  };
  for (const size_t rank : {size_t{1}, size_t{2}}) {
    CHECK(weights(rank, 2) != weights(0, 2));  // only rank 0 trains
    CHECK(weights(rank, 3) == weights(0, 3));
    CHECK(weights(rank, 5) == weights(rank, 3));
    CHECK(weights(rank, 6) == weights(0, 6));  // step 6 trains
    CHECK(weights(rank, 6) != weights(rank, 5));
    CHECK(weights(rank, 8) == weights(rank, 6));
    CHECK(weights(rank, 9) != weights(rank, 8));
  }
  for (size_t step = 0; step < 14; ++step) {
    CHECK(lost(runs, step) < 2e-6);
    CHECK(runs[1].sums[step] == runs[0].sums[step]);
  }
}

TEST_CASE("lgc: zero gradients, and those of one rank alone") {
  ReduceOptions o{.steps = 8};
  o.fill = [](CompressModel& m, int rank, int64_t step) {
    if (step % 4 == 1 || (step % 4 == 2 && rank > 0))
      m.fill([](uint64_t) { return 0.0f; });
    else
      m.fill_random(rank, step);
  };
  const auto runs = reduce_ranks(2, "lgc:density=1,train=3,gate=10", o);
  for (size_t step = 0; step < 8; ++step) {
    CHECK(runs[0].accepted[step]);
    for (const float x : runs[0].sums[step]) CHECK(std::isfinite(x));
  }
  CHECK(part_of(runs[0].sums[1], "fc.weight") == Values(1750));
  CHECK(part_of(runs[0].sums[2], "fc.weight") == part_of(runs[0].given[2], "fc.weight"));
}

TEST_CASE("lgc: identical learners act as one") {
  ReduceOptions o{.steps = 60};
  o.fill = [](CompressModel& m, int, int64_t) { m.fill_random(0, 0); };
  const auto one = reduce_ranks(1, "lgc:density=0.02,train=50,gate=10", o);
  const auto four = reduce_ranks(4, "lgc:density=0.02,train=50,gate=10", o);
  for (size_t step = 0; step < 60; ++step) {
    CAPTURE(step);
    const Values a = part_of(one[0].sums[step], "fc.weight"),
                 b = part_of(four[0].sums[step], "fc.weight");
    double wrong = 0, all = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      wrong += std::pow(b[i] - 4 * a[i], 2);
      all += std::pow(b[i], 2);
    }
    CHECK(wrong <= 1e-6 * all);
  }
}

TEST_CASE("lgc: a leader whose gradients are constant selects other places when its turn returns") {
  ReduceOptions o{.steps = 180};
  o.fill = [](CompressModel& m, int rank, int64_t) { m.fill_random(rank, 0); };
  const auto runs = reduce_ranks(4, "lgc:density=0.02,train=160,gate=10", o);
  size_t again = 0, sent = 0;
  for (size_t step = 164; step < 180; ++step) {
    const Values now = part_of(runs[0].sums[step], "fc.weight"),
                 before = part_of(runs[0].sums[step - 4], "fc.weight");
    for (size_t i = 0; i < now.size(); ++i) {
      sent += now[i] != 0 ? 1 : 0;
      again += now[i] != 0 && before[i] != 0 ? 1 : 0;
    }
  }
  CHECK(sent == 16 * 35);
  CHECK(again < 16 * 35 / 10);  // many, if each rank took out what the mean of the codes says
}

TEST_CASE("lgc: residuals stay bounded over many coded steps, in both orders") {
  for (const std::string order : {"value", "index"}) {
    CAPTURE(order);
    double early = 0, late = 0;
    expect_none(run_ranks(4, [&](Communicator& comm) {
      CompressModel model;
      const auto reducer = make_reducer(parse_compress("lgc:density=0.02,train=300,order=" + order),
                                        {.seed = 5}, model.store);
      Ledger ledger;
      for (int64_t step = 0; step < 1800; ++step) {
        model.fill_random(comm.rank(), step);
        if (!reducer->reduce(model.bucket(step), comm, ledger)) throw Error("rejected");
        if (comm.rank() != 0 || (step != 600 && step != 1799)) continue;
        CHECK(reducer->figures().at("stage") == 3);
        for (const auto& [name, x] : reducer->named_state())
          if (name.starts_with("residual."))
            for (const float v : x.to_vector()) (step == 600 ? early : late) += double{v} * v;
      }
    }));
    MESSAGE("squares of the residuals after 600 and 1800 steps: ", early, ", ", late);
    CHECK(late < 4 * early);
  }
}
