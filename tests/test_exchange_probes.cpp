// Exchange probes change no bit, and their own time and bytes are not counted.
#include <doctest/doctest.h>

#include "core/kernels.h"
#include "core/trace.h"
#include "tests/learner_net.h"

using namespace heddle;

TEST_CASE("learners: without probes the same bits, and totals of zero") {
  for (const char* spec : {"", "scalecom:rate=10,beta=0.3"}) {
    CAPTURE(spec);
    RunOptions o{.batch = 8, .steps = 6, .compress = spec};
    o.parallel = {.bucket_bytes = 2000, .compress_start = 2};
    const auto watched = train_ranks(3, o);
    o.parallel.probes = false;
    CHECK(train_ranks(3, o) == watched);
  }
  expect_none(run_ranks(2, [](Communicator& comm) {
    ParameterStore store;
    Parameter& w = store.add("w", {50, 40}, constant_init(0));
    store.finalize(1);
    DataParallelOptimizer optimizer(store, make_sgd({}), comm, {}, {.probes = false});
    make_step(optimizer, w, 1.0f);
    CHECK(optimizer.totals().dense_steps == 0);
    CHECK(optimizer.totals().exchange_s == 0);
    CHECK(optimizer.take_quality().empty());
    CHECK_THROWS_AS(
        DataParallelOptimizer(store, make_sgd({}), comm, {}, {.probes = false, .shadow_every = 1}),
        InputError);
    const auto solo = make_solo();
    CHECK_THROWS_AS(DataParallelOptimizer(store, make_sgd({}), *solo, {}, {.shadow_every = 1}),
                    InputError);
    CHECK_THROWS_AS(DataParallelOptimizer(store, make_sgd({}), *solo, {}, {.local_clip = 1}),
                    InputError);
  }));
}

TEST_CASE("learners: a quality meter changes no bit, and is not counted as compressed traffic") {
  for (const char* spec : {"scalecom:rate=10,beta=0.3", "qsgd:bits=4,bucket=64"}) {
    RunOptions o{.batch = 8, .steps = 6, .compress = spec};
    o.parallel = {.bucket_bytes = 2000, .compress_start = 2};
    const auto plain = train_ranks(4, o);
    o.parallel.shadow_every = 2;
    CHECK(train_ranks(4, o) == plain);
  }
  expect_none(run_ranks(2, [&](Communicator& comm) {
    const auto run = [&](int64_t every) {
      ParameterStore store;
      Parameter& w = store.add("w", {50, 40}, constant_init(0));
      store.finalize(1);
      DataParallelOptimizer optimizer(
          store, make_sgd({}), comm, {}, {.shadow_every = every},
          make_reducer(parse_compress("scalecom:rate=10"), {.min_compress = 100}, store));
      std::vector<size_t> measured;
      for (int step = 0; step < 5; ++step) {
        make_step(optimizer, w, static_cast<float>(comm.rank()));
        measured.push_back(optimizer.take_quality().size());
      }
      CHECK(measured == (every == 0 ? std::vector<size_t>(5) : std::vector<size_t>{0, 1, 0, 1, 0}));
      return optimizer.totals();
    };
    const auto without = run(0), with = run(2);
    CHECK(with.compressed_sent == without.compressed_sent);
    CHECK(with.traffic.sent > without.traffic.sent);
  }));
}

TEST_CASE("learners: the time of exchanges excludes the quality meter") {
  constexpr double kLatency = 0.02;
  constexpr int kSteps = 3;
  ThreadsOptions slow{.timeout_s = 30};
  slow.net.latency_s = kLatency;
  const auto body = [](Communicator& comm) {
    ParameterStore store;
    Parameter& w = store.add("w", {50, 40}, constant_init(0));
    store.finalize(1);
    DataParallelOptimizer optimizer(
        store, make_sgd({}), comm, {}, {.shadow_every = 1},
        make_reducer(parse_compress("scalecom:rate=10"), {.min_compress = 100}, store));
    const double begin = steady_seconds();
    for (int step = 0; step < kSteps; ++step) make_step(optimizer, w, 1.0f);
    const double all = steady_seconds() - begin;
    // A measurement waits for two sums, each of two messages one after the other: however slow
    // the machine, at least this much of the time was the meter's.
    const double metered = kSteps * 2 * 2 * kLatency * 0.99;
    const double exchanges = optimizer.totals().exchange_s;
    if (exchanges > all - metered) throw Error(concat(exchanges, " s of ", all));
  };
  expect_none(run_ranks(2, body, slow));
}
