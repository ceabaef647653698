#include <doctest/doctest.h>

#include "core/kernels.h"
#include "core/trace.h"
#include "tests/planner_helpers.h"

namespace heddle {
namespace {

using TimesOfBuckets = std::vector<BucketTimes>;
const double kMargin = 0.02;

ExchangeChoice choose(double backward_s, const TimesOfBuckets& dense, const TimesOfBuckets& packed,
                      double latency_s = 0) {
  return choose_exchange({backward_s, dense}, {backward_s, packed}, latency_s, kMargin);
}

}  // namespace

TEST_CASE("exchange choice: the worker exchanges one bucket after the other") {
  CHECK(exchanges_end({}) == 0);
  CHECK(exchanges_end({{1, 2, 3}, {4, 1, 1}}) == doctest::Approx(8));    // waits for the first
  CHECK(exchanges_end({{1, 2, 3}, {10, 1, 1}}) == doctest::Approx(12));  // waits for backward
}

TEST_CASE("exchange choice: dense unless compression shortens the step") {
  const TimesOfBuckets fast = {{1, 0, 0.1}, {2, 0, 0.1}}, slow = {{1, 0, 10}, {2, 0, 10}};
  const TimesOfBuckets packed = {{1, 0.5, 0.01}, {2, 0.5, 0.01}};
  auto choice = choose(2, fast, packed);
  CHECK(choice.compressed == std::vector<bool>{false, false});
  CHECK(choice.tried());
  CHECK(choice.dense_s == doctest::Approx(2.1));
  CHECK(choice.compressed_s == doctest::Approx(2.51));
  CHECK(choice.chosen_s == choice.dense_s);
  choice = choose(2, slow, packed);
  CHECK(choice.compressed == std::vector<bool>{true, true});
  CHECK(choice.tried());
  CHECK(choice.dense_s == doctest::Approx(21));
  CHECK(choice.chosen_s == choice.compressed_s);
  // Equal, or better by less than the margin: the buckets stay dense.
  CHECK(choose(2, packed, packed).compressed == std::vector<bool>{false, false});
  const TimesOfBuckets hardly = {{1, 0, 0.1}, {2, 0, 0.09}};
  CHECK(choose(2, fast, hardly).compressed == std::vector<bool>{false, false});
  // All is hidden behind backward.
  CHECK(choose(50, slow, packed).compressed == std::vector<bool>{false, false});
  CHECK_THROWS_AS(choose(1, fast, {}), InputError);
}

TEST_CASE("exchange choice: hidden buckets stay dense, exposed ones are compressed") {
  // The first bucket's dense exchange ends before the second bucket is ready; its compressed one
  // ends later and delays the second, for which all ranks wait.
  const TimesOfBuckets dense = {{1, 0, 3}, {10, 0, 6}}, packed = {{1, 9.5, 0.5}, {10, 1, 1}};
  auto choice = choose(10, dense, packed);
  CHECK(choice.compressed == std::vector<bool>{false, true});
  CHECK_FALSE(choice.tried());
  CHECK(choice.dense_s == doctest::Approx(16));
  CHECK(choice.compressed_s == doctest::Approx(13));
  CHECK(choice.chosen_s == doctest::Approx(12));
  // The same mixture, but encoding the first prolongs backward and so delays the second; if only
  // the second is compressed, backward is as short as if nothing is.
  const ExchangeTrial later{13, {{1, 9.5, 0.5}, {13, 1, 1}}};
  choice = choose_exchange({10, dense}, later, 0, kMargin);
  CHECK(choice.compressed == std::vector<bool>{false, true});
  CHECK(choice.compressed_s == doctest::Approx(15));
  CHECK(choice.chosen_s == doctest::Approx(12));
  // Encoding during backward makes it longer, and half of the encoding half as much longer.
  const TimesOfBuckets early = {{1, 1, 1}, {1, 1, 1}};
  choice = choose_exchange({10, {{1, 0, 20}, {1, 0, 2}}}, {12, early}, 0, kMargin);
  CHECK(choice.compressed == std::vector<bool>{true, false});
  CHECK(choice.chosen_s == doctest::Approx(11));
  // But never shorter, whatever disturbed a trial.
  const TimesOfBuckets hidden = {{1, 0.1, 0.1}, {1, 0.1, 0.1}};
  choice = choose_exchange({103, hidden}, {100, hidden}, 0, kMargin);
  CHECK(choice.compressed == std::vector<bool>{false, false});
  CHECK(choice.compressed_s == doctest::Approx(103));
}

TEST_CASE("exchange choice: neighbours are joined where that saves latencies") {
  // Three small buckets after backward: nine latencies of 0.5, of which six are saved.
  const TimesOfBuckets dense(3, {10, 0, 30, 4}), packed(3, {10, 0.1, 1.6, 3});
  auto choice = choose(10, dense, packed, 0.5);
  CHECK(choice.compressed == std::vector<bool>{true, true, true});
  CHECK(choice.joined == std::vector<bool>{false, true, true});
  CHECK_FALSE(choice.tried());
  CHECK(choice.chosen_s == doctest::Approx(10 + 3 * 1.7 - 6 * 0.5));
  // Not where the first would have to wait for the last.
  const TimesOfBuckets apart = {{1, 0.1, 4, 3}, {9, 0.1, 1.6, 3}};
  CHECK(choose(2, {{1, 0, 90, 4}, {9, 0, 90, 4}}, apart, 0.5).joined ==
        std::vector<bool>{false, false});
  // Nor buckets of different kinds, nor without a gain.
  const TimesOfBuckets mixed = {{1, 0, 3, 3}, {10, 0, 6, 3}},
                       other = {{1, 9.5, 0.5, 3}, {10, 1, 1, 3}};
  choice = choose(10, mixed, other, 0.1);
  CHECK(choice.compressed == std::vector<bool>{false, true});
  CHECK(choice.joined == std::vector<bool>{false, false});
  CHECK(choose(10, dense, packed, 1e-4).joined == std::vector<bool>{false, false, false});
  // Compressed buckets cost more than dense ones if apart, but not if joined: each saves eight
  // latencies then.
  choice = choose(1, TimesOfBuckets(20, {1, 0, 7.6, 6}), TimesOfBuckets(20, {1, 0, 8.1, 8}), 1);
  CHECK(choice.dense_s < choice.compressed_s);
  CHECK(std::ranges::count(choice.compressed, true) == 20);
  CHECK(std::ranges::count(choice.joined, true) == 19);
  CHECK(choice.chosen_s == doctest::Approx(1 + 20 * 8.1 - 19 * 8));
}

namespace {

struct ChosenRun {
  std::vector<ExchangeChoice> choices;
  std::vector<int64_t> sent, calls;  // by step
  std::vector<double> residual;      // its squared norm, after each step
  Values values;                     // after step 30
};

// Learners on a modelled network, in virtual time; backward takes none.
std::vector<ChosenRun> train_choosing(double bytes_per_s, double latency_s, int64_t steps,
                                      double trial_cost = 0.01) {
  constexpr int64_t start = 3;
  std::vector<ChosenRun> runs(2);
  ThreadsOptions threads{.timeout_s = 30};
  threads.net = {.bytes_per_s = bytes_per_s, .latency_s = latency_s, .virtual_time = true};
  const auto body = [&](Communicator& comm) {
    ChosenRun& run = runs[static_cast<size_t>(comm.rank())];
    PlannedModel model;
    DataParallelOptions parallel{.bucket_bytes = 16 << 10, .compress_start = start};
    parallel.chooser = {.every = 30, .trial = 4, .margin = latency_s > 0.1 ? kMargin : 0.5};
    parallel.chooser.tie = 0;  // two rounds, whatever the result
    parallel.chooser.trial_cost = trial_cost;
    parallel.chooser.clock = [] { return 0.0; };
    parallel.control_words = true;
    parallel.chooser.on_choice = [&](const ExchangeChoice& c) { run.choices.push_back(c); };
    auto reducer = reducer_of("scalecom:rate=20", model.store);
    Reducer& state = *reducer;
    DataParallelOptimizer optimizer(model.store, make_sgd({}), comm, {}, parallel,
                                    std::move(reducer));
    for (int64_t step = 0; step < steps; ++step) {
      model.fill(static_cast<uint64_t>(comm.rank()), step, 0);
      optimizer.begin_step(0.1);
      optimizer.set_control(0, static_cast<float>(step + comm.rank()));
      for (Parameter& p : model.store.parameters()) {
        p.written = true;
        optimizer.ready(p);
        optimizer.weights_free(p);
      }
      (void)optimizer.finish_step();
      CHECK(optimizer.control(0) == static_cast<float>(2 * step + 1));
      run.sent.push_back(optimizer.totals().compressed_sent + optimizer.totals().dense_sent);
      run.calls.push_back(comm.total_traffic().calls);
      if (step == 29) run.values = model.store.values().to_vector();
      run.residual.push_back(0);
      for (const auto& [name, m] : state.named_state()) run.residual.back() += squared_norm(m);
    }
  };
  expect_none(run_ranks(2, body, threads));
  for (ChosenRun& run : runs)
    for (size_t i = run.sent.size(); i-- > 1;) {
      run.sent[i] -= run.sent[i - 1];
      run.calls[i] -= run.calls[i - 1];
    }
  return runs;
}

}  // namespace

TEST_CASE("exchange choice: dense on a fast network, compressed on a slow one, on all ranks") {
  for (const bool slow : {false, true}) {
    CAPTURE(slow);
    const auto runs = train_choosing(slow ? 1e5 : 1e12, 1e-6, 45);
    REQUIRE(runs[0].choices.size() == 1);
    REQUIRE(runs[1].choices.size() == 1);
    CHECK(runs[0].values == runs[1].values);
    const ExchangeChoice& first = runs[0].choices[0];
    CHECK(first.step == 3 + 2 * 4);
    CHECK(first.compressed == runs[1].choices[0].compressed);
    const int64_t dense = runs[0].sent[0], at_last = runs[0].sent[20];
    for (const size_t i : {1, 2, 3, 4, 7, 8}) CHECK(runs[0].sent[i] == dense);  // and two trials
    for (const size_t i : {6, 10}) CHECK(runs[0].sent[i] < dense / 2);          // the others
    CHECK(std::ranges::count(first.compressed, true) == (slow ? std::ssize(first.compressed) : 0));
    CHECK(at_last == (slow ? runs[0].sent[10] : dense));
    const std::vector<double>& residual = runs[0].residual;
    CHECK(residual[6] > 0);
    for (const size_t i : {7, 8}) CHECK(residual[i] == residual[6]);  // it waits during a trial,
    CHECK(residual[10] > residual[6]);
    CHECK((residual[11] > 0) == slow);  // and is sent once dense is chosen
  }
}

TEST_CASE("exchange choice: at high latency buckets are joined, measured, and kept") {
  constexpr double kCheap = 1e6;  // trials are repeated as soon as it is time
  const auto apart = train_choosing(1e12, 1e-6, 50, kCheap);
  const auto runs = train_choosing(1e12, 0.5, 50, kCheap);
  REQUIRE(runs[0].choices.size() == 1);
  const ExchangeChoice& choice = runs[0].choices[0];
  const size_t n = choice.joined.size();
  REQUIRE(n > 2);
  CHECK(choice.step == 3 + 3 * 4);
  CHECK(std::ranges::count(choice.compressed, true) == 0);
  CHECK(std::ranges::count(choice.joined, true) == static_cast<int64_t>(n) - 1);
  CHECK(choice.joined == runs[1].choices[0].joined);
  CHECK_FALSE(choice.dropped);
  CHECK(choice.dense_s ==
        doctest::Approx(static_cast<double>(n)).epsilon(0.01));  // two messages each
  CHECK(choice.chosen_s == doctest::Approx(1).epsilon(0.05));
  CHECK(choice.found_s == doctest::Approx(1).epsilon(0.01));
  CHECK(runs[0].calls[4] == static_cast<int64_t>(n));
  for (const size_t step : {13, 20, 44}) CHECK(runs[0].calls[step] == 1);
  CHECK(runs[0].calls[46] == static_cast<int64_t>(n));  // tried again, apart
  // The sums are the same.
  CHECK(runs[0].values == runs[1].values);
  CHECK(runs[0].values == apart[0].values);
}

TEST_CASE("exchange choice: compressed buckets that are exchanged as one") {
  const auto runs = train_choosing(1e4, 0.2, 30);
  REQUIRE(runs[0].choices.size() == 1);
  const ExchangeChoice& choice = runs[0].choices[0];
  CHECK_FALSE(choice.dropped);
  CHECK(std::ranges::count(choice.compressed, true) == std::ssize(choice.compressed));
  CHECK(std::ranges::count(choice.joined, true) == std::ssize(choice.joined) - 1);
  CHECK(choice.chosen_s >= 3 * 0.2);  // two collectives' latencies at least
  CHECK(choice.found_s < choice.compressed_s / 1.5);
  CHECK(runs[0].calls[20] == 2);  // indices and values
  CHECK(runs[0].values == runs[1].values);
}

namespace {

// Data of a chooser on a single rank.
struct Alone {
  PlannedModel model;
  std::unique_ptr<Reducer> owner = reducer_of("scalecom:rate=20", model.store);
  CompressedReducer& reducer = dynamic_cast<CompressedReducer&>(*owner);
  std::unique_ptr<Communicator> solo = make_solo();
  LayerPlanner::Collective collective = [this](const auto&, const auto& call) { call(*solo); };
};

}  // namespace

TEST_CASE("exchange choice: a choice no better than the trials is dropped") {
  Context context;
  Alone alone;
  CompressedReducer& reducer = alone.reducer;
  const TimesOfBuckets dense = {{1, 0, 3}, {10, 0, 6}}, packed = {{1, 9.5, 0.5}, {10, 1, 1}};
  // The time of the mixture's second bucket, where 2 is expected; and how many times longer a whole
  // turn of either kind took because of other work.
  const std::vector<std::array<double, 3>> cases = {{5, 1, 1}, {1.5, 1, 1}, {5, 9, 1}, {1.5, 1, 9}};
  for (const auto& [took, slow_dense, slow_packed] : cases) {
    double now = 0;
    std::vector<ExchangeChoice> choices;
    ExchangeChooserOptions options{.every = 100, .trial = 4};
    options.clock = [&] { return now; };
    options.on_choice = [&](const ExchangeChoice& c) { choices.push_back(c); };
    ExchangeChooser chooser(reducer, {{"layer1.weight"}, {"layer0.weight"}}, options, 0);
    int64_t step = 0;
    const auto trial = [&](const TimesOfBuckets& times, int steps, double slow = 1) {
      for (int i = 0; i < steps; ++i) {
        now = 0;
        chooser.begin_step();
        for (size_t b = 0; b < times.size(); ++b) {
          now = slow * times[b].ready_s;
          chooser.ready(b);
          chooser.exchanged(b, slow * times[b].code_s, slow * times[b].comm_s, 0);
        }
        now = slow * 10;
        chooser.backward_ended();
        chooser.finish_step(++step, alone.collective);
      }
    };
    trial(dense, 2, slow_dense);
    trial(packed, 2);
    trial(dense, 2);
    CHECK(choices.empty());
    trial(packed, 2, slow_packed);
    CHECK(choices.empty());
    CHECK_FALSE(reducer.compresses("layer1.weight"));  // the mixture is being measured
    CHECK(reducer.compresses("layer0.weight"));
    trial({dense[0], {10, 1, took - 1}}, 4);
    REQUIRE(choices.size() == 1);
    CHECK(choices[0].chosen_s == doctest::Approx(12));
    CHECK(choices[0].found_s == doctest::Approx(10 + took));
    const bool dropped = took > 3;  // all compressed takes 13
    CHECK(choices[0].dropped == dropped);
    CHECK(choices[0].used_s() == doctest::Approx(dropped ? 13 : 11.5));
    CHECK(reducer.compresses("layer1.weight") == dropped);
    CHECK(reducer.compresses("layer0.weight"));
  }
}

TEST_CASE("exchange choice: a near tie is tried for longer") {
  Context context;
  Alone alone;
  CompressedReducer& reducer = alone.reducer;
  // The step ends at 16 if all is dense, and at 12 or 15 if compressed; each round is two steps of
  // each.
  for (const auto& [last_s, steps] : {std::pair{1.0, 8}, {4.0, 32}}) {
    double now = 0;
    int64_t chosen_at = 0;
    ExchangeChooserOptions options{.every = 100, .trial = 4};
    options.clock = [&] { return now; };
    options.on_choice = [&](const ExchangeChoice& choice) { chosen_at = choice.step; };
    ExchangeChooser chooser(reducer, {{"layer1.weight"}, {"layer0.weight"}}, options, 0);
    for (int64_t step = 1; step <= 40; ++step) {
      const double comm_s = reducer.compresses("layer0.weight") ? last_s : 5;
      now = 0;
      chooser.begin_step();
      for (const size_t bucket : {0, 1}) {
        now = bucket == 0 ? 1 : 10;
        chooser.ready(bucket);
        chooser.exchanged(bucket, 1, bucket == 0 ? 3 : comm_s, 0);
      }
      chooser.backward_ended();
      now = 11 + comm_s;
      chooser.finish_step(step, alone.collective);
    }
    CHECK(chosen_at == steps);
    CHECK(reducer.compresses("layer0.weight"));
  }
}

TEST_CASE("exchange choice: the rest of a step counts, too") {
  // Compressed exchanges end earlier, but the step does not.
  const TimesOfBuckets dense = {{1, 0, 2}, {10, 0, 3}}, packed = {{1, 0.1, 1}, {10, 0.1, 1}};
  ExchangeTrial plain{.backward_s = 10, .buckets = dense},
      coded{.backward_s = 10, .buckets = packed};
  CHECK(std::ranges::count(choose_exchange(plain, coded, 0, kMargin).compressed, true) > 0);
  plain.rest_s = 1;
  coded.rest_s = 5;
  const ExchangeChoice choice = choose_exchange(plain, coded, 0, kMargin);
  CHECK(std::ranges::count(choice.compressed, true) == 0);
  CHECK(choice.dense_s == doctest::Approx(14));
  CHECK(choice.compressed_s == doctest::Approx(16.1));
}

}  // namespace heddle
