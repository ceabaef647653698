#include <doctest/doctest.h>

#include "core/trace.h"
#include "tests/planner_helpers.h"

namespace heddle {
namespace {

using Buckets = std::vector<BucketTimes>;
const double kMargin = 0.02;

}  // namespace

TEST_CASE("exchange choice: the worker takes one bucket after the other") {
  CHECK(exchanges_end({}) == 0);
  CHECK(exchanges_end({{1, 2, 3}, {4, 1, 1}}) == doctest::Approx(8));    // waits for the first
  CHECK(exchanges_end({{1, 2, 3}, {10, 1, 1}}) == doctest::Approx(12));  // waits for backward
}

TEST_CASE("exchange choice: dense unless compressed buckets end sooner") {
  const Buckets fast = {{1, 0, 0.1}, {2, 0, 0.1}}, slow = {{1, 0, 10}, {2, 0, 10}};
  const Buckets packed = {{1, 0.5, 0.01}, {2, 0.5, 0.01}};
  auto choice = choose_exchange(2, fast, packed, kMargin);
  CHECK(choice.compressed == std::vector<bool>{false, false});
  CHECK(choice.dense_s == doctest::Approx(2.1));
  CHECK(choice.compressed_s == doctest::Approx(2.51));
  CHECK(choice.chosen_s == choice.dense_s);
  choice = choose_exchange(2, slow, packed, kMargin);
  CHECK(choice.compressed == std::vector<bool>{true, true});
  CHECK(choice.dense_s == doctest::Approx(21));
  CHECK(choice.chosen_s == choice.compressed_s);
  // Equal, or better by less than the margin: bytes stay as they are.
  CHECK(choose_exchange(2, packed, packed, kMargin).compressed == std::vector<bool>{false, false});
  const Buckets hardly = {{1, 0, 0.1}, {2, 0, 0.09}};
  CHECK(choose_exchange(2, fast, hardly, kMargin).compressed == std::vector<bool>{false, false});
  // All is hidden behind backward.
  CHECK(choose_exchange(50, slow, packed, kMargin).compressed == std::vector<bool>{false, false});
  CHECK_THROWS_AS(choose_exchange(1, fast, {}, kMargin), InputError);
}

TEST_CASE("exchange choice: what is hidden anyway stays dense, what is not is compressed") {
  // The first bucket's exchange ends before the second is ready, dense or not; compressing it costs
  // more than it saves. The second is what everybody waits for.
  const Buckets dense = {{1, 0, 3}, {10, 0, 6}}, packed = {{1, 9.5, 0.5}, {10, 1, 1}};
  const auto choice = choose_exchange(10, dense, packed, kMargin);
  CHECK(choice.compressed == std::vector<bool>{false, true});
  CHECK(choice.dense_s == doctest::Approx(16));
  CHECK(choice.compressed_s == doctest::Approx(13));
  CHECK(choice.chosen_s == doctest::Approx(12));
}

namespace {

struct ChosenRun {
  std::vector<ExchangeChoice> choices;
  std::vector<int64_t> sent;  // by step
  Values values;
};

// Learners on a modelled network, in virtual time; backward takes none.
std::vector<ChosenRun> train_choosing(double bytes_per_s, int64_t steps, int64_t start = 3) {
  std::vector<ChosenRun> runs(2);
  ThreadsOptions threads{.timeout_s = 30};
  threads.net = {.bytes_per_s = bytes_per_s, .latency_s = 1e-6, .virtual_time = true};
  const auto body = [&](Communicator& comm) {
    ChosenRun& run = runs[static_cast<size_t>(comm.rank())];
    PlannedModel model;
    DataParallelOptions parallel{.bucket_bytes = 16 << 10, .compress_start = start};
    parallel.chooser = {.every = 30, .trial = 4, .margin = 0.5};
    parallel.chooser.clock = [] { return 0.0; };
    parallel.chooser.on_choice = [&](const ExchangeChoice& c) { run.choices.push_back(c); };
    DataParallelOptimizer optimizer(model.store, make_sgd({}), comm, {}, parallel,
                                    reducer_of("scalecom:rate=20", model.store));
    for (int64_t step = 0; step < steps; ++step) {
      model.fill(static_cast<uint64_t>(comm.rank()), step, 0);
      optimizer.begin_step(0.1);
      for (Parameter& p : model.store.parameters()) {
        p.written = true;
        optimizer.ready(p);
        optimizer.weights_free(p);
      }
      (void)optimizer.finish_step();
      run.sent.push_back(optimizer.totals().compressed_sent + optimizer.totals().dense_sent);
    }
    run.values = model.store.values().to_vector();
  };
  expect_none(run_ranks(2, body, threads));
  for (ChosenRun& run : runs)
    for (size_t i = run.sent.size(); i-- > 1;) run.sent[i] -= run.sent[i - 1];
  return runs;
}

}  // namespace

TEST_CASE(
    "exchange choice: dense on a fast network, compressed on a slow one, on all ranks alike") {
  for (const bool slow : {false, true}) {
    CAPTURE(slow);
    const auto runs = train_choosing(slow ? 1e5 : 1e12, 45);
    REQUIRE(runs[0].choices.size() == 1);
    REQUIRE(runs[1].choices.size() == 1);
    CHECK(runs[0].values == runs[1].values);
    const ExchangeChoice& first = runs[0].choices[0];
    CHECK(first.step == 3 + 2 * 4);
    CHECK(first.compressed == runs[1].choices[0].compressed);
    const int64_t dense = runs[0].sent[0], at_last = runs[0].sent[20];
    for (int i = 1; i < 7; ++i)
      CHECK(runs[0].sent[static_cast<size_t>(i)] == dense);  // and a trial
    CHECK(runs[0].sent[8] < dense / 2);                      // the other one
    CHECK(std::ranges::count(first.compressed, true) == (slow ? std::ssize(first.compressed) : 0));
    CHECK(at_last == (slow ? runs[0].sent[8] : dense));
  }
}

}  // namespace heddle
