// Learners that train as one: equality with one process, equality of the replicas, order of events,
// failures.
#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <mutex>
#include <thread>

#include "comm/threads.h"
#include "core/context.h"
#include "core/kernels.h"
#include "layers/lstm_lm.h"
#include "tests/learner_net.h"

using namespace heddle;

TEST_CASE("learners: N batches of B are one batch of N * B; replicas equal bit for bit") {
  for (double clip : {0.0, 0.5})
    for (int accumulate : {1, 2}) {
      CAPTURE(clip);
      CAPTURE(accumulate);
      RunOptions o{.batch = 24, .accumulate = accumulate, .clip = clip};
      const std::vector<float> alone = train_ranks(1, o)[0];
      for (int p : {2, 3, 4}) {
        CAPTURE(p);
        const auto ranks = train_ranks(p, o);
        CHECK(distance(ranks[0], alone) < 1e-5);
        CHECK(distance(ranks[0], alone) > 0);  // it did move, and was summed in another order
        for (const auto& values : ranks) CHECK(values == ranks[0]);
      }
    }
}

TEST_CASE("learners: overlap on or off gives the same bits; other buckets the same to rounding") {
  RunOptions o{.batch = 8, .steps = 8};
  o.parallel = {.bucket_bytes = 2000, .check_every = 3};
  const auto on = train_ranks(4, o);
  for (int repeat = 0; repeat < 3; ++repeat) CHECK(train_ranks(4, o)[1] == on[0]);
  o.parallel.overlap = false;
  CHECK(train_ranks(4, o)[2] == on[0]);
  o.parallel.bucket_bytes = 1 << 20;
  CHECK(distance(train_ranks(4, o)[2], on[0]) < 1e-5);
}

TEST_CASE("learners: buckets are sent in order, the first before the last closure has returned") {
  std::mutex mutex;
  std::vector<std::string> events;
  expect_none(run_ranks(2, [&](Communicator& comm) {
    Net net(1);
    DataParallelOptions parallel{.bucket_bytes = 1};  // one bucket for each parameter
    std::atomic<bool> reduced = false;
    parallel.on_event = [&](const char* what, int bucket) {
      if (what == std::string("reduced") && bucket == 0) reduced = true;
      std::lock_guard lock(mutex);
      if (comm.rank() == 0) events.push_back(concat(what, " ", bucket));
    };
    DataParallelOptimizer optimizer(net.store, make_sgd({}), comm, {}, parallel);
    CHECK(optimizer.buckets() == 8);
    const Tensor x = Tensor::zeros({3, 20}), y = Tensor::zeros({3}, DType::i32);
    fill_batch(0, 3 * comm.rank(), x, y);
    Tape tape;
    const Var leaf(x, true);
    Var slow(x, true);
    // The last closure waits until the first bucket has been exchanged: if the exchange followed
    // backward, it would wait in vain.
    tape.record("slow", slow, {}, [&](BackwardPass&) {
      for (int i = 0; i < 10000 && !reduced; ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (!reduced) throw Error("no exchange during backward");
    });
    const Var loss = softmax_cross_entropy(tape, net.forward(tape, slow, true), y);
    optimizer.begin_step(0.1);
    tape.backward(
        loss, [&](Parameter& p) { optimizer.ready(p); },
        [&](Parameter& p) { optimizer.weights_free(p); });
    optimizer.finish_step();
  }));
  int exchanged = 0, reduced = 0;
  for (const std::string& e : events) {
    if (e.starts_with("exchange")) CHECK(e == concat("exchange ", exchanged++));
    if (e.starts_with("reduced")) CHECK(e == concat("reduced ", reduced++));
  }
  CHECK(exchanged == 8);
}

TEST_CASE("learners: buffers begin as rank 0's; parameters of another store are left alone") {
  for (const int ranks : {1, 2})
    expect_none(run_ranks(ranks, [](Communicator& comm) {
      ParameterStore mine, other;
      Parameter& w = mine.add("w", {4}, constant_init(1.0f));
      Parameter& v = other.add("v", {1000}, constant_init(1.0f));
      const auto rank = static_cast<float>(comm.rank());
      const Buffer& mean = mine.add_buffer("mean", {3}, DType::f32, 5.0f + rank);
      const Buffer& count = mine.add_buffer("count", {1}, DType::i64, 7.0f + rank);
      mine.finalize(1);
      other.finalize(1);
      DataParallelOptimizer optimizer(mine, make_sgd({}), comm);
      CHECK(mean.value.to_vector() == std::vector<float>(3, 5.0f));
      CHECK(count.value.data<int64_t>()[0] == 7);
      Tape tape;
      const Var out(Tensor::zeros({}), true);
      tape.record("layer", out, {&w, &v}, [&](BackwardPass& pass) {
        for (Parameter* p : {&v, &w}) {
          p->next_beta();
          fill(p->grad, 1.0f);
          pass.contributed(*p);
        }
      });
      optimizer.begin_step(0.5);
      optimizer.backward(tape, out);
      optimizer.finish_step();
      CHECK(w.value.to_vector() == std::vector<float>(4, 0.5f));
      CHECK(v.value.to_vector() == std::vector<float>(1000, 1.0f));
    }));
}

TEST_CASE("learners: weights are not updated while a closure still reads them") {
  // The input gradient is computed after the parameter's gradient has been sent; an update in
  // between would show in it. The exchange is instant, the closure slow.
  expect_none(run_ranks(2, [](Communicator& comm) {
    ParameterStore store;
    Parameter& w = store.add("w", {1000}, constant_init(1.0f));
    store.finalize(1);
    std::atomic<bool> reduced = false;
    DataParallelOptions parallel;
    parallel.on_event = [&](const char* what, int) {
      if (what == std::string("reduced")) reduced = true;
    };
    DataParallelOptimizer optimizer(store, make_sgd({}), comm, {}, parallel);
    Tape tape;
    const Var out(Tensor::zeros({}), true);
    bool clean = true;
    tape.record("layer", out, {&w}, [&](BackwardPass& pass) {
      w.next_beta();
      fill(w.grad, 1.0f);
      pass.contributed(w);
      for (int i = 0; i < 10000 && !reduced; ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      for (float v : w.value.to_vector()) clean = clean && v == 1.0f;
    });
    optimizer.begin_step(0.5);
    tape.backward(
        out, [&](Parameter& p) { optimizer.ready(p); },
        [&](Parameter& p) { optimizer.weights_free(p); });
    optimizer.finish_step();
    if (!clean) throw Error("weights changed under a closure");
    for (float v : w.value.to_vector())
      if (v != 0.5f) throw Error("no update");
  }));
}

TEST_CASE("learners: a parameter used by one rank; one that no rank uses is named once") {
  RunOptions o{.batch = 8, .steps = 3, .spare_on_rank_one_only = true};
  std::vector<std::vector<float>> values(2);
  std::vector<std::string> log[2];
  expect_none(run_ranks(2, [&](Communicator& comm) {
    const auto r = static_cast<size_t>(comm.rank());
    values[r] = train(comm, o, &log[r]);
  }));
  CHECK(values[0] == values[1]);
  CHECK(log[1].empty());
  REQUIRE(log[0].size() == 2);  // weight and bias, once each
  CHECK(log[0][0].find("spare") != std::string::npos);
}

TEST_CASE("learners: a parameter without a gradient on one rank, whose loss does not reach it") {
  std::vector<std::vector<float>> values(2);
  expect_none(run_ranks(2, [&](Communicator& comm) {
    Net net(1);
    DataParallelOptimizer optimizer(net.store, make_sgd({}), comm, {}, {.bucket_bytes = 64});
    const Tensor x = Tensor::zeros({2, 20}), y = Tensor::zeros({2}, DType::i32);
    for (int64_t step = 0; step < 3; ++step) {
      fill_batch(step, comm.rank() * 2, x, y);
      Tape tape;
      const Var unused = net.spare.forward(tape, Var(x));
      const bool reached = comm.rank() == 1 || step == 0;
      const Var out = net.forward(tape, Var(x), false);
      const Var loss = softmax_cross_entropy(tape, reached ? add(tape, out, unused) : out, y);
      optimizer.begin_step(0.1);
      tape.backward(loss, [&](Parameter& p) { optimizer.ready(p); });
      optimizer.finish_step();
      optimizer.check_replicas();
    }
    values[static_cast<size_t>(comm.rank())] = net.store.values().to_vector();
  }));
  CHECK(values[0] == values[1]);
}

TEST_CASE("learners: language model with tied weights, row-sparse gradients of different rows") {
  auto run = [](int p) {
    std::vector<std::vector<float>> out(static_cast<size_t>(p));
    expect_none(run_ranks(p, [&](Communicator& comm) {
      for (bool tied : {true, false}) {
        ParameterStore store;
        const LstmLm model(store, {.vocabulary = 17,
                                   .emsize = 8,
                                   .nhid = 8,
                                   .nlayers = 1,
                                   .dropout = 0.2f,
                                   .tied = tied});
        store.finalize(3);
        DataParallelOptimizer optimizer(store, make_sgd({}), comm, {.clip_grad_norm = 0.25},
                                        {.bucket_bytes = 512});
        const int64_t mine = 4 / comm.size();
        LstmState state = model.zero_state(mine);
        for (uint64_t step = 0; step < 6; ++step) {
          const Tensor x = Tensor::empty_on(Device{}, {3, mine}, DType::i32);
          const Tensor y = Tensor::empty_on(Device{}, {3, mine}, DType::i32);
          for (int64_t t = 0; t < 3; ++t)
            for (int64_t b = 0; b < mine; ++b) {
              const int64_t column = comm.rank() * mine + b;
              const auto at = static_cast<int64_t>(step) * 3 + t;
              x.data<int32_t>()[t * mine + b] = static_cast<int32_t>((column * 4 + at) % 17);
              y.data<int32_t>()[t * mine + b] = static_cast<int32_t>((column * 4 + at + 1) % 17);
            }
          Tape tape({.seed = 1, .step = step, .first_sample = comm.rank() * mine});
          const Var loss = softmax_cross_entropy(tape, model.forward(tape, x, state), y);
          optimizer.begin_step(2.0);
          tape.backward(
              loss, [&](Parameter& p) { optimizer.ready(p); },
              [&](Parameter& p) { optimizer.weights_free(p); });
          optimizer.finish_step();
        }
        optimizer.check_replicas();
        for (float v : store.values().to_vector())
          out[static_cast<size_t>(comm.rank())].push_back(v);
      }
    }));
    return out;
  };
  const std::vector<float> alone = run(1)[0];
  for (int p : {2, 4}) {
    const auto ranks = run(p);
    for (const auto& values : ranks) CHECK(values == ranks[0]);
    CHECK(distance(ranks[0], alone) < 1e-5);
  }
}

TEST_CASE("learners: frozen parameters are the first rank's, are not exchanged and do not change") {
  for (const char* compress : {"none", "scalecom:rate=4"})
    expect_none(run_ranks(3, [&](Communicator& comm) {
      const auto fill_store = [](ParameterStore& store, uint64_t seed) {
        store.freeze([](const std::string& name) { return name.starts_with("first"); });
        std::pair<Linear, Linear> layers{Linear(store, "first", 20, 30),
                                         Linear(store, "second", 30, 40)};
        store.add_buffer("first.mean", {3}, DType::f32, static_cast<float>(seed), true);
        store.finalize(seed);
        return layers;
      };
      ParameterStore store, untrained;
      fill_store(untrained, 1);
      const auto [first, second] = fill_store(store, static_cast<uint64_t>(comm.rank()) + 1);
      DataParallelOptimizer optimizer(
          store, make_sgd({.momentum = 0.9, .weight_decay = 0.01}), comm, {}, {},
          make_reducer(parse_compress(compress), {.min_compress = 100}, store));
      const Tensor x = Tensor::empty_on(Device{}, {4, 20}),
                   y = Tensor::empty_on(Device{}, {4}, DType::i32);
      for (int64_t step = 0; step < 4; ++step) {
        fill_batch(step, comm.rank() * 4, x, y);
        Tape tape;
        const Var loss = softmax_cross_entropy(
            tape, second.forward(tape, relu(tape, first.forward(tape, Var(here(x))))), y);
        optimizer.begin_step(0.1);
        optimizer.backward(tape, loss);
        optimizer.finish_step();
      }
      optimizer.check_replicas();
      if (store.frozen_values().to_vector() != untrained.frozen_values().to_vector())
        throw Error("a frozen parameter is not the first rank's initial one");
      if (store.frozen_buffers()[0].value.to_vector() != std::vector<float>(3, 1.0f))
        throw Error("statistics are not the first rank's");
      if (store.values().to_vector() == untrained.values().to_vector())
        throw Error("nothing trained");
      for (const auto& [key, entry] : optimizer.ledger().entries())
        if (key.first.starts_with("first")) throw Error("exchanged: " + key.first);
      for (const auto& [name, tensor] : optimizer.optimizer().named_state())
        if (name.find("first") != std::string::npos) throw Error("state: " + name);
      if (comm.rank() == 2) fill(store.frozen_values(), 7);
      try {
        optimizer.check_replicas();
      } catch (const Error& error) {
        if (std::string(error.what()).find("first.weight on rank 2") != std::string::npos) return;
      }
      throw Error("frozen replicas that differ were not noticed");
    }));
}

TEST_CASE("learners: the ledger has every byte that the communicator counted") {
  expect_none(run_ranks(3, [](Communicator& comm) {
    Net net(1);
    DataParallelOptimizer optimizer(net.store, make_sgd({}), comm, {},
                                    {.bucket_bytes = 1000, .check_every = 2});
    for (int step = 0; step < 4; ++step) {
      optimizer.begin_step(0.1);
      for (Parameter& p : net.store.parameters()) {
        p.next_beta();
        fill(p.grad, 1.0f);
        optimizer.ready(p);
        optimizer.weights_free(p);
      }
      optimizer.finish_step();
      const Tensor x = Tensor::zeros({7});
      optimizer.collective("losses", [&](Communicator& c) { c.all_reduce(x); });
    }
    const auto& totals = optimizer.totals();
    const Ledger::Entry all = optimizer.ledger().total();
    if (totals.traffic.sent != all.sent || totals.traffic.received != all.received)
      throw Error(concat("counted ", totals.traffic.sent, ", in the ledger ", all.sent));
    // Weights: the formula of a ring, to within a few elements for each bucket and step.
    const Ledger::Entry weight =
        optimizer.ledger().entries().at({"second.weight", PayloadKind::values});
    const int64_t formula = 4 * 2 * (30 * 40 * 4) * 2 / 3;
    if (weight.payload != 4 * 30 * 40 * 4 || std::abs(weight.sent - formula) > 4 * 2 * 3 * 8 * 4)
      throw Error(concat("expected about ", formula, " bytes, found ", weight.sent));
    const auto control = [&](const char* what) {
      return optimizer.ledger().entries().at({what, PayloadKind::control}).sent;
    };
    if (control("replica check") == 0 || control("losses") == 0) throw Error("nothing booked");
    if (comm.rank() == 0 && control("parameters") == 0) throw Error("no weights sent");
    if (totals.exchange_s < totals.collective_s || totals.collective_s <= 0)
      throw Error("seconds of exchanges");
  }));
}

TEST_CASE("learners: main thread and worker communicate concurrently, in program order") {
  expect_none(run_ranks(3, [](Communicator& comm) {
    Net net(1);
    DataParallelOptimizer optimizer(net.store, make_sgd({.momentum = 0.9}), comm, {},
                                    {.bucket_bytes = 64});
    const Tensor x = Tensor::zeros({2, 20}), y = Tensor::zeros({2}, DType::i32);
    for (int64_t step = 0; step < 20; ++step) {
      fill_batch(step, comm.rank() * 2, x, y);
      Tape tape;
      const Var loss = softmax_cross_entropy(tape, net.forward(tape, Var(x), true), y);
      optimizer.begin_step(0.1);
      int64_t calls = 0;
      tape.backward(loss, [&](Parameter& p) {
        optimizer.ready(p);
        const Tensor sum = Tensor::zeros({3}, DType::i64);
        for (int64_t i = 0; i < 3; ++i) sum.data<int64_t>()[i] = comm.rank() + ++calls;
        const int64_t expected = 3 + 3 * (calls - 2);
        optimizer.collective("sum", [&](Communicator& c) { c.all_reduce(sum); });
        if (sum.data<int64_t>()[0] != expected) throw Error("a sum of another collective");
      });
      optimizer.finish_step();
    }
    optimizer.check_replicas();
  }));
}

TEST_CASE("learners: differing replicas are named; a rank's failure reaches all") {
  auto errors = run_ranks(2, [](Communicator& comm) {
    Net net(1);
    DataParallelOptimizer optimizer(net.store, make_sgd({}), comm);
    if (comm.rank() == 1) net.second.bias->value.data<float>()[3] += 1e-6f;
    optimizer.check_replicas();
  });
  for (const std::string& e : errors) CHECK(e.find("second.bias") != std::string::npos);
  // An exception in one learner's backward.
  errors = run_ranks(4, [](Communicator& comm) {
    Net net(1);
    DataParallelOptimizer optimizer(net.store, make_sgd({}), comm, {}, {.bucket_bytes = 64});
    const Tensor x = Tensor::zeros({2, 20}), y = Tensor::zeros({2}, DType::i32);
    for (int64_t step = 0; step < 50; ++step) {
      Tape tape;
      const Var loss = softmax_cross_entropy(tape, net.forward(tape, Var(x), true), y);
      optimizer.begin_step(0.1);
      tape.backward(loss, [&](Parameter& p) {
        if (step == 3 && comm.rank() == 2 && p.name == "second.weight") throw Error("bad luck");
        optimizer.ready(p);
      });
      optimizer.finish_step();
    }
  });
  for (const std::string& e : errors) CHECK(e.find("bad luck") != std::string::npos);
}

TEST_CASE("learners: a gradient that is not finite on one rank is applied on none") {
  std::vector<std::vector<float>> values(2);
  expect_none(run_ranks(2, [&](Communicator& comm) {
    Net net(1);
    DataParallelOptimizer optimizer(net.store, make_sgd({}), comm, {}, {.bucket_bytes = 64});
    const std::vector<float> before = net.second.weight->value.to_vector();
    optimizer.begin_step(0.1);
    for (Parameter& p : net.store.parameters()) {
      p.next_beta();
      fill(p.grad, comm.rank() == 1 && p.name == "second.weight" ? NAN : 1.0f);
      optimizer.ready(p);
      optimizer.weights_free(p);
    }
    const StepReport report = optimizer.finish_step();
    if (report.skipped_parameters != 1) throw Error("not skipped");
    if (report.first_skipped != "second.weight") throw Error(report.first_skipped);
    if (net.second.weight->value.to_vector() != before) throw Error("applied");
    values[static_cast<size_t>(comm.rank())] = net.store.values().to_vector();
  }));
  CHECK(values[0] == values[1]);
}

TEST_CASE("learners: a gradient that comes after its exchange has begun is refused") {
  expect_none(run_ranks(2, [](Communicator& comm) {
    ParameterStore own;
    Parameter& p = own.add("p", {4}, constant_init(1));
    own.finalize(1);
    DataParallelOptimizer optimizer(own, make_sgd({}), comm, {}, {});
    optimizer.begin_step(0.1);
    fill(p.grad, 1);
    p.written = true;
    optimizer.ready(p);
    CHECK_THROWS_AS(optimizer.ready(p), InputError);
    (void)optimizer.finish_step();
  }));
}
