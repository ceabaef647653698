// Local steps: rounds against their definition, what is sent and when, weights that are not finite,
// checkpoints within a round.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "optim/local_steps.h"
#include "tests/learner_net.h"

namespace heddle {
namespace {

struct LocalRun {
  LocalStepsOptions local = {};
  SgdOptions outer = {};
  std::string compress = {};
  OptimizerOptions options = {};
};

std::unique_ptr<UpdateRule> inner_rule() {
  return make_sgd({.momentum = 0.9, .weight_decay = 0.01});
}

LocalSteps make_local(ParameterStore& store, Communicator& comm, const LocalRun& o) {
  return {
      store, inner_rule(), o.options, o.local, [&](ParameterStore& anchor) {
        std::unique_ptr<Reducer> reducer;
        if (!o.compress.empty())
          reducer =
              make_reducer(parse_compress(o.compress), {.seed = 5, .min_compress = 100}, anchor);
        return std::make_unique<DataParallelOptimizer>(
            anchor, make_sgd(o.outer), comm, OptimizerOptions{},
            DataParallelOptions{
                .bucket_bytes = 2000, .broadcast = false, .check_every = 1, .control_words = true},
            std::move(reducer));
      }};
}

// Computes the gradients of a step of this rank, and makes it.
template <class AnyOptimizer>
StepReport train_step(Net& net, AnyOptimizer& optimizer, int64_t step, int rank,
                      int micro_steps = 1) {
  const Tensor x = Tensor::empty_on(Device{}, {4, 20});
  const Tensor y = Tensor::empty_on(Device{}, {4}, DType::i32);
  StepReport report;
  for (int micro = 0; micro < micro_steps; ++micro) {
    fill_batch(step, 4 * (rank * micro_steps + micro), x, y);
    Tape tape;
    const Var loss = softmax_cross_entropy(tape, net.forward(tape, Var(here(x)), rank == 1), y);
    optimizer.begin_step(0.1);
    optimizer.backward(tape, loss);
    report = optimizer.finish_step();
  }
  return report;
}

std::vector<float> values_of(const Net& net) { return net.store.values().to_vector(); }

TEST_CASE("local steps: rounds are those of the definition") {
  struct Rule {
    int64_t every;
    double rate, momentum;
    int64_t delay = 0;
  };
  // With a delay of 2 the exchange of step 3 moves the weights after step 5, and that of step 6 at
  // once, before step 7, the last, which exchanges, too.
  for (const Rule rule :
       {Rule{1, 1, 0}, {3, 1, 0}, {3, 0.7, 0.9}, {100, 0.7, 0}, {3, 0.7, 0.9, 2}, {4, 1, 0, 1}})
    for (const int accumulate : {1, 2}) {
      CAPTURE(rule.every);
      CAPTURE(rule.delay);
      CAPTURE(accumulate);
      constexpr int64_t kSteps = 7;
      expect_none(run_ranks(3, [&](Communicator& comm) {
        Net net(static_cast<uint64_t>(comm.rank()) + 1), plain(1);
        const OptimizerOptions options{.accumulate = accumulate};
        LocalSteps optimizer =
            make_local(net.store, comm,
                       {.local = {rule.every, kSteps, rule.rate, rule.delay},
                        .outer = {.momentum = rule.momentum, .nesterov = rule.momentum > 0},
                        .options = options});
        Optimizer alone(plain.store, inner_rule(), options);
        std::vector<float> anchor = values_of(plain);
        std::vector<double> velocity(anchor.size());
        Tensor left;
        int64_t due = 0;
        const auto land = [&] {  // on the anchor, with the steps since the end of the round
          axpy(-1, left, plain.store.values());
          axpy(1, Tensor::from(anchor), plain.store.values());
          due = 0;
        };
        for (int64_t step = 0; step < kSteps; ++step) {
          train_step(plain, alone, step, comm.rank(), accumulate);
          train_step(net, optimizer, step, comm.rank(), accumulate);
          if ((step + 1) % rule.every == 0 || step + 1 == kSteps) {
            Tensor change = Tensor::from(anchor);
            axpy(-1, plain.store.values().to(Device{}), change);
            optimizer.collective("reference", [&](Communicator& c) { c.all_reduce(change); });
            for (size_t i = 0; i < anchor.size(); ++i) {
              const double g = change.data<float>()[i] / 3.0;
              velocity[i] = rule.momentum * velocity[i] + g;
              anchor[i] -= static_cast<float>(
                  rule.rate * (rule.momentum > 0 ? g + rule.momentum * velocity[i] : g));
            }
            left = plain.store.values().clone();
            due = step + 1 + rule.delay;
            if (rule.delay == 0 || step + 1 == kSteps) {
              land();
              if (values_of(net) != optimizer.shared_values().to_vector())
                throw Error("after a round the weights are not the anchor");
            }
          }
          if (due > 0 && (step + 1 == due || step + 2 == kSteps)) land();
          if (const double far = distance(values_of(net), values_of(plain)); !(far < 1e-5))
            throw Error(concat("step ", step, ": ", far, " from the definition"));
        }
      }));
    }
}

TEST_CASE("local steps: updates at the end of backward give the same bits as during it") {
  std::vector<std::vector<float>> ends(2);
  for (const bool deferred : {false, true})
    expect_none(run_ranks(2, [&](Communicator& comm) {
      Net net(1);
      LocalSteps optimizer =
          make_local(net.store, comm,
                     {.local = {2, -1, 0.5}, .options = {.clip_grad_norm = deferred ? 1e9 : 0.0}});
      for (int64_t step = 0; step < 6; ++step) train_step(net, optimizer, step, comm.rank());
      if (comm.rank() == 0) ends[deferred ? 1 : 0] = values_of(net);
    }));
  CHECK(ends[0] == ends[1]);
}

TEST_CASE("local steps: only the last step of a round sends, and sums control words") {
  expect_none(run_ranks(2, [](Communicator& comm) {
    Net net(1);
    LocalSteps optimizer = make_local(net.store, comm, {.local = {4, 10, 1}});
    const auto expect = [](bool ok, const auto&... what) {
      if (!ok) throw Error(concat(what...));
    };
    optimizer.set_control(1, static_cast<float>(comm.rank() + 1));
    for (int64_t step = 1; step <= 10; ++step) {
      const int64_t before = optimizer.totals().traffic.sent;
      train_step(net, optimizer, step, comm.rank());
      const bool exchanges = step == 4 || step == 8 || step == 10;
      const LearnerOptimizer::Totals totals = optimizer.totals();
      expect((totals.traffic.sent > before) == exchanges, "step ", step, " sent ",
             totals.traffic.sent - before);
      expect(optimizer.control(1) == (exchanges ? 3.0f : 0.0f), "step ", step, ": control ",
             optimizer.control(1));
      const int64_t counted = exchanges ? step : step / 4 * 4;  // a round with its exchange
      expect(totals.dense_steps == counted && totals.compressed_steps == 0, "step ", step, ": ",
             totals.dense_steps, " and ", totals.compressed_steps, " steps are counted");
      expect(totals.dense_of_dense == counted * optimizer.dense_bytes(), "bytes of dense steps");
    }
    optimizer.use_shared();
    optimizer.use_own();
  }));
}

TEST_CASE("local steps: with a delay, steps do not wait for the exchange") {
  std::atomic<bool> continued = false;
  expect_none(run_ranks(2, [&](Communicator& comm) {
    Net net(1);
    LocalSteps optimizer = make_local(net.store, comm, {.local = {4, -1, 1, 2}});
    optimizer.set_control(1, static_cast<float>(comm.rank() + 1));
    const auto expect = [](bool ok, const auto&... what) {
      if (!ok) throw Error(concat(what...));
    };
    expect(optimizer.control_delay() == 2, "words arrive after ", optimizer.control_delay());
    int64_t before = 0;
    for (int64_t step = 1; step <= 8; ++step) {
      if (step == 4 && comm.rank() == 1) {  // the other one has ended its round, and trains on
        for (int i = 0; !continued; ++i) {
          expect(i < 10000, "rank 0 waits in the last step of a round");
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
      }
      train_step(net, optimizer, step, comm.rank());
      if (step == 5) continued = true;
      if (step == 5) optimizer.wait();  // the exchange has ended, but moves the weights later
      if (step == 3) before = optimizer.totals().traffic.sent;
      const LearnerOptimizer::Totals totals = optimizer.totals();
      if (step == 4 || step == 5)
        expect(totals.traffic.sent == before && optimizer.control(1) == 0 &&
                   totals.dense_steps == 0 && optimizer.ledger().entries().size() == 1,
               "step ", step, ": the exchange in flight is counted");
      if (step == 6)
        expect(totals.traffic.sent > before && optimizer.control(1) == 3 &&
                   totals.dense_steps == 4 && totals.dense_local == 3 &&
                   optimizer.ledger().entries().size() > 1,
               "step 6: ", totals.dense_steps, " steps, control ", optimizer.control(1));
    }
  }));
}

TEST_CASE("local steps: a round counts as its exchange, dense or compressed, after a resume too") {
  expect_none(run_ranks(2, [](Communicator& comm) {
    // Rounds end after the steps 4, 8, 10, 12 and 16; those from the third one on are compressed.
    Net net(1), copy(2);
    const auto make = [&](Net& of, int64_t last) {
      return LocalSteps(of.store, inner_rule(), {}, {4, last, 1}, [&](ParameterStore& anchor) {
        return std::make_unique<DataParallelOptimizer>(
            anchor, make_sgd({}), comm, OptimizerOptions{},
            DataParallelOptions{.broadcast = false, .compress_start = 2},
            make_reducer(parse_compress("topk:density=0.1"), {.min_compress = 100}, anchor));
      });
    };
    struct Counts {
      int64_t dense, compressed, dense_local, compressed_local;
    };
    constexpr Counts kAfter[] = {{8, 0, 6, 0}, {8, 2, 6, 1}, {8, 4, 6, 2}, {8, 8, 6, 5}};
    const auto expect = [](LocalSteps& optimizer, const Counts& c) {
      const LearnerOptimizer::Totals t = optimizer.totals();
      if (t.dense_steps != c.dense || t.compressed_steps != c.compressed ||
          t.dense_local != c.dense_local || t.compressed_local != c.compressed_local)
        throw Error(concat("after step ", optimizer.state().steps, ": ", t.dense_steps, " dense, ",
                           t.compressed_steps, " compressed, of which alone ", t.dense_local, ", ",
                           t.compressed_local));
      if (t.dense_of_dense != c.dense * optimizer.dense_bytes() ||
          t.dense_of_compressed != c.compressed * optimizer.dense_bytes())
        throw Error("bytes of dense steps");
    };
    LearnerOptimizer::State state;
    {
      LocalSteps optimizer = make(net, 10);
      for (int64_t step = 0; step < 10; ++step) {
        train_step(net, optimizer, step, comm.rank());
        if (step == 8) expect(optimizer, kAfter[0]);  // within a round
      }
      expect(optimizer, kAfter[1]);
      state = optimizer.state();
    }
    LocalSteps again = make(copy, 18);
    again.restore(state);
    expect(again, kAfter[1]);
    for (int64_t step = 10; step < 17; ++step) {
      train_step(copy, again, step, comm.rank());
      if (step == 11) expect(again, kAfter[2]);
    }
    expect(again, kAfter[3]);
  }));
}

TEST_CASE("local steps: a long round sums control words every fifty steps") {
  expect_none(run_ranks(2, [](Communicator& comm) {
    Net net(1);
    LocalSteps optimizer = make_local(net.store, comm, {.local = {120, -1, 1}});
    optimizer.set_control(2, static_cast<float>(comm.rank() + 1));
    for (int64_t step = 1; step <= 180; ++step) {
      train_step(net, optimizer, step, comm.rank());
      const bool summed = step == 50 || step == 100 || step == 120 || step == 170;
      if (optimizer.control(2) != (summed ? 3.0f : 0.0f))
        throw Error(concat("step ", step, ": control ", optimizer.control(2)));
    }
  }));
}

TEST_CASE("local steps: what was posted within a round has ended when its step returns") {
  expect_none(run_ranks(2, [](Communicator& comm) {
    Net net(1);
    LocalSteps optimizer = make_local(net.store, comm, {.local = {4, -1, 1}});
    for (int64_t step = 0; step < 3; ++step) {
      bool ended = false;
      optimizer.post("slow", [&](Communicator&, Ledger&) {
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        ended = true;
      });
      train_step(net, optimizer, step, comm.rank());
      if (!ended) throw Error(concat("step ", step, " returns before"));
    }
  }));
}

TEST_CASE("local steps: evaluations see the anchor and leave the weights as they were") {
  expect_none(run_ranks(2, [](Communicator& comm) {
    Net net(1);
    LocalSteps optimizer = make_local(net.store, comm, {.local = {3, -1, 1}});
    for (int64_t step = 0; step < 3; ++step) train_step(net, optimizer, step, comm.rank());
    const std::vector<float> anchor = values_of(net);
    train_step(net, optimizer, 3, comm.rank());
    const std::vector<float> own = values_of(net);
    optimizer.use_shared();
    if (values_of(net) != anchor) throw Error("an evaluation does not see the anchor");
    optimizer.use_own();
    if (values_of(net) != own || own == anchor) throw Error("the weights have changed");
  }));
}

TEST_CASE("local steps: a learner with weights that are not finite continues from the anchor") {
  for (const std::string compress : {"", "topk:density=0.1"}) {
    CAPTURE(compress);
    expect_none(run_ranks(3, [&](Communicator& comm) {
      Net net(1);
      LocalSteps optimizer =
          make_local(net.store, comm, {.local = {2, -1, 1}, .compress = compress});
      for (int64_t step = 0; step < 2; ++step) train_step(net, optimizer, step, comm.rank());
      const std::vector<float> anchor = values_of(net);
      train_step(net, optimizer, 2, comm.rank());
      if (comm.rank() == 2)
        fill(net.store.find("first.weight")->value, std::numeric_limits<float>::infinity());
      const StepReport report = train_step(net, optimizer, 3, comm.rank());
      if (report.skipped_parameters == 0 || report.first_skipped.empty())
        throw Error("the report says nothing of it");
      const Tensor now = net.store.find("first.weight")->value;
      const Parameter& first = *net.store.find("first.weight");
      for (int64_t i = 0; i < now.size(); ++i)
        if (now.data<float>()[i] != anchor[static_cast<size_t>(first.offset + i)])
          throw Error("the spoilt layer is not the anchor's");
      if (!all_finite(net.store.values())) throw Error("weights that are not finite were spread");
      train_step(net, optimizer, 4, comm.rank());
      if (const StepReport last = train_step(net, optimizer, 5, comm.rank());
          last.skipped_parameters != 0)
        throw Error(concat("the next round is spoilt, too: ", last.first_skipped, " ",
                           last.skipped_parameters));
    }));
  }
}

TEST_CASE("local steps: with a delay, weights that are not finite stay with their learner") {
  expect_none(run_ranks(2, [&](Communicator& comm) {
    Net net(1);
    LocalSteps optimizer = make_local(net.store, comm, {.local = {3, -1, 1, 1}});
    for (int64_t step = 0; step < 9; ++step) {
      // Found when the exchange is made; and, in a step that it runs on through, by their learner.
      if ((step == 2 || step == 6) && comm.rank() == 1)
        fill(net.store.find("first.weight")->value, std::numeric_limits<float>::infinity());
      const StepReport report = train_step(net, optimizer, step, comm.rank());
      if (step > 2 && !all_finite(net.store.values()))
        throw Error(concat("step ", step, ": weights that are not finite"));
      const bool expected = step == 3 || (step == 6 && comm.rank() == 1);
      if (step > 2 && (report.skipped_parameters > 0) != expected)
        throw Error(concat("step ", step, ": ", report.skipped_parameters, " skipped"));
    }
  }));
}

TEST_CASE("local steps: a checkpoint within a round resumes bit for bit") {
  // With a delay it is made while an exchange is in flight, which has to end before.
  for (const std::string compress :
       {"", "scalecom:rate=10", "powersgd:rank=2", "qsgd:bits=4", "delayed"}) {
    CAPTURE(compress);
    const int64_t delay = compress == "delayed" ? 3 : 0;
    const LocalRun run{.local = {4, -1, 0.7, delay},
                       .outer = {.momentum = 0.5, .nesterov = true},
                       .compress = delay > 0 ? "topk:density=0.1" : compress};
    expect_none(run_ranks(2, [&](Communicator& comm) {
      Net net(1), copy(2);
      NamedTensors saved;
      LearnerOptimizer::State state;
      std::vector<float> model, end;
      {
        LocalSteps optimizer = make_local(net.store, comm, run);
        for (int64_t step = 0; step < 17; ++step) {
          if (step == 10) {
            state = optimizer.state();
            model = optimizer.shared_values().to_vector();
            for (const auto& [name, x] : optimizer.named_state())
              saved.emplace_back(name, x.clone());
          }
          train_step(net, optimizer, step, comm.rank());
        }
        end = values_of(net);
        if (optimizer.totals().traffic.sent == state.totals.traffic.sent)
          throw Error("nothing was sent");
      }
      LocalSteps again = make_local(copy.store, comm, run);
      copy.store.values().copy_from(Tensor::from(model));
      again.restore(state);
      const NamedTensors to = again.named_state();
      if (to.size() != saved.size()) throw Error("another number of tensors");
      for (size_t i = 0; i < to.size(); ++i) {
        if (to[i].first != saved[i].first) throw Error(to[i].first);
        to[i].second.copy_from(saved[i].second);
      }
      for (int64_t step = 10; step < 17; ++step) train_step(copy, again, step, comm.rank());
      if (values_of(copy) != end) throw Error("other bits than without a checkpoint");
    }));
  }
}

TEST_CASE("local steps: impossible options are refused") {
  Context context;
  const auto solo = make_solo();
  Net net(1);
  CHECK_THROWS_AS(make_local(net.store, *solo, {.local = {0, -1, 1}}), InputError);
  CHECK_THROWS_AS(make_local(net.store, *solo, {.local = {2, -1, 0}}), InputError);
  CHECK_THROWS_AS(make_local(net.store, *solo, {.local = {2, -1, 1, 2}}), InputError);
  LocalSteps alone = make_local(net.store, *solo, {.local = {2, -1, 1}});
  CHECK(alone.own_weights());
  CHECK_THROWS_AS(alone.set_micro_steps(2), InputError);
  for (int64_t step = 0; step < 4; ++step) train_step(net, alone, step, 0);
  CHECK(alone.optimizer().steps() == 4);
}

}  // namespace
}  // namespace heddle
