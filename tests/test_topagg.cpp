// TopAgg: sums of votes, what one unit can change, noise, and what no gradient may pass by.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <mutex>
#include <vector>

#include "compress/topagg.h"
#include "core/error.h"
#include "tests/data_files.h"
#include "tests/ranks.h"

namespace heddle {
namespace {

// A matrix, a bias and a convolution: kinds of parameters that other algorithms leave dense.
struct Voted {
  ParameterStore store;
  explicit Voted(int64_t rows = 30) {
    store.add("fc.weight", {rows, 50}, constant_init(0));
    store.add("fc.bias", {35}, constant_init(0));
    store.add("conv1.weight", {4, 3, 3, 3}, constant_init(0));
    store.finalize(1);
  }
  GradientBucket bucket(int64_t step, size_t first = 0, size_t last = 3) {
    GradientBucket b{{}, {}, step};
    auto& all = store.parameters();
    for (size_t i = first; i < last; ++i) b.parameters.push_back(&all[all.size() - 1 - i]);
    const Parameter& end = *b.parameters.back();
    b.flat = store.grads().slice(b.parameters[0]->offset, end.offset + end.size());
    return b;
  }
};

using Fill = std::function<float(int rank, int64_t step, int64_t vote, int64_t element)>;

float normal_gradient(int rank, int64_t step, int64_t vote, int64_t element) {
  const auto key = static_cast<uint64_t>((rank * 100 + step) * 1000 + vote);
  return Philox(3, key).normal(static_cast<uint64_t>(element));
}

// By step, the flat gradients that a rank ends up with.
using Answers = std::vector<std::vector<float>>;

struct VoteRun {
  int ranks = 1, steps = 1;
  std::function<int64_t(int rank, int64_t step)> votes = [](int, int64_t) { return 1; };
  VotingOptions voting = {};
  Fill fill = normal_gradient;
  int64_t rows = 30;
  bool single_layers = false;
  std::function<void(TopAgg&)> before = [](TopAgg&) {};
};

std::vector<Answers> run_votes(const std::string& spec, const VoteRun& o) {
  std::vector<Answers> out(static_cast<size_t>(o.ranks));
  expect_none(run_ranks(o.ranks, [&](Communicator& comm) {
    Voted net(o.rows);
    const CompressSpec parsed = parse_compress(spec);
    const ReducerOptions options{.seed = 5, .voting = o.voting};
    TopAgg reducer({find_family("topagg"), parsed, options, net.store});
    o.before(reducer);
    Ledger ledger;
    for (int64_t step = 0; step < o.steps; ++step) {
      for (int64_t vote = 0; vote < o.votes(comm.rank(), step); ++vote) {
        for (const Parameter& p : net.store.parameters())
          for (int64_t i = 0; i < p.size(); ++i)
            p.grad.data<float>()[i] = o.fill(comm.rank(), step, vote, p.offset + i);
        reducer.vote(step, vote, comm.rank());
      }
      for (size_t b = 0; b < (o.single_layers ? 3 : 1); ++b)
        CHECK(reducer.reduce(o.single_layers ? net.bucket(step, b, b + 1) : net.bucket(step), comm,
                             ledger));
      out[static_cast<size_t>(comm.rank())].push_back(net.store.grads().to_vector());
    }
  }));
  return out;
}

// The sums of votes by a plain loop: +1 or -1 at the elements that are chosen in each parameter.
std::vector<double> plain_sums(const VoteRun& o, double density, int64_t step = 0) {
  Context context;
  Voted net(o.rows);
  std::vector<double> sums(static_cast<size_t>(net.store.grads().size()));
  for (int rank = 0; rank < o.ranks; ++rank)
    for (int64_t vote = 0; vote < o.votes(rank, step); ++vote)
      for (const Parameter& p : net.store.parameters()) {
        std::vector<std::pair<float, int64_t>> all;
        for (int64_t i = 0; i < p.size(); ++i) {
          const float g = o.fill(rank, step, vote, p.offset + i);
          all.emplace_back(-std::abs(g), i);
        }
        std::ranges::sort(all);
        const auto k = std::max<int64_t>(1, std::llround(density * static_cast<double>(p.size())));
        for (int64_t j = 0; j < k; ++j) {
          const int64_t i = all[static_cast<size_t>(j)].second;
          const float g = o.fill(rank, step, vote, p.offset + i);
          sums[static_cast<size_t>(p.offset + i)] += g > 0 ? 1 : g < 0 ? -1 : 0;
        }
      }
  return sums;
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double squares = 0;
  for (size_t i = 0; i < a.size(); ++i)
    squares += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
  return std::sqrt(squares);
}

std::string setup_error(const std::string& spec, const VotingOptions& voting = {},
                        ReducerOptions options = {}) {
  return input_error([&] {
    Context context;
    Voted net;
    options.voting = voting;
    (void)make_reducer(parse_compress(spec), options, net.store);
  });
}

TEST_CASE("topagg: the answer is the sum of the votes, the same on all ranks") {
  for (const int ranks : {1, 3})
    for (const int64_t votes : {1, 5})
      for (const double density : {0.01, 0.3, 1.0}) {
        CAPTURE(ranks);
        CAPTURE(votes);
        CAPTURE(density);
        VoteRun run{.ranks = ranks, .steps = 2};
        run.votes = [=](int, int64_t) { return votes; };
        run.voting.voters = static_cast<double>(votes);
        for (const bool single : {false, true}) {
          run.single_layers = single;
          const auto sums = run_votes(concat("topagg:output=votes,density=", density), run);
          const auto signs = run_votes(concat("topagg:density=", density), run);
          for (int64_t step = 0; step < 2; ++step) {
            const auto expected = plain_sums(run, density, step);
            for (int r = 0; r < ranks; ++r) {
              const auto& sum = sums[static_cast<size_t>(r)][static_cast<size_t>(step)];
              const auto& sign = signs[static_cast<size_t>(r)][static_cast<size_t>(step)];
              for (size_t i = 0; i < expected.size(); ++i) {
                CHECK(sum[i] == static_cast<float>(expected[i] / static_cast<double>(votes)));
                const int majority = expected[i] > 0 ? 1 : expected[i] < 0 ? -1 : 0;
                CHECK(sign[i] == static_cast<float>(ranks * majority));
              }
            }
          }
        }
      }
}

TEST_CASE("topagg: sums of votes at the limits of their bits, and ranks without a vote") {
  for (const int64_t votes : {0, 1, 127, 128, 129}) {
    CAPTURE(votes);
    VoteRun run{.ranks = 2};
    run.votes = [=](int rank, int64_t) { return rank == 0 ? votes : 0; };
    run.voting.voters = 64;
    run.fill = [](int, int64_t, int64_t, int64_t element) { return element % 2 == 0 ? 1.f : -1.f; };
    const auto sums = run_votes("topagg:output=votes,density=1", run);
    Context context;
    Voted net;
    const Parameter& p = *net.store.find("fc.bias");
    for (const Answers& of_rank : sums)
      for (int64_t i = p.offset; i < p.offset + p.size(); ++i)
        CHECK(of_rank[0][static_cast<size_t>(i)] ==  // bf16 has 8 bits
              static_cast<float>(bfloat16(static_cast<float>(votes))) / (i % 2 == 0 ? 64 : -64));
  }
}

TEST_CASE("topagg: one unit changes the sum by at most the sensitivity") {
  // Two data sets of three units; the last unit of the second is another, or votes the opposite.
  for (const char* vote : {"sign", "stochastic", "clip"})
    for (const double density : {0.02, 0.5}) {
      CAPTURE(vote);
      CAPTURE(density);
      double most = 0, sensitivity = 0;
      VoteRun run{.steps = 1000};
      run.votes = [](int, int64_t) { return 3; };
      run.voting.voters = 3;
      run.before = [&](TopAgg& t) { sensitivity = t.accountant()->mechanism().sensitivity; };
      // Scaled, so that the clipped gradients fill their bound, or are shorter.
      run.fill = [](int rank, int64_t step, int64_t v, int64_t element) {
        return normal_gradient(rank, step, v, element) * static_cast<float>(step % 7) / 3;
      };
      const std::string spec =
          concat("topagg:output=votes,noise-seed=8,vote=", vote, ",density=", density);
      const auto one = run_votes(spec, run);
      run.fill = [&](int rank, int64_t step, int64_t v, int64_t element) {
        const float scale = static_cast<float>(step % 7) / 3;
        if (v < 2) return normal_gradient(rank, step, v, element) * scale;
        return step % 2 == 0 ? -normal_gradient(rank, step, v, element) * scale
                             : normal_gradient(9, step, v, element) * 100;
      };
      const auto other = run_votes(spec, run);
      for (size_t step = 0; step < 1000; ++step)
        most = std::max(most, 3 * distance(one[0][step], other[0][step]));
      // Clipped sums are rounded to bf16.
      CHECK(most <= sensitivity * (std::string(vote) == "clip" ? 1.01 : 1 + 1e-6));
      if (std::string(vote) == "sign") CHECK(most == doctest::Approx(sensitivity));
      if (std::string(vote) == "clip") CHECK(most > 1.9);
    }
}

TEST_CASE("topagg: whichever unit is left out, the sum changes by at most its vote") {
  for (const char* vote : {"sign", "clip"})
    for (const int64_t without : {0, 1, 2}) {
      CAPTURE(vote);
      CAPTURE(without);
      const std::string spec = concat("topagg:output=votes,density=0.1,vote=", vote);
      double sensitivity = 0, most = 0;
      VoteRun run{.ranks = 2, .steps = 200};
      run.voting = {.voters = 3, .rate = 0.5, .replaced = false};
      run.votes = [](int, int64_t) { return 3; };
      run.before = [&](TopAgg& t) { sensitivity = t.accountant()->mechanism().sensitivity; };
      const auto all = run_votes(spec, run);
      run.votes = [](int rank, int64_t) { return rank == 0 ? 2 : 3; };
      run.fill = [=](int rank, int64_t step, int64_t v, int64_t element) {
        return normal_gradient(rank, step, rank == 0 && v >= without ? v + 1 : v, element);
      };
      const auto fewer = run_votes(spec, run);
      for (size_t step = 0; step < 200; ++step)
        most = std::max(most, 3 * distance(all[0][step], fewer[0][step]));
      CHECK(most ==
            doctest::Approx(sensitivity).epsilon(vote == std::string("clip") ? 0.01 : 1e-6));
    }
}

TEST_CASE("topagg: no seed and no other unit decides how a vote is rounded") {
  VoteRun run;
  const std::string spec = "topagg:output=votes,density=1,vote=stochastic";
  CHECK(run_votes(spec, run) != run_votes(spec, run));
}

TEST_CASE("topagg: noise that can be repeated costs infinitely much") {
  Context context;
  Voted net;
  const auto reducer =
      make_reducer(parse_compress("topagg:sigma=1000,noise-seed=3"), {}, net.store);
  CHECK(!reducer->accountant()->mechanism().secret);
  CHECK(std::isinf(reducer->accountant()->spent_after(1).epsilon));
}

TEST_CASE("topagg: added or removed, a unit changes half as much") {
  VoteRun run{.voting = {.voters = 1, .rate = 0.5, .replaced = false}};
  NoisySum sum;
  run.before = [&](TopAgg& t) {
    sum = t.accountant()->mechanism();
    CHECK(sum.elements == 150 + 4 + 11);
  };
  (void)run_votes("topagg:density=0.1,sigma=10", run);
  CHECK(sum.sensitivity == doctest::Approx(std::sqrt(165.0)));
  CHECK(sum.noise_multiplier() == doctest::Approx(10 / std::sqrt(165.0)));
  run.voting = {};
  (void)run_votes("topagg:density=0.1,sigma=10", run);
  CHECK(sum.sensitivity == doctest::Approx(2 * std::sqrt(165.0)));
  (void)run_votes("topagg:density=0.1,sigma=10,vote=clip,output=votes", run);
  CHECK(sum.sensitivity == 2);
}

TEST_CASE("topagg: every element has its noise, of the stated size, new in every step") {
  VoteRun run{.ranks = 2, .steps = 3, .rows = 1000};
  run.fill = [](int, int64_t, int64_t, int64_t) { return 0.0f; };  // nobody votes
  run.voting = {.voters = 1, .rate = 0.5, .replaced = false};
  const auto noise = run_votes("topagg:sigma=20,output=votes,noise-seed=3", run);
  CHECK(noise[0] == noise[1]);
  Context context;
  Voted net(1000);
  std::vector<double> variance(3), products(3);
  int64_t zeros = 0, n = 0;
  double owners = 0;
  for (const Parameter& p : net.store.parameters())
    for (int64_t i = 0; i < p.size(); ++i, ++n)
      for (size_t step = 0; step < 3; ++step) {
        const auto at = static_cast<size_t>(p.offset + i);
        const double x = static_cast<double>(noise[0][step][at]);
        variance[step] += x * x;
        products[step] += x * static_cast<double>(noise[0][(step + 1) % 3][at]);
        zeros += x == 0 ? 1 : 0;
      }
  for (size_t i = 0; i < 20000; ++i)  // the matrix is halved between the owners
    owners += static_cast<double>(noise[0][0][i]) * static_cast<double>(noise[0][0][i + 25072]);
  CHECK(zeros == 0);
  for (size_t step = 0; step < 3; ++step) {
    CHECK(variance[step] / static_cast<double>(n) == doctest::Approx(400).epsilon(0.02));
    CHECK(std::abs(products[step] / static_cast<double>(n)) < 10);
  }
  CHECK(std::abs(owners / 20000) < 15);
  // Without a seed, two equal runs differ everywhere, and so does the same run once more.
  const auto a = run_votes("topagg:sigma=20,output=votes", run);
  const auto b = run_votes("topagg:sigma=20,output=votes", run);
  CHECK(a[0] == a[1]);
  int64_t equal = 0;
  for (size_t i = 0; i < 50000; ++i) equal += a[0][0][i] == b[0][0][i] ? 1 : 0;
  CHECK(equal < 1000);  // as many as bf16's rounding explains
}

TEST_CASE("topagg: signs are zero where the noisy sum is within the threshold") {
  VoteRun run{.rows = 400};
  run.fill = [](int, int64_t, int64_t, int64_t element) { return element % 2 == 0 ? 1.f : -1.f; };
  const auto signs = run_votes("topagg:density=1,sigma=2,threshold=3,noise-seed=4", run);
  // The sum is 1 or -1; P(1 + 2 N > 3) = 0.1587, P(1 + 2 N < -3) = 0.0228.
  int with = 0, against = 0;
  Context context;
  Voted net(400);
  const Parameter& p = *net.store.find("fc.weight");
  for (int64_t i = 0; i < p.size(); ++i) {
    const float o = signs[0][0][static_cast<size_t>(p.offset + i)];
    CHECK((o == 0 || o == 1 || o == -1));
    with += o == ((p.offset + i) % 2 == 0 ? 1.0f : -1.0f) ? 1 : 0;
    against += o == ((p.offset + i) % 2 == 0 ? -1.0f : 1.0f) ? 1 : 0;
  }
  CHECK(with == doctest::Approx(0.1587 * 20000).epsilon(0.05));
  CHECK(against == doctest::Approx(0.0228 * 20000).epsilon(0.12));
}

TEST_CASE("topagg: stochastic votes have the gradient as their mean") {
  VoteRun run{.steps = 10000};
  const std::vector<float> values = {0.9f, -0.6f, 0.3f, -0.1f};
  run.fill = [&](int, int64_t, int64_t, int64_t element) {
    return element < 4 ? values[static_cast<size_t>(element)] : 0.0f;
  };
  const auto votes = run_votes("topagg:density=1,output=votes,vote=stochastic", run);
  for (size_t i = 0; i < 4; ++i) {
    double mean = 0;
    for (const auto& step : votes[0]) mean += static_cast<double>(step[i]) / 1e4;
    CHECK(mean == doctest::Approx(static_cast<double>(values[i] / 0.9f)).epsilon(0.0015).scale(40));
  }
}

TEST_CASE("topagg: clipped gradients are those of DP-SGD") {
  VoteRun run{.ranks = 2};
  run.votes = [](int, int64_t) { return 3; };
  run.voting.voters = 3;
  run.fill = [](int rank, int64_t step, int64_t vote, int64_t element) {
    return normal_gradient(rank, step, vote, element) * (vote == 0 ? 1e-4f : 1.0f);
  };
  const auto sums = run_votes("topagg:density=1,output=votes,vote=clip,clip=0.5", run);
  Context context;
  Voted net;
  std::vector<double> expected(static_cast<size_t>(net.store.grads().size()));
  for (int rank = 0; rank < 2; ++rank)
    for (int64_t vote = 0; vote < 3; ++vote) {
      double squares = 0;
      for (const Parameter& p : net.store.parameters())
        for (int64_t i = p.offset; i < p.offset + p.size(); ++i)
          squares += std::pow(static_cast<double>(run.fill(rank, 0, vote, i)), 2);
      const double scale = std::min(1.0, 0.5 / std::sqrt(squares));
      CHECK((scale == 1) == (vote == 0));
      for (const Parameter& p : net.store.parameters())
        for (int64_t i = p.offset; i < p.offset + p.size(); ++i)
          expected[static_cast<size_t>(i)] +=
              scale * static_cast<double>(run.fill(rank, 0, vote, i)) / 3;
    }
  for (size_t i = 0; i < expected.size(); ++i)
    CHECK(static_cast<double>(sums[0][0][i]) ==
          doctest::Approx(expected[i]).epsilon(0.005).scale(1e-3));
}

TEST_CASE("topagg: a gradient that is not finite is an empty vote, and nothing is refused") {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    VoteRun run{.ranks = 2};
    run.fill = [=](int rank, int64_t step, int64_t vote, int64_t element) {
      return rank == 1 && element == 3 ? bad : normal_gradient(rank, step, vote, element);
    };
    const auto sums = run_votes("topagg:output=votes,density=0.1", run);
    VoteRun first{.ranks = 1};
    const auto expected = plain_sums(first, 0.1);
    for (const Answers& of_rank : sums)
      for (size_t i = 0; i < expected.size(); ++i)
        CHECK(of_rank[0][i] == static_cast<float>(expected[i]));
  }
}

TEST_CASE("topagg: an answer depends on the votes of its step only") {
  VoteRun run{.ranks = 2, .steps = 3};
  const auto normal = run_votes("topagg:output=votes,density=0.1", run);
  run.fill = [](int rank, int64_t step, int64_t vote, int64_t element) {
    return normal_gradient(rank, step, vote, element) * (step == 0 ? 1000.0f : 1.0f);
  };
  const auto large = run_votes("topagg:output=votes,density=0.1", run);
  run.votes = [](int, int64_t step) { return step == 0 ? 0 : 1; };
  const auto late = run_votes("topagg:output=votes,density=0.1", run);
  CHECK(normal == large);
  CHECK(normal[0][1] == late[0][1]);
  CHECK(normal[0][2] == late[0][2]);
  Context context;
  Voted net;
  const auto reducer = make_reducer(parse_compress("topagg"), {}, net.store);
  CHECK(!reducer->keeps_residuals());
  CHECK(reducer->named_state().empty());
}

TEST_CASE("topagg: control words are summed exactly, without noise") {
  expect_none(run_ranks(3, [](Communicator& comm) {
    Voted net;
    const auto reducer = make_reducer(parse_compress("topagg:sigma=50"), {}, net.store);
    GradientBucket bucket = net.bucket(0);
    bucket.flat = net.store.grads_and_extra();
    bucket.control = ParameterStore::kExtra;
    const Tensor words = bucket.flat.slice(bucket.flat.size() - 4, bucket.flat.size());
    for (int i = 0; i < 4; ++i) words.data<float>()[i] = static_cast<float>(comm.rank() * 10 + i);
    Ledger ledger;
    CHECK(reducer->reduce(bucket, comm, ledger));
    for (int i = 0; i < 4; ++i) CHECK(words.data<float>()[i] == static_cast<float>(30 + 3 * i));
  }));
}

TEST_CASE("topagg: a query is counted once a step, before its answer, and costs what it should") {
  VoteRun run{.ranks = 2, .steps = 5, .voting = {.voters = 1, .rate = 0.1, .replaced = false}};
  for (const bool single : {false, true}) {
    run.single_layers = single;
    std::vector<std::vector<int64_t>> seen(2);
    std::vector<double> epsilon;
    std::mutex mutex;
    TopAgg* one = nullptr;
    run.before = [&](TopAgg& t) {
      const std::lock_guard lock(mutex);
      const bool first = one == nullptr;
      if (first) one = &t;
      t.accountant()->on_count([&, first, reducer = &t](const RdpAccountant::State& state) {
        const std::lock_guard inner(mutex);
        seen[first ? 0 : 1].push_back(state.queries);
        if (first) epsilon.push_back(reducer->figures().at("epsilon"));
      });
    };
    (void)run_votes("topagg:sigma=60,density=0.5", run);
    CHECK(seen[0] == std::vector<int64_t>{1, 2, 3, 4, 5});
    CHECK(seen[0] == seen[1]);
    RdpCurve curve = sampled_gaussian_rdp(0.1, 60 / std::sqrt(750.0 + 18 + 54));
    for (double& x : curve) x *= 5;
    CHECK(epsilon.at(4) == doctest::Approx(epsilon_of(curve, 1e-5).epsilon));
  }
  // The observer of one rank throws: no rank gets an answer.
  const auto errors =
      run_ranks(3,
                [](Communicator& comm) {
                  Voted net;
                  const CompressSpec spec = parse_compress("topagg:sigma=1");
                  TopAgg reducer({find_family("topagg"), spec, {}, net.store});
                  if (comm.rank() == 0)
                    reducer.accountant()->on_count([](const auto&) { throw Error("disk full"); });
                  net.store.grads().fill_zero();
                  Ledger ledger;
                  try {
                    (void)reducer.reduce(net.bucket(0), comm, ledger);
                  } catch (const Error&) {
                    for (const float x : net.store.grads().to_vector()) CHECK(x == 0);
                    throw;
                  }
                },
                {.timeout_s = 5});
  CHECK(errors[0] == "disk full");
  for (const size_t rank : {1, 2}) CHECK(errors[rank].find("disk full") != std::string::npos);
}

TEST_CASE("topagg: epsilon gives the noise that keeps it") {
  for (const double rate : {1.0, 0.02}) {
    const VotingOptions voting{
        .voters = 1, .rate = rate, .replaced = rate == 1, .delta = 1e-6, .steps = 300};
    Context context;
    Voted net;
    const CompressSpec spec = parse_compress("topagg:epsilon=2");
    const ReducerOptions options{.voting = voting};
    TopAgg reducer({find_family("topagg"), spec, options, net.store});
    const double spent = reducer.accountant()->spent_after(300).epsilon;
    CHECK(spent <= 2);
    CHECK(spent > 1.999);
    CHECK(reducer.accountant()->mechanism().delta == 1e-6);
    CHECK(reducer.accountant()->spent_after(301).epsilon > 2);
  }
}

TEST_CASE("topagg: what cannot protect is refused") {
  const auto mentions = [](const std::string& error, const char* what) {
    CAPTURE(error);
    CHECK(error.find(what) != std::string::npos);
  };
  mentions(setup_error("topagg:sigma=1,epsilon=2"), "sigma or epsilon");
  mentions(setup_error("topagg:epsilon=2"), "number of steps");
  mentions(setup_error("topagg:sigma=1", {.rate = 0.5}), "replacing");
  mentions(setup_error("topagg:sigma=1", {.rate = 0, .replaced = false}), "rate");
  mentions(setup_error("topagg:sigma=1", {.voters = 0}), "voters");
  mentions(setup_error("topagg:sigma=1", {}, {.dense_layers = "fc"}), "without noise");
  mentions(setup_error("topagg:sigma=1,clip=5"), "vote=clip");
  mentions(setup_error("topagg:sigma=1,threshold=5,output=votes"), "output=sign");
  mentions(setup_error("topagg:sigma=1,bound=ternary,output=votes"), "ternary");
  mentions(setup_error("topagg:sigma=1,bound=ternary", {.rate = 0.5, .replaced = false}),
           "ternary");
  Context context;
  ParameterStore store;
  store.add("fc.weight", {4, 4}, constant_init(0));
  store.add_buffer("bn1.running_mean", {4}, DType::f32, 0);
  store.finalize(1);
  mentions(input_error([&] { (void)make_reducer(parse_compress("topagg:sigma=1"), {}, store); }),
           "bn1.running_mean");
}

TEST_CASE("topagg: without noise an accountant says infinity, and the ternary bound is smaller") {
  Context context;
  Voted net;
  const auto spent = [&](const std::string& text) {
    const auto reducer = make_reducer(parse_compress(text), {}, net.store);
    reducer->accountant()->count();
    return reducer->accountant()->spent().epsilon;
  };
  CHECK(std::isinf(spent("topagg")));
  const double gaussian = spent("topagg:sigma=60,threshold=30");
  CHECK(spent("topagg:sigma=60,threshold=30,bound=ternary") < 0.95 * gaussian);
}

}  // namespace
}  // namespace heddle
