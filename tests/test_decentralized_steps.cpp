// Single steps of learners that talk to neighbours only: when weights change, what is sent of
// weights that are not finite, what a resync recomputes, the consensus, and options that are
// refused.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <mutex>
#include <thread>
#include <vector>

#include "core/context.h"
#include "core/kernels.h"
#include "core/random.h"
#include "optim/decentralized.h"
#include "tests/ranks.h"

using namespace heddle;

namespace {

// Gives the optimizer a gradient of every parameter, and ends the step.
void take_gradients(ParameterStore& store, DecentralizedOptimizer& optimizer,
                    const std::function<void(Parameter&)>& fill_gradient) {
  for (Parameter& p : store.parameters()) {
    fill_gradient(p);
    p.written = true;
    optimizer.ready(p);
    optimizer.weights_free(p);
  }
  (void)optimizer.finish_step();
}

}  // namespace

TEST_CASE("peers: what was posted has run when a step ends, of one rank too") {
  Context context;
  const auto solo = make_solo();
  ParameterStore store;
  store.add("w", {16}, constant_init(1));
  store.finalize(1);
  DecentralizedOptimizer optimizer(store, make_sgd({}), *solo, {}, {});
  std::atomic<bool> ran = false;
  optimizer.begin_step(0.1);
  optimizer.post("slow", [&](Communicator&, Ledger&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    ran = true;
  });
  take_gradients(store, optimizer, [](Parameter& p) { p.grad.fill_zero(); });
  CHECK(ran);
}

TEST_CASE("peers: weights that are not finite are not sent, and end the run after three steps") {
  for (const std::string code : {"none", "qsgd:bits=4", "topk:density=0.1", "dyna"})
    for (const std::string spoilt : {"early", "late"}) {
      CAPTURE(code);
      CAPTURE(spoilt);
      const auto errors = run_ranks(4, [&](Communicator& comm) {
        ParameterStore store;
        store.add("early", {160}, constant_init(1));
        store.add("late", {160}, constant_init(1));
        store.finalize(1);
        DecentralizedOptimizer optimizer(store, make_sgd({}), comm, {},
                                         {.innovation = code, .bucket_bytes = 100});
        for (int step = 0; step < 10; ++step) {
          optimizer.begin_step(0.1);
          if (comm.rank() == 0 && step == 2)
            store.find(spoilt)->value.data<float>()[0] = std::numeric_limits<float>::infinity();
          take_gradients(store, optimizer, [](Parameter& p) { p.grad.fill_zero(); });
          for (const Parameter& p : store.parameters())
            for (const float v : p.value.to_vector())
              if (comm.rank() > 0 && !(std::abs(v) < 2)) throw Error("spoilt by a neighbour");
        }
      });
      CHECK(errors[0].find("weights of rank 0 have not been finite for 3 steps") !=
            std::string::npos);
      for (const std::string& error : errors) {
        CHECK(error.find("spoilt") == std::string::npos);
        CHECK(error != "");
      }
    }
}

TEST_CASE("peers: weights stay as they are until backward has read them") {
  expect_none(run_ranks(2, [](Communicator& comm) {
    ParameterStore store;
    Parameter &first = store.add("first", {100}, constant_init(1)),
              &second = store.add("second", {100}, constant_init(1));
    store.finalize(1);
    DecentralizedOptimizer optimizer(store, make_sgd({}), comm, {}, {.bucket_bytes = 100});
    for (int step = 0; step < 3; ++step) {
      optimizer.begin_step(0.1);
      for (Parameter* p : {&second, &first}) {
        fill(p->grad, static_cast<float>(1 + comm.rank()));
        p->written = true;
        const auto before = p->value.to_vector();
        optimizer.ready(*p);
        optimizer.collective("all jobs", [](Communicator&) {});  // every job so far has run
        CHECK(p->value.to_vector() == before);
        optimizer.weights_free(*p);
        optimizer.collective("all jobs", [](Communicator&) {});
        CHECK(p->value.to_vector() != before);
      }
      (void)optimizer.finish_step();
    }
  }));
}

TEST_CASE("peers: weights that shrink far are no sign of different values") {
  expect_none(run_ranks(4, [](Communicator& comm) {
    ParameterStore store;
    Parameter& p = store.add("p", {100}, uniform_init(1));
    store.finalize(1);
    DecentralizedOptimizer optimizer(store, make_sgd({}), comm, {},
                                     {.innovation = "qsgd:bits=4", .resync = 100});
    for (int step = 0; step < 200; ++step) {  // of x^2 / 4, times 1.1 to 1.4
      optimizer.begin_step(0.5);
      take_gradients(store, optimizer, [&](Parameter& q) {
        q.grad.copy_from(q.value);
        scale(q.grad, 0.5f * (1.1f + 0.1f * static_cast<float>(comm.rank())));
      });
    }
    for (const float x : p.value.to_vector()) CHECK(std::abs(x) < 1e-5);
    CHECK(optimizer.drift() < 1e-5);
  }));
}

TEST_CASE("peers: after a resync the differences are those of the ranks' estimates") {
  std::vector<std::vector<float>> estimates(4);
  std::vector<std::vector<double>> apart(4);
  expect_none(run_ranks(4, [&](Communicator& comm) {
    ParameterStore store;
    store.add("p", {100}, uniform_init(1));
    store.finalize(1);
    DecentralizedOptimizer optimizer(store, make_sgd({}), comm, {},
                                     {.innovation = "qsgd:bits=4", .resync = 10});
    for (uint64_t step = 0; step < 10; ++step) {
      optimizer.begin_step(0.1);
      take_gradients(store, optimizer, [&](Parameter& q) {
        const Philox rng(step, static_cast<uint64_t>(comm.rank()));
        for (int64_t i = 0; i < q.size(); ++i)
          q.grad.data<float>()[i] = rng.normal(static_cast<uint64_t>(i));
      });
    }
    const auto r = static_cast<size_t>(comm.rank());
    for (const auto& [name, x] : optimizer.named_state()) {
      if (name == "estimate.p") estimates[r] = x.to_vector();
      if (name == "apart.p") {
        const auto* a = static_cast<const double*>(x.raw());
        apart[r].assign(a, a + x.size());
      }
    }
  }));
  for (size_t r = 0; r < 4; ++r)
    for (size_t i = 0; i < 100; ++i) {
      std::vector<size_t> peers = {(r + 1) % 4, (r + 3) % 4};
      std::ranges::sort(peers);
      double expected = 0;
      for (const size_t q : peers)
        expected += 1.0 / 3 * (double{estimates[q][i]} - estimates[r][i]);
      CHECK(std::abs(apart[r][i] - expected) < 1e-14);  // without a resync some 1e-8
    }
}

TEST_CASE("peers: impossible options are refused on every rank") {
  const auto refused = [](const PeerOptions& peers, const OptimizerOptions& options = {}) {
    const auto errors = run_ranks(2, [&](Communicator& comm) {
      ParameterStore store;
      store.add("p", {4}, constant_init(0));
      store.finalize(1);
      DecentralizedOptimizer optimizer(store, make_sgd({}), comm, options, peers);
    });
    for (const std::string& error : errors) CHECK(error != "");
    return errors[0];
  };
  CHECK(refused({.peers = "rings"}).find("rings") != std::string::npos);
  CHECK(refused({.innovation = "qsdg"}).find("qsgd") != std::string::npos);
  CHECK(refused({.mixing = 1.5}).find("peer mixing") != std::string::npos);
  CHECK(refused({.resync = -1}).find("resync") != std::string::npos);
  CHECK(refused({.bucket_bytes = 0}).find("bucket size") != std::string::npos);
  CHECK(refused({}, {.learners = 2}).find("one learner") != std::string::npos);
  const auto errors = run_ranks(8, [](Communicator& comm) {
    ParameterStore store;
    store.add("p", {4}, constant_init(0));
    store.finalize(1);
    const std::string graph = comm.rank() == 5 ? "complete" : "ring";
    DecentralizedOptimizer optimizer(store, make_sgd({}), comm, {}, {.peers = graph});
  });
  for (const std::string& error : errors)
    CHECK(error.find("rank 5's graph or settings differ") != std::string::npos);
  const PeerOptions usual = {.mixing = 1};
  for (const PeerOptions& different :
       {PeerOptions{.mixing = 0.5}, PeerOptions{.innovation = "qsgd:bits=8", .mixing = 1},
        PeerOptions{.dual = false, .mixing = 1}, PeerOptions{.mixing = 1, .resync = 10},
        PeerOptions{.mixing = 1, .bucket_bytes = 4096}})
    for (const std::string& error : run_ranks(3, [&](Communicator& comm) {
           ParameterStore store;
           store.add("p", {4}, constant_init(0));
           store.finalize(1);
           DecentralizedOptimizer optimizer(store, make_sgd({}), comm, {},
                                            comm.rank() == 1 ? different : usual);
         }))
      CHECK(error.find("rank 1's graph or settings differ") != std::string::npos);
}

TEST_CASE("peers: consensus is the mean and the distance from it") {
  std::mutex mutex;
  std::vector<Consensus> found(3);
  expect_none(run_ranks(3, [&](Communicator& comm) {
    ParameterStore store;
    Parameter& p = store.add("p", {4}, constant_init(0));
    store.finalize(1);
    DecentralizedOptimizer optimizer(store, make_sgd({}), comm);
    for (int j = 0; j < 4; ++j)
      p.value.data<float>()[j] = static_cast<float>(3 + j) + static_cast<float>(comm.rank() - 1);
    const Consensus now = optimizer.consensus();
    const std::lock_guard lock(mutex);
    found[static_cast<size_t>(comm.rank())] = now;
  }));
  for (const Consensus& each : found) {
    for (int j = 0; j < 4; ++j) CHECK(each.mean.data<float>()[j] == static_cast<float>(3 + j));
    CHECK(each.error == doctest::Approx(std::sqrt(8.0 / 3 / (9 + 16 + 25 + 36))).epsilon(1e-6));
  }
}

TEST_CASE(
    "peers: the mean stands in for an evaluation, then every rank has its own weights again") {
  std::mutex mutex;
  std::vector<std::vector<std::vector<float>>> found(3);
  expect_none(run_ranks(3, [&](Communicator& comm) {
    ParameterStore store;
    Parameter& p = store.add("p", {2}, constant_init(0));
    store.finalize(1);
    DecentralizedOptimizer optimizer(store, make_sgd({}), comm);
    if (optimizer.consensus_error()) throw Error("an error before it was measured");
    p.value.data<float>()[0] = static_cast<float>(comm.rank());
    std::vector<std::vector<float>> mine = {optimizer.shared_values().slice(0, 2).to_vector()};
    mine.push_back(p.value.to_vector());
    optimizer.use_shared();
    mine.push_back(p.value.to_vector());
    optimizer.use_own();
    mine.push_back(p.value.to_vector());
    if (std::abs(optimizer.consensus_error().value() - std::sqrt(2.0 / 3)) > 1e-6)
      throw Error("another consensus error");
    const std::lock_guard lock(mutex);
    found[static_cast<size_t>(comm.rank())] = mine;
  }));
  for (size_t r = 0; r < 3; ++r) {
    const std::vector<float> mean = {1, 0}, own = {static_cast<float>(r), 0};
    CHECK(found[r] == std::vector<std::vector<float>>{mean, own, mean, own});
  }
}

TEST_CASE("peers: begun anew from equal weights, they train like peers that have just begun") {
  std::mutex mutex;
  std::vector<std::vector<float>> anew(3), fresh(3);
  for (const bool first : {true, false})
    expect_none(run_ranks(3, [&](Communicator& comm) {
      ParameterStore store;
      Parameter& p = store.add("p", {64}, constant_init(0));
      store.finalize(1);
      DecentralizedOptimizer optimizer(store, make_sgd({}), comm, {}, {.innovation = "dyna"});
      const auto step = [&] {
        optimizer.begin_step(0.1);
        take_gradients(store, optimizer, [&](Parameter& q) {
          for (int64_t j = 0; j < q.size(); ++j)
            q.grad.data<float>()[j] = q.value.data<float>()[j] - static_cast<float>(comm.rank());
        });
      };
      for (int i = 0; i < 5 && first; ++i) step();
      fill(p.value, 0.5f);
      optimizer.begin_anew();
      for (int i = 0; i < 3; ++i) step();
      const std::lock_guard lock(mutex);
      (first ? anew : fresh)[static_cast<size_t>(comm.rank())] = p.value.to_vector();
    }));
  CHECK(anew == fresh);
  CHECK(anew[0] != anew[2]);
}

TEST_CASE("peers: control words are exchanged at a learning rate of zero, too") {
  expect_none(run_ranks(4, [&](Communicator& comm) {
    ParameterStore store;
    store.add("p", {4}, constant_init(0));
    store.finalize(1);
    DecentralizedOptimizer optimizer(store, make_sgd({}), comm);
    optimizer.set_control(1, static_cast<float>(comm.rank() + 1));
    for (int step = 0; step < 3; ++step) {
      optimizer.begin_step(0);
      take_gradients(store, optimizer, [](Parameter& q) { fill(q.grad, 1); });
      if (optimizer.control(1) != (step < 1 ? 0 : 10)) throw Error("another sum");
    }
  }));
}
