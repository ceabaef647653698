// Exchange in two levels: within hosts and between them.
#include <doctest/doctest.h>

#include <cmath>
#include <mutex>

#include "compress/compressed_reducer.h"
#include "core/kernels.h"
#include "optim/host_levels.h"
#include "tests/learner_net.h"

using namespace heddle;

namespace {

using Hosts = std::vector<int>;
constexpr int64_t kRows = 64, kColumns = 40, kSmall = 50;

// Fills a gradient of a rank with multiples of 1/64, so that sums are exact in any order.
void fill_exactly(Parameter& p, int64_t step, int rank) {
  const Philox rng(11, static_cast<uint64_t>(step * 100 + rank));
  for (int64_t i = 0; i < p.size(); ++i)
    p.grad.data<float>()[i] =
        std::round(64 * rng.normal(static_cast<uint64_t>(i))) / 64 * (p.size() == kSmall ? 2 : 1);
}

struct Outcome {
  std::vector<float> weights;
  int64_t sent = 0, between = 0, within = 0, dense = 0;  // bytes
  std::vector<float> residuals;                          // the sum over the ranks
};

// Trains two parameters on the gradients of 4 ranks, some steps densely; `hosts` says which ranks
// form a host. As two ranks, each takes half the sum of the gradients of one host's ranks.
std::vector<Outcome> run(int p, const Hosts& hosts, const std::string& spec, bool levels) {
  std::vector<Outcome> out(static_cast<size_t>(p));
  std::mutex mutex;
  std::vector<float> residuals(static_cast<size_t>(kRows * kColumns));
  expect_none(run_ranks(p, [&](Communicator& comm) {
    ParameterStore store;
    store.add("w", {kRows, kColumns}, constant_init(0));
    store.add("v", {kSmall}, constant_init(0));
    store.finalize(1);
    std::unique_ptr<Reducer> reducer;
    if (!spec.empty())
      reducer = make_reducer(parse_compress(spec), {.seed = 5, .min_compress = 100}, store);
    DataParallelOptimizer optimizer(
        store, make_sgd({.momentum = 0.5}), comm, {},
        {.bucket_bytes = 1000, .compress_start = 1, .hosts = levels ? hosts : Hosts{}},
        std::move(reducer));
    const Tensor part = Tensor::zeros(Shape{kRows * kColumns});
    for (int64_t step = 0; step < 5; ++step) {
      optimizer.begin_step(0.5);
      for (Parameter& each : store.parameters()) {
        each.next_beta();
        fill_exactly(each, step, comm.rank());
        if (!levels) {
          fill(each.grad, 0);
          const Tensor copy = each.grad.clone();
          for (int r = 0; r < static_cast<int>(hosts.size()); ++r)
            if (hosts[static_cast<size_t>(r)] == comm.rank()) {
              fill_exactly(each, step, r);
              axpy(1, each.grad, copy);
            }
          each.grad.copy_from(copy);
          scale(each.grad, static_cast<float>(p) / static_cast<float>(hosts.size()));
        }
      }
      for (Parameter& each : store.parameters()) optimizer.ready(each);
      for (Parameter& each : store.parameters()) optimizer.weights_free(each);
      optimizer.finish_step();
    }
    optimizer.check_replicas();
    const auto totals = optimizer.totals();
    std::lock_guard lock(mutex);
    Outcome& mine = out[static_cast<size_t>(comm.rank())];
    mine.weights = store.values().to_vector();
    mine.sent = totals.traffic.sent;
    mine.between = totals.compressed_sent + totals.dense_sent;
    mine.dense = optimizer.dense_bytes();
    const auto& entries = optimizer.ledger().entries();
    const auto within = entries.find({"within hosts", PayloadKind::values});
    if (within != entries.end()) mine.within = within->second.sent;
    CHECK(optimizer.ledger().total().sent == comm.total_traffic().sent);
    for (const auto& [name, m] : optimizer.named_state())
      if (name == "residual.w") {
        const std::vector<float> values = m.to_vector();
        for (size_t i = 0; i < values.size(); ++i) residuals[i] += values[i];
      }
  }));
  for (Outcome& each : out) each.residuals = residuals;
  return out;
}

}  // namespace

TEST_CASE("hosts: as many ranks with the sums of their hosts, bit for bit, in every algorithm") {
  for (const char* spec :
       {"", "none", "bf16", "topk:density=0.1", "randomk:density=0.1", "scalecom:rate=10,beta=0.5",
        "scalecom:rate=10,values=bf16", "qsgd:bits=4,bucket=64", "powersgd:rank=2",
        "adacomp:bin=20", "fp16", "scalecom:rate=auto"})
    for (const Hosts& hosts : {Hosts{0, 0, 1, 1}, Hosts{0, 1, 0, 1}, Hosts{0, 0, 0, 1}}) {
      CAPTURE(std::string(spec));
      CAPTURE(hosts[1]);
      const auto two = run(2, hosts, spec, false);
      const auto four = run(4, hosts, spec, true);
      for (const Outcome& each : four) CHECK(each.weights == two[0].weights);
      // The same bytes between hosts: those of two ranks; the other ranks send within them only.
      CHECK(four[0].between == two[0].between);
      CHECK(four[hosts[1] == 1 ? 1 : hosts[2] == 1 ? 2 : 3].between == two[1].between);
      CHECK(four[hosts[1] == 1 ? 2 : 1].between == 0);
      CHECK(four[0].sent > four[0].between);
      CHECK(four[0].dense == two[0].dense);
      // Residuals are the hosts', at the scale of sums instead of halves.
      std::vector<float> doubled = two[0].residuals;
      for (float& x : doubled) x *= 2;
      CHECK(four[0].residuals == doubled);
    }
}

TEST_CASE("hosts: bytes are those of the formula") {
  const auto four = run(4, {0, 0, 1, 1}, "", true);
  const int64_t n = (kRows * kColumns + kSmall) * 4, steps = 5;
  // Between: a ring all-reduce of two, 2 n (H - 1) / H. Within: the sum, and a copy to the other.
  CHECK(four[0].between == doctest::Approx(static_cast<double>(steps * n)).epsilon(0.01));
  CHECK(four[0].dense == n);
  CHECK(four[0].within == doctest::Approx(static_cast<double>(2 * steps * n)).epsilon(0.01));
  CHECK(four[1].within == doctest::Approx(static_cast<double>(steps * n)).epsilon(0.01));
  CHECK(four[1].between == 0);
}

TEST_CASE("hosts: replicas agree under overlap, clipping and accumulation; threads of any layout") {
  for (const Hosts& hosts : {Hosts{0, 0, 1, 1}, Hosts{0, 1, 2, 0}, Hosts{0, 1, 1, 1}})
    for (const double clip : {0.0, 0.2}) {
      RunOptions o{.batch = 16, .steps = 6, .accumulate = 2, .compress = "scalecom:rate=10"};
      o.parallel = {.bucket_bytes = 2000, .compress_start = 2, .local_clip = clip, .hosts = hosts};
      const auto on = train_ranks(4, o);
      for (const auto& values : on) CHECK(values == on[0]);
      o.parallel.overlap = false;
      CHECK(train_ranks(4, o)[2] == on[0]);
      o.compress = "";
      o.parallel.compress_start = 0;
      const auto dense = train_ranks(4, o)[0];
      o.parallel.hosts = {};
      CHECK(distance(dense, train_ranks(4, o)[0]) < 1e-5);
    }
}

TEST_CASE("hosts: what is not finite on any rank is applied on none and costs no residual") {
  for (const char* spec : {"", "topk:density=0.1", "scalecom:rate=10", "powersgd:rank=1"})
    for (int culprit = 0; culprit < 4; ++culprit)
      for (const OnNonfinite rule : {OnNonfinite::bucket, OnNonfinite::step}) {
        CAPTURE(spec);
        CAPTURE(culprit);
        std::mutex mutex;
        std::vector<double> applied(2000), given(2000), kept(2000);
        expect_none(run_ranks(4, [&](Communicator& comm) {
          ParameterStore store;
          Parameter& w = store.add("w", {40, 50}, constant_init(0));
          Parameter& v = store.add("v", {50}, constant_init(0));
          Parameter& u = store.add("u", {10}, constant_init(0));  // in the bucket of v
          store.finalize(1);
          std::unique_ptr<Reducer> reducer;
          if (*spec != 0)
            reducer = make_reducer(parse_compress(spec), {.min_compress = 100}, store);
          DataParallelOptimizer optimizer(
              store, make_sgd({}), comm, {.on_nonfinite = rule},
              {.bucket_bytes = 100, .hosts = {0, 0, 1, 1}, .control_words = true},
              std::move(reducer));
          for (int64_t step = 0; step < 4; ++step) {
            optimizer.set_control(1, static_cast<float>(comm.rank()));
            optimizer.begin_step(4);  // undoes the mean over four ranks
            for (Parameter* each : {&u, &v, &w}) {
              each->next_beta();
              const Philox rng(3, static_cast<uint64_t>(step * 10 + comm.rank()));
              for (int64_t i = 0; i < each->size(); ++i)
                each->grad.data<float>()[i] = rng.normal(static_cast<uint64_t>(i));
            }
            const bool bad = step == 2;  // in another bucket than w, which is sent
            if (bad && comm.rank() == culprit) v.grad.data<float>()[7] = NAN;
            {
              std::lock_guard lock(mutex);
              for (int64_t i = 0; i < w.size() && !(bad && rule == OnNonfinite::step && *spec == 0);
                   ++i)
                given[static_cast<size_t>(i)] += static_cast<double>(w.grad.data<float>()[i]);
            }
            for (Parameter* each : {&u, &v, &w}) optimizer.ready(*each);
            for (Parameter* each : {&u, &v, &w}) optimizer.weights_free(*each);
            const StepReport report = optimizer.finish_step();
            if (report.skipped != (bad && rule == OnNonfinite::step)) throw Error("skipped or not");
            CHECK(optimizer.control(1) == 6);
          }
          CHECK(optimizer.totals().rejected == (*spec != 0 ? 1 : 0));  // on every rank of a host
          for (const float x : v.value.to_vector())
            if (!std::isfinite(x)) throw Error("a NaN was applied");
          optimizer.check_replicas();
          std::lock_guard lock(mutex);
          if (comm.rank() == 0)
            for (int64_t i = 0; i < w.size(); ++i)
              applied[static_cast<size_t>(i)] = -static_cast<double>(w.value.data<float>()[i]);
          for (const auto& [name, m] : optimizer.named_state())
            if (name == "residual.w") {
              const std::vector<float> values = m.to_vector();
              for (size_t i = 0; i < values.size(); ++i) kept[i] += static_cast<double>(values[i]);
            }
        }));
        // Conservation: what was applied and what residuals keep is what the ranks had.
        double worst = 0;
        for (size_t i = 0; i < given.size(); ++i)
          worst = std::max(worst, std::abs(applied[i] + kept[i] - given[i]));
        CHECK(worst < 1e-4);
      }
}

TEST_CASE("hosts: an exchange that takes longer than the timeout of a message is waited for") {
  const NetModel net = parse_net("hosts=2;host=1gbit;between=80kbit");  // one second for a bucket
  expect_none(run_ranks(4,
                        [](Communicator& comm) {
                          ParameterStore store;
                          Parameter& w = store.add("w", {50, 50}, constant_init(0));
                          store.finalize(1);
                          DataParallelOptimizer optimizer(
                              store, make_sgd({}), comm, {},
                              {.broadcast = false, .check_every = 0, .hosts = comm.hosts()});
                          make_step(optimizer, w, 1);
                        },
                        {.net = net, .timeout_s = 0.3}));
  // But a rank that never comes is noticed, by another host.
  const auto errors =
      run_ranks(4,
                [](Communicator& comm) {
                  HostLevels levels(comm, {0, 0, 1, 1});
                  ParameterStore store;
                  Parameter& w = store.add("w", {50}, constant_init(0));
                  store.finalize(1);
                  Ledger ledger;
                  const GradientBucket bucket{.flat = store.grads(), .parameters = {&w}};
                  if (comm.rank() == 1) return;
                  levels.sum_within(bucket, ledger);
                  if (levels.first()) levels.between().all_reduce(bucket.flat);
                  levels.share(bucket, true, ledger);
                },
                {.timeout_s = 0.3});
  CHECK(errors[1].empty());
  for (const int rank : {0, 2, 3}) CHECK(!errors[static_cast<size_t>(rank)].empty());
}

TEST_CASE("hosts: impossible choices are refused") {
  expect_none(run_ranks(4, [](Communicator& comm) {
    CHECK_THROWS_AS(HostLevels(comm, {0, 0, 0, 0}), InputError);
    CHECK_THROWS_AS(HostLevels(comm, {0, 1}), InputError);
    ParameterStore store;
    store.add("w", {64, 40}, constant_init(0));
    store.finalize(1);
    const auto refused = [&](const DataParallelOptions& parallel) {
      CHECK_THROWS_AS(DataParallelOptimizer(store, make_sgd({}), comm, {}, parallel,
                                            make_reducer(parse_compress("topk"), {}, store)),
                      InputError);
    };
    refused({.hosts = {0, 0, 1, 1}, .shadow_every = 10});
    refused({.hosts = {0, 0, 1, 1}, .planner = {.every = 10}});
    refused({.hosts = {0, 0, 1, 1}, .chooser = {.every = 10}});
  }));
}
