// Secret random numbers, the account of what was revealed, and an optimizer that lets no gradient
// pass the votes by.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "compress/codecs/select.h"
#include "core/error.h"
#include "core/privacy.h"
#include "core/secret_random.h"
#include "tests/data_files.h"
#include "tests/learner_net.h"

namespace heddle {
namespace {

TEST_CASE("secret numbers: a test seed repeats them, the operating system's differ") {
  SecretRandom a(7, 1), b(7, 1), other(7, 2), os, again;
  double mean = 0, squares = 0;
  int equal = 0, near = 0;
  for (int i = 0; i < 100000; ++i) {
    const double x = a.normal();
    CHECK(x == b.normal());
    equal += x == other.normal() ? 1 : 0;
    const double y = os.normal();
    equal += y == again.normal() ? 1 : 0;
    mean += y / 1e5;
    squares += y * y / 1e5;
    near += std::abs(y) < 1 ? 1 : 0;
    const double u = os.uniform();
    CHECK((u > 0 && u < 1));
  }
  CHECK(equal == 0);
  CHECK(std::abs(mean) < 0.02);  // six standard deviations
  CHECK(squares == doctest::Approx(1).epsilon(0.03));
  CHECK(near == doctest::Approx(68269).epsilon(0.015));
}

TEST_CASE("accountant: what others have spent is never forgotten") {
  const NoisySum sum{.sigma = 2, .sensitivity = 1};
  RdpAccountant a(sum, gaussian_rdp(2)), b(sum, gaussian_rdp(2));
  for (int i = 0; i < 150; ++i) a.count();
  for (int i = 0; i < 100; ++i) b.count();
  const RdpAccountant::State at_checkpoint = b.state();
  b.raise_to(a.state());
  CHECK(b.state().queries == 150);
  CHECK(b.spent().epsilon == a.spent().epsilon);
  b.raise_to(at_checkpoint);
  CHECK(b.state().queries == 150);
  b.count();
  CHECK(b.spent().epsilon == a.spent_after(1).epsilon);
  RdpAccountant::State broken = a.state();
  broken.spent.pop_back();
  CHECK_THROWS_AS(b.raise_to(broken), InputError);
  broken = a.state();
  broken.spent[3] = std::numeric_limits<double>::quiet_NaN();
  CHECK_THROWS_AS(b.raise_to(broken), InputError);
  broken.spent[3] = -1;
  CHECK_THROWS_AS(b.raise_to(broken), InputError);
}

TEST_CASE("voting optimizer: each backward pass is a vote, and nothing passes the votes by") {
  // Two ranks of three and one votes, one rank without any in the second step, against a loop.
  std::vector<std::vector<float>> weights(2);
  std::vector<float> expected;
  const auto votes_of = [](int rank, int64_t step) { return rank == 0 ? 3 : step == 1 ? 0 : 1; };
  const auto batch_of = [](int rank, int64_t step, int64_t vote) {
    return step * 100 + rank * 10 + vote;
  };
  expect_none(run_ranks(2, [&](Communicator& comm) {
    Net net(1);
    const VotingOptions voting{.voters = 2, .rate = 0.5, .replaced = false};
    std::atomic<bool> in_backward = false;
    std::atomic<int> early = 0;  // exchanges during a backward pass
    const DataParallelOptions parallel{
        .bucket_bytes = 1000, .control_words = true, .on_event = [&](const char* what, int) {
          if (in_backward && what == std::string("exchange")) ++early;
        }};
    DataParallelOptimizer optimizer(net.store, make_sgd({}), comm, {}, parallel,
                                    make_reducer(parse_compress("topagg:density=0.2,output=votes"),
                                                 {.voting = voting}, net.store));
    const Tensor x = Tensor::empty_on(Device{}, {4, 20});
    const Tensor y = Tensor::empty_on(Device{}, {4}, DType::i32);
    for (int64_t step = 0; step < 3; ++step) {
      const int64_t votes = votes_of(comm.rank(), step);
      optimizer.set_micro_steps(static_cast<int>(std::max<int64_t>(votes, 1)));
      optimizer.set_control(0, 1);
      optimizer.begin_step(0.1);
      for (int64_t vote = 0; vote < votes; ++vote) {
        fill_batch(batch_of(comm.rank(), step, vote), 0, x, y);
        Tape tape;
        const Var loss = softmax_cross_entropy(tape, net.forward(tape, Var(here(x)), vote != 1), y);
        if (vote > 0) optimizer.begin_step(0.1);
        in_backward = true;
        tape.backward(
            loss,
            [&](Parameter& p) {
              optimizer.ready(p);
              // Time for the buckets of later layers, had they been posted.
              if (p.name == "first.weight")
                std::this_thread::sleep_for(std::chrono::milliseconds(30));
            },
            [&](Parameter& p) { optimizer.weights_free(p); });
        in_backward = false;
        CHECK(optimizer.finish_step().due == (vote + 1 == votes));
      }
      if (votes == 0) CHECK(optimizer.finish_step().due);
      CHECK(optimizer.control(0) == 2);
    }
    CHECK(optimizer.accountant()->state().queries == 3);
    CHECK(early == 0);
    weights[static_cast<size_t>(comm.rank())] = net.store.values().to_vector();
  }));
  {
    Context context;
    Net net(1);
    const Tensor x = Tensor::empty_on(Device{}, {4, 20});
    const Tensor y = Tensor::empty_on(Device{}, {4}, DType::i32);
    for (int64_t step = 0; step < 3; ++step) {
      std::vector<float> sums(static_cast<size_t>(net.store.grads().size()));
      for (int rank = 0; rank < 2; ++rank)
        for (int64_t vote = 0; vote < votes_of(rank, step); ++vote) {
          fill_batch(batch_of(rank, step, vote), 0, x, y);
          net.store.begin_step();
          Tape tape;
          tape.backward(softmax_cross_entropy(tape, net.forward(tape, Var(here(x)), vote != 1), y));
          for (Parameter& p : net.store.parameters()) {
            if (!p.written) p.grad.fill_zero();
            const Tensor g = p.grad.to(Device{});
            for (const uint32_t i : select_top(elements(g), kept_elements(0.2, p.size()))) {
              const float value = g.data<float>()[i];
              sums[static_cast<size_t>(p.offset) + i] += value > 0 ? 1.f : value < 0 ? -1.f : 0.f;
            }
          }
        }
      std::vector<float> values = net.store.values().to_vector();
      for (size_t i = 0; i < sums.size(); ++i) values[i] -= 0.1f * (sums[i] / 2 / 2);
      net.store.values().copy_from(Tensor::from(values));
    }
    expected = net.store.values().to_vector();
  }
  CHECK(weights[0] == weights[1]);
  for (size_t i = 0; i < expected.size(); ++i)
    CHECK(weights[0][i] == doctest::Approx(expected[i]).epsilon(1e-5));
}

TEST_CASE("voting optimizer: what would reveal gradients is refused") {
  expect_none(run_ranks(2, [](Communicator& comm) {
    Net net(1);
    const auto error = [&](const OptimizerOptions& options, const DataParallelOptions& parallel) {
      return input_error([&] {
        DataParallelOptimizer(net.store, make_sgd({}), comm, options, parallel,
                              make_reducer(parse_compress("topagg:sigma=1"), {}, net.store));
      });
    };
    CHECK(error({}, {.compress_start = 10}).find("reveal") != std::string::npos);
    CHECK(error({.accumulate = 2}, {}).find("accumulation") != std::string::npos);
    CHECK(error({}, {.local_clip = 1}).find("clipping") != std::string::npos);
    DataParallelOptimizer dense(net.store, make_sgd({}), comm);
    CHECK_THROWS_AS(dense.set_micro_steps(2), InputError);
  }));
}

}  // namespace
}  // namespace heddle
