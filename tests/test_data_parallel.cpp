// Learners that train as one: equality with one process, equality of the replicas, order of events,
// failures.
#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <mutex>
#include <thread>

#include "comm/threads.h"
#include "compress/families.h"
#include "core/context.h"
#include "core/kernels.h"
#include "layers/activation.h"
#include "layers/linear.h"
#include "layers/loss.h"
#include "layers/lstm_lm.h"
#include "optim/data_parallel.h"
#include "tests/ranks.h"

using namespace heddle;

namespace {

// Three layers without batch norm, and one parameter that only some batches use.
struct Net {
  ParameterStore store;
  Linear first{store, "first", 20, 30}, second{store, "second", 30, 40},
      third{store, "third", 40, 5};
  Linear spare{store, "spare", 20, 5};
  explicit Net(uint64_t seed) { store.finalize(seed); }
  Var forward(Tape& tape, const Var& x, bool use_spare) {
    Var y = relu(tape, first.forward(tape, x));
    y = relu(tape, second.forward(tape, y));
    y = third.forward(tape, y);
    return use_spare ? add(tape, y, spare.forward(tape, x)) : y;
  }
};

// Row r of the global batch of a step: a function of the step and the row.
void fill_batch(int64_t step, int64_t first, const Tensor& x, const Tensor& y) {
  const int64_t n = x.shape()[0], width = x.shape()[1];
  for (int64_t i = 0; i < n; ++i) {
    const Philox rng(7, static_cast<uint64_t>(step * 1000 + first + i));
    for (int64_t j = 0; j < width; ++j)
      x.data<float>()[i * width + j] = rng.normal(static_cast<uint64_t>(j));
    y.data<int32_t>()[i] = static_cast<int32_t>(rng.below(1000, 5));
  }
}

struct RunOptions {
  int64_t batch = 12;  // of all ranks together
  int steps = 5;
  int accumulate = 1;
  double clip = 0;
  DataParallelOptions parallel = {};
  bool spare_on_rank_one_only = false;
  std::string compress = {};
};

// Values after some steps, and the losses' sum over ranks of the last one.
std::vector<float> train(Communicator& comm, const RunOptions& o,
                         std::vector<std::string>* log = nullptr) {
  Net net(static_cast<uint64_t>(comm.rank()) + 1);  // rank 0's values must win
  OptimizerOptions options{.accumulate = o.accumulate, .clip_grad_norm = o.clip};
  if (log != nullptr) options.log = [log](const std::string& line) { log->push_back(line); };
  std::unique_ptr<Reducer> reducer;
  if (!o.compress.empty())
    reducer = make_reducer(parse_compress(o.compress), {.seed = 5, .min_compress = 100}, net.store);
  DataParallelOptimizer optimizer(net.store, make_sgd({.momentum = 0.9, .weight_decay = 0.01}),
                                  comm, options, o.parallel, std::move(reducer));
  const int64_t mine = o.batch / comm.size() / o.accumulate;
  const Tensor x = Tensor::zeros({mine, 20}), y = Tensor::zeros({mine}, DType::i32);
  for (int64_t step = 0; step < o.steps; ++step)
    for (int64_t micro = 0; micro < o.accumulate; ++micro) {
      fill_batch(step, (micro * comm.size() + comm.rank()) * mine, x, y);
      Tape tape;
      const bool spare = !o.spare_on_rank_one_only || comm.rank() == 1;
      const Var loss = softmax_cross_entropy(tape, net.forward(tape, Var(x), spare), y);
      optimizer.begin_step(0.1);
      tape.backward(
          loss, [&](Parameter& p) { optimizer.ready(p); },
          [&](Parameter& p) { optimizer.weights_free(p); });
      optimizer.finish_step();
    }
  optimizer.check_replicas();
  return net.store.values().to_vector();
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * static_cast<double>(a[i] - b[i]);
    norm += static_cast<double>(b[i]) * b[i];
  }
  return std::sqrt(difference / norm);
}

std::vector<std::vector<float>> train_ranks(int p, const RunOptions& o) {
  std::vector<std::vector<float>> out(static_cast<size_t>(p));
  expect_none(run_ranks(
      p, [&](Communicator& comm) { out[static_cast<size_t>(comm.rank())] = train(comm, o); }));
  return out;
}

}  // namespace

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

TEST_CASE("learners: buckets leave in order, and the first before the last closure has returned") {
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
    // A last closure that waits until the first bucket has come back: with the exchange behind
    // backward it would wait in vain.
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

TEST_CASE("learners: weights are not updated while a closure still reads them") {
  // The input gradient is computed after the parameter's gradient has gone off; an update in
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

TEST_CASE("learners: a parameter that only one rank uses; one that none uses is named once") {
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

TEST_CASE(
    "learners: announced without a gradient on one rank, because its loss does not reach it") {
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

TEST_CASE("learners: compressed, overlapped or not, the same bits; replicas equal; a dense start") {
  for (const char* spec : {"none", "bf16", "fp16", "topk:density=0.1", "randomk:density=0.1",
                           "scalecom:rate=10,beta=0.3", "scalecom:rate=10,select=exact",
                           "qsgd:bits=4,bucket=64", "powersgd:rank=2"})
    for (double local_clip : {0.0, 0.2}) {
      CAPTURE(spec);
      CAPTURE(local_clip);
      const int accumulate = local_clip > 0 ? 2 : 1;
      RunOptions o{.batch = 8, .steps = 6, .accumulate = accumulate, .compress = spec};
      o.parallel = {.bucket_bytes = 2000, .compress_start = 2, .local_clip = local_clip};
      const auto on = train_ranks(4, o);
      for (const auto& values : on) CHECK(values == on[0]);
      o.parallel.overlap = false;
      CHECK(train_ranks(4, o)[3] == on[0]);
      // It does something, and no more than it should.
      const bool dense = spec == std::string("none");
      RunOptions plain{.batch = 8, .steps = 6, .accumulate = accumulate};
      plain.parallel = {.bucket_bytes = 2000, .local_clip = local_clip};
      const double d = distance(train_ranks(4, plain)[0], on[0]);
      CHECK((d == 0) == dense);
      CHECK(d < 0.2);
      // Before compress_start it is the dense run.
      o.steps = plain.steps = 2;
      CHECK(train_ranks(4, o)[0] == train_ranks(4, plain)[0]);
    }
}

TEST_CASE("learners: one rank compresses too") {
  RunOptions o{.batch = 8, .steps = 4, .compress = "scalecom:rate=10"};
  const auto alone = train_ranks(1, o)[0];
  CHECK(distance(alone, train_ranks(1, {.batch = 8, .steps = 4})[0]) > 0);
}

TEST_CASE(
    "learners: a gradient that is not finite on one rank is applied on none, compressed too") {
  for (const char* spec : {"none", "bf16", "topk:density=0.1", "randomk:density=0.1",
                           "scalecom:rate=10,beta=0.3", "qsgd", "powersgd:rank=2"})
    for (int way = 0; way < 3; ++way) {
      CAPTURE(spec);
      CAPTURE(way);  // updates at once; whole steps; clipped before the exchange
      std::vector<std::vector<float>> values(3);
      expect_none(run_ranks(3, [&](Communicator& comm) {
        Net net(1);
        const auto reducer = parse_compress(spec);
        DataParallelOptimizer optimizer(
            net.store, make_sgd({}), comm,
            {.on_nonfinite = way == 1 ? OnNonfinite::step : OnNonfinite::bucket},
            {.bucket_bytes = 64, .local_clip = way == 2 ? 1.0 : 0.0},
            make_reducer(reducer, {.min_compress = 100}, net.store));
        const std::vector<float> before = net.store.values().to_vector();
        const std::vector<float> second = net.second.weight->value.to_vector();
        for (int step = 0; step < 4; ++step) {
          const bool bad = step == 1 && comm.rank() == 1;
          const std::vector<float> all = net.store.values().to_vector(),
                                   own = net.second.weight->value.to_vector();
          optimizer.begin_step(0.1);
          for (Parameter& p : net.store.parameters()) {
            p.next_beta();
            for (int64_t i = 0; i < p.size(); ++i)
              p.grad.data<float>()[i] = Philox(1, p.offset).normal(4 * i + step) + comm.rank();
            if (bad && p.name == "second.weight") p.grad.data<float>()[7] = NAN;
            optimizer.ready(p);
            optimizer.weights_free(p);
          }
          const StepReport report = optimizer.finish_step();
          if ((report.skipped_parameters > 0) != (step == 1)) throw Error("skipped or not");
          if (step == 1 && way == 0 && net.second.weight->value.to_vector() != own)
            throw Error("applied");
          if (step == 1 && way > 0 && net.store.values().to_vector() != all)
            throw Error("a part was applied");
          for (float v : net.store.values().to_vector())
            if (!std::isfinite(v)) throw Error("weights that are no numbers");
        }
        optimizer.check_replicas();
        values[static_cast<size_t>(comm.rank())] = net.store.values().to_vector();
        if (values[static_cast<size_t>(comm.rank())] == before) throw Error("nothing was applied");
      }));
      CHECK(values[0] == values[1]);
      CHECK(values[0] == values[2]);
    }
}

TEST_CASE("learners: what was sent in a step that is not applied stays owed") {
  expect_none(run_ranks(2, [](Communicator& comm) {
    ParameterStore store;
    Parameter& a = store.add("a", {32, 8}, constant_init(0.0f));
    Parameter& b = store.add("b", {32, 8}, constant_init(0.0f));
    store.finalize(1);
    DataParallelOptimizer optimizer(
        store, make_sgd({}), comm, {.on_nonfinite = OnNonfinite::step}, {.bucket_bytes = 64},
        make_reducer(parse_compress("scalecom:rate=4"), {.min_compress = 10}, store));
    for (int step = 0; step < 6; ++step) {
      optimizer.begin_step(1.0);
      for (Parameter* p : {&b, &a}) {
        p->next_beta();
        fill(p->grad, 0.0f);
        if (step == 0)
          for (int64_t i = 0; i < p->size(); ++i)
            p->grad.data<float>()[i] = static_cast<float>(1 + i % 5);
        if (step == 0 && p == &b && comm.rank() == 1) fill(p->grad, NAN);
        optimizer.ready(*p);
        optimizer.weights_free(*p);
      }
      if (optimizer.finish_step().skipped != (step == 0)) throw Error("skipped or not");
    }
    for (int64_t i = 0; i < a.size(); ++i)
      if (std::abs(a.value.data<float>()[i] + static_cast<float>(1 + i % 5)) > 1e-5f)
        throw Error(concat("element ", i, ": ", a.value.data<float>()[i], " has arrived"));
  }));
}

TEST_CASE("learners: the leader changes with every step") {
  expect_none(run_ranks(2, [](Communicator& comm) {
    ParameterStore store;
    Parameter& w = store.add("w", {64, 64}, constant_init(0.0f));
    store.finalize(1);
    DataParallelOptimizer optimizer(store, make_sgd({}), comm, {}, {},
                                    make_reducer(parse_compress("scalecom:rate=64"), {}, store));
    for (int step = 0; step < 4; ++step) {
      const auto indices = [&] {
        const auto& entries = optimizer.ledger().entries();
        const auto found = entries.find({"w", PayloadKind::indices});
        return found == entries.end() ? 0 : found->second.sent;
      };
      const int64_t before = indices();
      optimizer.begin_step(0.1);
      w.next_beta();
      fill(w.grad, 1.0f);
      optimizer.ready(w);
      optimizer.weights_free(w);
      optimizer.finish_step();
      if ((indices() > before) != (step % 2 == comm.rank())) throw Error("another leader");
    }
  }));
}

TEST_CASE("learners: rate=auto is the same on all ranks, whatever they have counted") {
  expect_none(run_ranks(2, [](Communicator& comm) {
    ParameterStore store;
    Parameter& w = store.add("w", {64, 64}, constant_init(0.0f));
    store.finalize(1);
    w.uses_per_sample = comm.rank() == 0 ? 200 : 0;
    auto reducer = make_reducer(parse_compress("scalecom:rate=auto"), {}, store);
    const Reducer& settings = *reducer;
    DataParallelOptimizer optimizer(store, make_sgd({}), comm, {}, {}, std::move(reducer));
    optimizer.begin_step(0.1);
    w.next_beta();
    fill(w.grad, 1.0f);
    optimizer.ready(w);
    optimizer.weights_free(w);
    optimizer.finish_step();
    if (settings.choices().at("w") != 25) throw Error("another rate");
  }));
}

TEST_CASE("learners: local clipping holds each rank's own gradient within limit * sqrt(P)") {
  expect_none(run_ranks(4, [](Communicator& comm) {
    ParameterStore store;
    Parameter& w = store.add("w", {100}, constant_init(0.0f));
    store.finalize(1);
    DataParallelOptimizer optimizer(store, make_sgd({}), comm, {}, {.local_clip = 3});
    optimizer.begin_step(1.0);
    w.next_beta();
    // Norms 10, 0.1, 10, 0.1 against 6: the sum is 0.6 + 0.01 + 0.6 + 0.01 in each element.
    fill(w.grad, comm.rank() % 2 == 0 ? 1.0f : 0.01f);
    optimizer.ready(w);
    optimizer.weights_free(w);
    optimizer.finish_step();
    for (float v : w.value.to_vector())
      if (std::abs(v + 1.22f / 4) > 1e-6f) throw Error(concat("found ", v));
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
    // Of the weights: the formula of a ring, to a few elements for each bucket and step.
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

TEST_CASE("learners: main thread and worker communicate at once, in the program's order") {
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

TEST_CASE("learners: replicas that differ are named; a rank's failure reaches all") {
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
    if (net.second.weight->value.to_vector() != before) throw Error("applied");
    values[static_cast<size_t>(comm.rank())] = net.store.values().to_vector();
  }));
  CHECK(values[0] == values[1]);
}
