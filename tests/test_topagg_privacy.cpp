// TopAgg: what one unit can change, noise, what is counted, and what is refused.
#include <limits>
#include <mutex>

#include "core/error.h"
#include "layers/batchnorm.h"
#include "tests/voted.h"

namespace heddle {
namespace {

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
        most = std::max(most, 3 * l2_distance(one[0][step], other[0][step]));
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
        most = std::max(most, 3 * l2_distance(all[0][step], fewer[0][step]));
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

TEST_CASE("topagg: batch norms must be frozen") {
  Context context;
  for (const bool freeze : {false, true}) {
    ParameterStore store;
    store.freeze([&](const std::string& name) { return freeze && name.starts_with("bn"); });
    const BatchNorm2d norm(store, "bn1", 4);
    store.add("fc.weight", {4, 4}, constant_init(0));
    store.finalize(1);
    const auto make = [&] {
      (void)make_reducer(parse_compress("topagg:sigma=1"), {.voting = {.voters = 4}}, store);
    };
    if (freeze)
      CHECK_NOTHROW(make());
    else
      CHECK_THROWS_WITH_AS(make(), doctest::Contains("bn1.running_mean"), InputError);
  }
}

TEST_CASE("topagg: what cannot protect is refused") {
  const auto mentions = [](const std::string& error, const char* what) {
    CAPTURE(error);
    CHECK(error.find(what) != std::string::npos);
  };
  mentions(setup_error("topagg:sigma=1,epsilon=2"), "sigma or epsilon");
  mentions(setup_error("topagg:epsilon=2"), "number of steps");
  mentions(setup_error("topagg:sigma=1", {.rate = 0.5}), "replaced");
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
