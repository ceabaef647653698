// Learners that talk to neighbours only, which minimise quadratics that differ from rank to rank:
// the two laws, convergence by code and graph, bytes, buckets, disturbances, and resuming.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <vector>

#include "core/random.h"
#include "optim/decentralized.h"
#include "tests/ranks.h"

using namespace heddle;

namespace {

using Doubles = std::vector<double>;

// f_i(x) = sum over j of h_ij x_j^2 / 2 - b_ij x_j, with h from 0.1 to 1.
struct Quadratics {
  std::vector<Doubles> h, b;  // by rank
  Quadratics(int ranks, size_t n) {
    for (int r = 0; r < ranks; ++r) {
      Doubles hs(n), bs(n);
      for (size_t j = 0; j < n; ++j) {
        hs[j] = 0.1 + 0.9 * Philox(1, static_cast<uint64_t>(r)).uniform(j);
        bs[j] = Philox(2, static_cast<uint64_t>(r)).normal(j);
      }
      h.push_back(hs);
      b.push_back(bs);
    }
  }
  size_t ranks() const { return h.size(); }
  size_t size() const { return h[0].size(); }
  Doubles optimum() const {
    Doubles x(size());
    for (size_t j = 0; j < size(); ++j) {
      double hs = 0, bs = 0;
      for (size_t r = 0; r < ranks(); ++r) hs += h[r][j], bs += b[r][j];
      x[j] = bs / hs;
    }
    return x;
  }
};

struct PeerRun {
  PeerOptions peers = {};
  int steps = 200;
  double lr = 1;
  std::function<double(int step)> rate = {};  // instead of lr
  std::function<void(DecentralizedOptimizer&, ParameterStore&, size_t rank, int step)> before = {};
  // May spoil a gradient.
  std::function<void(Parameter&, int rank, int step)> spoil = {};
  SgdOptions sgd = {};
};

// Holds what the ranks had after each step.
struct Run {
  std::vector<std::vector<Doubles>> x, gradients, duals;  // by step, rank
  std::vector<Ledger> ledgers;                            // by rank
  std::vector<double> drift;
  std::vector<Traffic> traffic;
};

Doubles to_values(const Tensor& x) {
  const auto floats = x.to_vector();
  return {floats.begin(), floats.end()};
}

// Returns doubles, of which tensors hold the bits.
Doubles doubles_of(const Tensor& x) {
  const auto* values = static_cast<const double*>(x.raw());
  return {values, values + x.size()};
}

// Two parameters of half the size, so that there are two buckets.
Run train(const Quadratics& problem, const PeerRun& o) {
  const auto p = problem.ranks();
  const auto half = static_cast<int64_t>(problem.size() / 2),
             rest = static_cast<int64_t>(problem.size()) - half;
  Run run;
  run.x.assign(static_cast<size_t>(o.steps), std::vector<Doubles>(p));
  run.gradients = run.duals = run.x;
  run.ledgers.resize(p);
  run.traffic.resize(p);
  run.drift.resize(p);
  expect_none(run_ranks(static_cast<int>(p), [&](Communicator& comm) {
    const auto r = static_cast<size_t>(comm.rank());
    ParameterStore store;
    Parameter& first = store.add("first", {std::max<int64_t>(1, half)}, constant_init(0));
    Parameter& second = store.add("second", {rest}, constant_init(0));
    store.finalize(1);
    const auto joined = [&](const Tensor& a, const Tensor& b, const auto& values_of) {
      Doubles out = half > 0 ? values_of(a) : Doubles{};
      for (const double x : values_of(b)) out.push_back(x);
      return out;
    };
    DecentralizedOptimizer optimizer(store, make_sgd(o.sgd), comm, {}, o.peers);
    for (int step = 0; step < o.steps; ++step) {
      if (o.before) o.before(optimizer, store, r, step);
      optimizer.begin_step(o.rate ? o.rate(step) : o.lr);
      const auto at = static_cast<size_t>(step);
      for (Parameter* q : {&second, &first}) {
        const size_t begin = q == &first ? 0 : static_cast<size_t>(half);
        q->grad.fill_zero();
        for (int64_t j = 0; j < q->size() && (q == &second || half > 0); ++j) {
          const size_t k = begin + static_cast<size_t>(j);
          q->grad.data<float>()[j] =
              static_cast<float>(problem.h[r][k] * q->value.data<float>()[j] - problem.b[r][k]);
        }
        if (o.spoil) o.spoil(*q, comm.rank(), step);
        q->written = true;
      }
      run.gradients[at][r] = joined(first.grad, second.grad, to_values);
      for (Parameter* q : {&second, &first}) {
        optimizer.ready(*q);
        optimizer.weights_free(*q);
      }
      (void)optimizer.finish_step();
      run.x[at][r] = joined(first.value, second.value, to_values);
      std::map<std::string, Tensor> state;
      for (const auto& [name, x] : optimizer.named_state()) state.emplace(name, x);
      if (!state.empty())
        run.duals[at][r] = joined(state.at("dual.first"), state.at("dual.second"), doubles_of);
    }
    run.ledgers[r] = optimizer.ledger();
    run.drift[r] = optimizer.drift();
    run.traffic[r] = comm.total_traffic();
  }));
  return run;
}

// Returns ||X - x*|| over all ranks, divided by its value at zero.
Doubles errors(const Quadratics& problem, const Run& run, bool relative = true) {
  const Doubles best = problem.optimum();
  double start = 0;
  for (const double x : best) start += static_cast<double>(problem.ranks()) * x * x;
  Doubles out;
  for (const auto& ranks : run.x) {
    double sum = 0;
    for (const Doubles& x : ranks)
      for (size_t j = 0; j < x.size(); ++j) sum += (x[j] - best[j]) * (x[j] - best[j]);
    out.push_back(std::sqrt(relative ? sum / start : sum));
  }
  return out;
}

// Returns the number of steps until the error is below a limit; far above all others if never.
double steps_to(double limit, const Doubles& error) {
  const auto found = std::ranges::find_if(error, [&](double e) { return e < limit; });
  return found == error.end() ? 1e6 : static_cast<double>(found - error.begin() + 1);
}

Doubles mean_of(const std::vector<Doubles>& ranks) {
  Doubles mean(ranks[0].size());
  for (const Doubles& x : ranks)
    for (size_t j = 0; j < x.size(); ++j) mean[j] += x[j] / static_cast<double>(ranks.size());
  return mean;
}

double largest(const Doubles& x) {
  double most = 0;
  for (const double v : x) most = std::max(most, std::abs(v));
  return most;
}

// A code whose parts never shrink.
const std::string kPoorCode = "dyna:bits=1,scale=geometric,first=1000,ratio=1";
const std::vector<std::string> kCodes = {kPoorCode,
                                         "none",
                                         "qsgd:bits=8",
                                         "qsgd:bits=4",
                                         "qsgd:bits=4,rounding=stochastic",
                                         "qsgd:bits=2",
                                         "topk:density=0.25",
                                         "dyna:bits=1",
                                         "dyna:bits=2",
                                         "dyna:bits=1,scale=geometric,first=8,ratio=0.95"};

}  // namespace

TEST_CASE("peers: duals sum to zero and the mean descends plainly, whatever the code and graph") {
  const Quadratics problem(8, 160);
  for (const std::string graph : {"ring", "er:p=0.4,seed=12", "complete"})
    for (const std::string& code : kCodes) {
      CAPTURE(graph);
      CAPTURE(code);
      PeerRun o{.peers = {.peers = graph, .innovation = code, .bucket_bytes = 200, .seed = 3},
                .steps = 60};
      const Run run = train(problem, o);
      Doubles mean(problem.size());
      double apart = 0;
      for (size_t step = 0; step < run.x.size(); ++step) {
        CAPTURE(step);
        double size = 0;
        for (const auto& x : run.x[step]) size = std::max(size, largest(x));
        for (const auto& d : run.duals[step]) size = std::max(size, largest(d));
        CHECK(largest(mean_of(run.duals[step])) < 1e-12 * size);
        const Doubles g = mean_of(run.gradients[step]), now = mean_of(run.x[step]);
        Doubles wrong(now.size());
        for (size_t j = 0; j < now.size(); ++j) wrong[j] = now[j] - (mean[j] - o.lr * g[j]);
        CHECK(largest(wrong) < 1e-5 * size);
        mean = now;
        for (size_t j = 0; j < now.size(); ++j)
          apart = std::max(apart, std::abs(run.x[step][0][j] - now[j]));
      }
      CHECK((apart > 50) == (code == kPoorCode));
    }
}

TEST_CASE("peers: four learners on a ring give the errors of exact arithmetic") {
  Quadratics problem(4, 1);
  const double h[] = {1, 0.5, 0.25, 0.1}, b[] = {1, -2, 3, 0.5};
  for (size_t r = 0; r < 4; ++r) problem.h[r] = {h[r]}, problem.b[r] = {b[r]};
  CHECK(problem.optimum()[0] == doctest::Approx(1.351351).epsilon(1e-6));
  const std::map<double, std::pair<double, double>> expected = {{1, {0.124183, 2.918635e-3}},
                                                                {0.5, {0.575709, 0.0930692}}};
  for (const auto& [mixing, error] : expected) {
    const Doubles found =
        errors(problem, train(problem, {.peers = {.mixing = mixing}, .steps = 20}), false);
    CHECK(found[9] == doctest::Approx(error.first).epsilon(1e-4));
    CHECK(found[19] == doctest::Approx(error.second).epsilon(1e-4));
  }
}

TEST_CASE("peers: one step on a complete graph goes half way to the mean") {
  const Quadratics problem(4, 10);
  const Run run = train(problem, {.peers = {.peers = "complete"}, .steps = 1});
  for (size_t r = 0; r < 4; ++r)
    for (size_t j = 0; j < 10; ++j) {
      double mean = 0;
      for (size_t q = 0; q < 4; ++q) mean += problem.b[q][j] / 4;  // y = b after a step from zero
      CHECK(run.x[0][r][j] == doctest::Approx((problem.b[r][j] + mean) / 2).epsilon(1e-5));
    }
}

TEST_CASE("peers: gossip goes all the way to the mean in a step, and stops at a bias") {
  const Quadratics problem(4, 10);
  PeerRun o{.peers = {.peers = "complete", .dual = false}, .steps = 1};
  const Run once = train(problem, o);
  for (size_t j = 0; j < problem.size(); ++j) {
    double mean = 0;  // of x' = b, since x is 0
    for (const Doubles& b : problem.b) mean += b[j] / 4;
    for (const Doubles& x : once.x[0]) CHECK(x[j] == doctest::Approx(mean).epsilon(1e-5));
  }
  o = {.peers = {.peers = "ring"}, .steps = 300};
  CHECK(errors(problem, train(problem, o)).back() < 1e-5);
  o.peers.dual = false;
  CHECK(errors(problem, train(problem, o)).back() > 0.05);
}

TEST_CASE("peers: few bits cost no steps") {
  const Quadratics problem(8, 160);
  const auto steps = [&](const std::string& graph, const std::string& code, double mixing = 0) {
    const Run run = train(
        problem, {.peers = {.peers = graph, .innovation = code, .mixing = mixing}, .steps = 320});
    const double found = steps_to(1e-5, errors(problem, run));
    MESSAGE(graph, ", ", code, ": ", found, " steps to 1e-5");
    return found;
  };
  for (const std::string graph : {"ring", "er:p=0.4,seed=12"}) {
    CAPTURE(graph);
    const double none = steps(graph, "none"), half = steps(graph, "none", 0.5);
    CHECK(none < 160);
    CHECK(steps(graph, "qsgd:bits=8") <= 1.03 * none);
    CHECK(steps(graph, "qsgd:bits=4") <= 1.03 * none);
    CHECK(steps(graph, "dyna:bits=1") <= 1.05 * half);
    CHECK(steps(graph, "dyna:bits=2") <= 1.1 * none);
    CHECK(steps(graph, "topk:density=0.25", 0.5) <= 320);
  }
}

TEST_CASE("peers: bytes are the degree times the code's length, by layer") {
  Context context;
  const Quadratics problem(5, 1000);
  for (const std::string code : {"none", "qsgd:bits=4", "dyna"}) {
    CAPTURE(code);
    const Run run = train(problem, {.peers = {.peers = "star", .innovation = code}, .steps = 3});
    const int64_t bytes = InnovationCoder(parse_innovation(code), {500}, 1).bytes(0);
    for (size_t r = 0; r < 5; ++r) {
      const int64_t degree = r == 0 ? 4 : 1;
      for (const char* layer : {"first", "second"}) {
        const auto entry = run.ledgers[r].entries().at({layer, PayloadKind::values});
        CHECK(entry.payload == 3 * bytes);
        CHECK(entry.sent == 3 * bytes * degree);
        CHECK(entry.received == 3 * bytes * degree);
      }
      CHECK(run.ledgers[r].total().sent == run.traffic[r].sent);
      CHECK(run.ledgers[r].total().received == run.traffic[r].received);
    }
  }
}

TEST_CASE("peers: overlap, buckets and resync change no bit of the weights but by rounding") {
  const Quadratics problem(4, 160);
  const auto run = [&](PeerOptions peers) {
    peers.innovation = "qsgd:bits=4";
    return train(problem, {.peers = peers, .steps = 50});
  };
  const Run all = run({.resync = 0}), buckets = run({.resync = 0, .bucket_bytes = 100}),
            late = run({.resync = 0, .bucket_bytes = 100, .overlap = false}),
            resynced = run({.resync = 10});
  CHECK(all.x.back() == buckets.x.back());
  CHECK(all.x.back() == late.x.back());
  for (const double drift : resynced.drift) {
    CHECK(drift > 0);
    CHECK(drift < 1e-5);
  }
  for (const double drift : all.drift) CHECK(drift == 0);
  for (size_t r = 0; r < 4; ++r)
    for (size_t j = 0; j < 160; ++j)
      CHECK(std::abs(resynced.x.back()[r][j] - all.x.back()[r][j]) < 1e-4);
}

TEST_CASE("peers: a gradient that is not finite counts as zero, for its rank alone") {
  const Quadratics problem(4, 160);
  PeerRun o{.peers = {.innovation = "qsgd:bits=4"}, .steps = 200};
  o.spoil = [](Parameter& p, int rank, int step) {
    if (rank == 2 && step == 5) p.grad.fill_zero();
  };
  const Run zero = train(problem, o);
  o.spoil = [](Parameter& p, int rank, int step) {
    if (rank == 2 && step == 5) p.grad.data<float>()[3] = std::numeric_limits<float>::quiet_NaN();
  };
  const Run spoilt = train(problem, o);
  CHECK(spoilt.x.back() == zero.x.back());
  CHECK(errors(problem, spoilt).back() < 1e-4);
}

TEST_CASE("peers: a tiny learning rate, as at the end of a cosine, makes no large duals") {
  const Quadratics problem(4, 160);
  PeerRun o{.peers = {.innovation = "qsgd:bits=4"}, .steps = 260};
  o.rate = [](int step) { return step < 150 || step >= 200 ? 1.0 : 1e-8; };
  const Doubles error = errors(problem, train(problem, o));
  CHECK(error[149] < 1e-5);
  CHECK(*std::max_element(error.begin() + 149, error.end()) < 1e-2);
}

TEST_CASE("peers: a learning rate of zero sends nothing; one learner is plain SGD") {
  const Quadratics problem(3, 160);
  const Run still = train(problem, {.steps = 2, .lr = 0});
  CHECK(still.x.back() == std::vector<Doubles>(3, Doubles(160)));
  for (const Ledger& ledger : still.ledgers) CHECK(ledger.total(PayloadKind::values).sent == 0);
  const Quadratics single(1, 160);
  const Run alone = train(single, {.peers = {.innovation = "dyna"}, .steps = 5, .lr = 0.5});
  Doubles x(160);
  for (int step = 0; step < 5; ++step)
    for (size_t j = 0; j < x.size(); ++j) x[j] -= 0.5 * (single.h[0][j] * x[j] - single.b[0][j]);
  for (size_t j = 0; j < x.size(); ++j)
    CHECK(alone.x.back()[0][j] == doctest::Approx(x[j]).epsilon(1e-5));
}

TEST_CASE("peers: a run continues from its state bit for bit") {
  const Quadratics problem(4, 160);
  for (const std::string code : {"qsgd:bits=4,rounding=stochastic", "dyna"}) {
    CAPTURE(code);
    PeerRun o{.peers = {.innovation = code, .bucket_bytes = 100, .seed = 7}, .steps = 30};
    const Run whole = train(problem, o);
    std::vector<std::map<std::string, Tensor>> states(4);
    PeerRun first = o;
    first.steps = 11;
    first.before = [&](DecentralizedOptimizer& optimizer, ParameterStore& store, size_t r,
                       int step) {
      if (step != 10) return;
      for (const auto& [name, x] : optimizer.named_state()) states[r].emplace(name, x.clone());
      states[r].emplace("weights", store.values().clone());
    };
    CHECK(train(problem, first).x[9] == whole.x[9]);
    PeerRun rest = o;
    rest.steps = 20;
    rest.peers.broadcast = false;
    rest.before = [&](DecentralizedOptimizer& optimizer, ParameterStore& store, size_t r,
                      int step) {
      if (step != 0) return;
      optimizer.restore({.steps = 10, .totals = {}, .ledger = {}, .settings = {}, .planner = {}});
      for (const auto& [name, x] : optimizer.named_state()) x.copy_from(states[r].at(name));
      store.values().copy_from(states[r].at("weights"));
    };
    const Run again = train(problem, rest);
    CHECK(again.x.back() == whole.x.back());
  }
}
