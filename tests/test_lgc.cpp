// LGC: conservation in both stages, the gate, messages between ranks, and equal bits on all ranks.
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "compress/codecs/bits.h"
#include "compress/lgc_autoencoder.h"
#include "core/kernels.h"
#include "tests/compress_helpers.h"

using namespace heddle;

namespace {

// Returns the norm over both layers of what a step lost, summed over the ranks: residuals before
// plus gradients, minus residuals after, minus the sums; relative to the norm of the sums.
double lost(const std::vector<RankRun>& runs, size_t step) {
  double wrong = 0, all = 0;
  for (const std::string layer : {"conv2.weight", "fc.weight"}) {
    const Values sum = part_of(runs[0].sums[step], layer);
    std::vector<double> rest(sum.size());
    for (const RankRun& run : runs) {
      const Values given = part_of(run.given[step], layer);
      const Values& after = run.states[step].at("residual." + layer);
      for (size_t i = 0; i < rest.size(); ++i) {
        rest[i] += double{given[i]} - after[i];
        if (step > 0) rest[i] += run.states[step - 1].at("residual." + layer)[i];
      }
    }
    for (size_t i = 0; i < rest.size(); ++i) {
      wrong += (rest[i] - sum[i]) * (rest[i] - sum[i]);
      all += double{sum[i]} * sum[i];
    }
  }
  return std::sqrt(wrong / all);
}

}  // namespace

TEST_CASE("lgc: nothing is lost, but what a nonlinear decoder makes of a mean") {
  for (const int ranks : {1, 3})
    for (const std::string order : {"value", "index"})
      for (const std::string codec : {"linear", "paper"}) {
        CAPTURE(ranks);
        const std::string spec =
            concat("lgc:density=0.02,train=4,gate=10,codec=", codec, ",order=", order);
        CAPTURE(spec);
        const auto runs = reduce_ranks(ranks, spec, {.steps = 8});
        for (size_t step = 0; step < 8; ++step) {
          CAPTURE(step);
          const bool coded = step >= 4;  // decided at the end of step 3
          CHECK((runs[0].states[step].at("autoencoder.progress")[1] > 0) == (step >= 3));
          if (coded && codec == "paper" && ranks > 1)
            CHECK(lost(runs, step) > 1e-5);
          else
            CHECK(lost(runs, step) < 5e-6);
          for (const RankRun& run : runs) CHECK(run.sums[step] == runs[0].sums[step]);
        }
      }
}

TEST_CASE("lgc: in stage 2 the sums are exact at the leader's largest elements") {
  const auto runs = reduce_ranks(3, "lgc:density=0.02,train=5", {.steps = 3});
  for (size_t step = 0; step < 3; ++step) {
    const Values led = part_of(runs[step].given[step], "fc.weight");
    std::vector<float> x = led;
    if (step > 0)
      for (size_t i = 0; i < x.size(); ++i)
        x[i] += runs[step].states[step - 1].at("residual.fc.weight")[i];
    const Indices largest = select_top(x, 35);
    const Values sum = part_of(runs[0].sums[step], "fc.weight");
    size_t sent = 0;
    for (size_t i = 0; i < sum.size(); ++i) sent += sum[i] != 0 ? 1 : 0;
    CHECK(sent == 35);
    for (const uint32_t i : largest) {
      double expected = 0;
      for (const RankRun& run : runs) {
        expected += part_of(run.given[step], "fc.weight")[i];
        if (step > 0) expected += run.states[step - 1].at("residual.fc.weight")[i];
        CHECK(run.states[step].at("residual.fc.weight")[i] == 0);
      }
      CHECK(sum[i] == doctest::Approx(expected).epsilon(1e-5));
    }
  }
}

TEST_CASE("lgc: the leader's order of values is easier to code than that of their indices") {
  const auto error = [](const std::string& order) {
    const auto runs = reduce_ranks(4, "lgc:density=0.02,train=1000,order=" + order, {.steps = 150});
    return runs[0].states[149].at("autoencoder.progress")[2];
  };
  const float by_value = error("value"), by_index = error("index");
  CHECK(by_value < 0.5);
  CHECK(by_index > 0.6);
}

TEST_CASE("lgc: training passes over a long sequence, whatever other buckets train on") {
  struct Case {
    Shape shape;
    int64_t silent;  // the gradient's elements from here on are not zero
    int64_t windows;
  };
  for (const Case& c : {Case{{128, 64}, 4096, 2}, Case{{100, 90}, 8200, 3}}) {
    Context context;
    ParameterStore store;
    Parameter& other = store.add("other.weight", {40, 50}, constant_init(0));
    Parameter& layer = store.add("long.weight", c.shape, constant_init(0));
    store.finalize(1);
    const auto comm = make_solo();
    const auto reducer =
        make_reducer(parse_compress("lgc:density=1,train=1000,order=index"), {}, store);
    const auto error = [&] { return state_of(*reducer).at("autoencoder.progress")[2]; };
    Ledger ledger;
    for (int64_t step = 0; step < 2 * c.windows; ++step) {
      CAPTURE(step);
      const Philox rng(3, static_cast<uint64_t>(step));
      for (Parameter* p : {&layer, &other})
        for (int64_t i = 0; i < p->size(); ++i)
          p->grad.data<float>()[i] =
              p == &layer && i < c.silent ? 0.0f : rng.normal(static_cast<uint64_t>(i));
      const float before = error();
      CHECK(reducer->reduce(bucket_of(store, step, 0, 1), *comm, ledger));
      CHECK((error() != before) == (step % c.windows == c.windows - 1));
      CHECK(reducer->reduce(bucket_of(store, step, 1, 2), *comm, ledger));
    }
  }
}

TEST_CASE("lgc: what is huge next to the leader's values is coded in part, and the rest is kept") {
  ReduceOptions o{.steps = 12};
  o.fill = [](CompressModel& m, int rank, int64_t step) {
    m.fill_random(rank, step);
    if (step == 10 && rank != step % 2) scale(m.store.find("conv2.weight")->grad, 1e5f);
  };
  const auto runs = reduce_ranks(2, "lgc:density=0.02,train=4,gate=10", o);
  CHECK(lost(runs, 10) < 1e-3);  // values of 1e5 are rounded
  double moved = 0;              // of the layer that shares the code
  for (const float x : part_of(runs[0].sums[10], "fc.weight"))
    moved = std::max(moved, std::abs(double{x}));
  CHECK(moved < 20000);  // 1e5 and more without a bound
}

TEST_CASE("lgc: an invalid message of the leader is refused, and the residuals are unchanged") {
  // The message has rho and 35 indices of eleven bits, which lie in fc.weight below 1750.
  std::vector<uint32_t> indices(35);
  std::iota(indices.begin(), indices.end(), 1u);
  const auto result = [&](float rho) {
    std::string complaint;
    expect_none(run_ranks(2, [&](Communicator& comm) {
      if (comm.rank() == 1) {
        const Tensor sent = Tensor::zeros({4 + packed_bytes(35, 11)}, DType::u8);
        std::memcpy(sent.raw(), &rho, 4);
        pack_bits(indices.data(), 35, 11, sent.data<uint8_t>() + 4);
        comm.broadcast(sent, 1);
        if (rho >= 0 && indices[7] < 1750 && indices[6] != indices[7])
          comm.all_gather(Tensor::zeros({1 + 4 * 35}, DType::u8),
                          Tensor::empty_on(Device{}, {2, 1 + 4 * 35}, DType::u8));
        return;
      }
      CompressModel model;
      const auto reducer = make_reducer(parse_compress("lgc:density=0.02"), {}, model.store);
      const auto before = state_of(*reducer);
      model.fill_random(0, 0);
      Ledger ledger;
      try {
        complaint = reducer->reduce(model.bucket(1, 1, 2), comm, ledger) ? "accepted" : "rejected";
      } catch (const Error& error) {
        complaint = error.what();
        CHECK(state_of(*reducer) == before);
      }
    }));
    return complaint;
  };
  CHECK(result(1) == "accepted");
  CHECK(result(-1) == "lgc: expected a root mean square, found -1");
  CHECK(result(std::numeric_limits<float>::quiet_NaN()).starts_with("lgc: expected a root"));
  indices[6] = indices[7];
  CHECK(result(1) == "lgc: the leader selects an element twice");
  indices[6] = 7;
  indices[7] = 1750;
  CHECK(result(1) == "lgc: the leader selects 34 elements of fc.weight, expected 35");
}

TEST_CASE("lgc: the gate stays closed for an error above it") {
  std::vector<std::map<std::string, double>> figures;
  std::mutex mutex;
  ReduceOptions o{.steps = 20};
  o.before = [&](Reducer& reducer, int64_t step) {
    const std::lock_guard lock(mutex);
    if (step == 19) figures.push_back(reducer.figures());
  };
  (void)reduce_ranks(2, "lgc:density=0.02,train=5,gate=0.01", o);
  REQUIRE(figures.size() == 2);
  for (auto& each : figures) {
    CHECK(each["stage"] == 2);
    CHECK(each["decoder_error"] > 0.01);
  }
  figures.clear();
  const auto runs = reduce_ranks(2, "lgc:density=0.02,train=5,gate=10", o);
  for (const auto& each : figures)  // nothing is measured any more
    CHECK(each == std::map<std::string, double>{{"stage", 3}});
  const Values& progress = runs[0].states[19].at("autoencoder.progress");
  CHECK(progress[2] > 0);
  CHECK(progress == runs[1].states[19].at("autoencoder.progress"));
}

TEST_CASE("lgc: stage 3 sends a quarter as many values") {
  const auto runs = reduce_ranks(4, "lgc:density=0.5,train=2,gate=10,order=index", {.steps = 3});
  const auto& entries = runs[0].ledger.entries();
  const auto payload = [&](PayloadKind kind) {
    return entries.at({"fc.weight", kind}).payload + entries.at({"conv2.weight", kind}).payload;
  };
  const int64_t k = 875 + 576;
  CHECK(payload(PayloadKind::values) == 2 * 4 * k + 4 * GradientAutoencoder::code_size(k));
  CHECK(entries.at({"rho", PayloadKind::control}).payload == 3 * 2 * 4);  // three steps, two layers
  const int64_t weights = entries.at({"autoencoder", PayloadKind::control}).payload;
  CHECK(weights >= 4 * 248);
  CHECK(weights < 4 * 248 + 4 * 256);
}

TEST_CASE("lgc: a layer of small gradients is coded as well as one of large gradients") {
  ReduceOptions o{.steps = 20};
  const auto even = reduce_ranks(3, "lgc:density=0.02,train=10,gate=10", o);
  o.fill = [](CompressModel& m, int rank, int64_t step) {
    m.fill_random(rank, step);
    scale(m.store.find("conv2.weight")->grad, 1.0f / 64);
  };
  const auto uneven = reduce_ranks(3, "lgc:density=0.02,train=10,gate=10", o);
  for (size_t step = 0; step < 20; ++step) {
    CHECK(part_of(uneven[0].sums[step], "fc.weight") == part_of(even[0].sums[step], "fc.weight"));
    Values small = part_of(uneven[0].sums[step], "conv2.weight");
    for (float& x : small) x *= 64;
    CHECK(small == part_of(even[0].sums[step], "conv2.weight"));
  }
}

TEST_CASE("lgc: refreshed, the weights of all ranks move on together") {
  const auto runs = reduce_ranks(3, "lgc:density=0.02,train=4,gate=10,refresh=3", {.steps = 14});
  const auto weights = [&](size_t rank, size_t step) {
    return runs[rank].states[step].at("autoencoder.weights");
  };
  for (const size_t rank : {size_t{1}, size_t{2}}) {
    CHECK(weights(rank, 2) != weights(0, 2));  // only rank 0 trains
    CHECK(weights(rank, 3) == weights(0, 3));
    CHECK(weights(rank, 5) == weights(rank, 3));
    CHECK(weights(rank, 6) == weights(0, 6));  // step 6 trains
    CHECK(weights(rank, 6) != weights(rank, 5));
    CHECK(weights(rank, 8) == weights(rank, 6));
    CHECK(weights(rank, 9) != weights(rank, 8));
  }
  for (size_t step = 0; step < 14; ++step) {
    CHECK(lost(runs, step) < 2e-6);
    CHECK(runs[1].sums[step] == runs[0].sums[step]);
  }
}

TEST_CASE("lgc: zero gradients on all ranks, and on all but one") {
  ReduceOptions o{.steps = 8};
  o.fill = [](CompressModel& m, int rank, int64_t step) {
    if (step % 4 == 1 || (step % 4 == 2 && rank > 0))
      m.fill([](uint64_t) { return 0.0f; });
    else
      m.fill_random(rank, step);
  };
  const auto runs = reduce_ranks(2, "lgc:density=1,train=3,gate=10", o);
  for (size_t step = 0; step < 8; ++step) {
    CHECK(runs[0].accepted[step]);
    for (const float x : runs[0].sums[step]) CHECK(std::isfinite(x));
  }
  CHECK(part_of(runs[0].sums[1], "fc.weight") == Values(1750));
  CHECK(part_of(runs[0].sums[2], "fc.weight") == part_of(runs[0].given[2], "fc.weight"));
}

TEST_CASE("lgc: identical learners act as one") {
  ReduceOptions o{.steps = 60};
  o.fill = [](CompressModel& m, int, int64_t) { m.fill_random(0, 0); };
  const auto one = reduce_ranks(1, "lgc:density=0.02,train=50,gate=10", o);
  const auto four = reduce_ranks(4, "lgc:density=0.02,train=50,gate=10", o);
  for (size_t step = 0; step < 60; ++step) {
    CAPTURE(step);
    const Values a = part_of(one[0].sums[step], "fc.weight"),
                 b = part_of(four[0].sums[step], "fc.weight");
    double wrong = 0, all = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      wrong += std::pow(b[i] - 4 * a[i], 2);
      all += std::pow(b[i], 2);
    }
    CHECK(wrong <= 1e-6 * all);
  }
}

TEST_CASE("lgc: a leader whose gradients are constant selects others when its turn returns") {
  ReduceOptions o{.steps = 180};
  o.fill = [](CompressModel& m, int rank, int64_t) { m.fill_random(rank, 0); };
  const auto runs = reduce_ranks(4, "lgc:density=0.02,train=160,gate=10", o);
  size_t again = 0, sent = 0;
  for (size_t step = 164; step < 180; ++step) {
    const Values now = part_of(runs[0].sums[step], "fc.weight"),
                 before = part_of(runs[0].sums[step - 4], "fc.weight");
    for (size_t i = 0; i < now.size(); ++i) {
      sent += now[i] != 0 ? 1 : 0;
      again += now[i] != 0 && before[i] != 0 ? 1 : 0;
    }
  }
  CHECK(sent == 16 * 35);
  CHECK(again < 16 * 35 / 10);  // many if each rank subtracted what the mean code decodes to
}

TEST_CASE("lgc: residuals stay bounded over many coded steps, in both orders") {
  for (const std::string order : {"value", "index"}) {
    CAPTURE(order);
    double early = 0, late = 0;
    expect_none(run_ranks(4, [&](Communicator& comm) {
      CompressModel model;
      const auto reducer = make_reducer(parse_compress("lgc:density=0.02,train=300,order=" + order),
                                        {.seed = 5}, model.store);
      Ledger ledger;
      for (int64_t step = 0; step < 1800; ++step) {
        model.fill_random(comm.rank(), step);
        if (!reducer->reduce(model.bucket(step), comm, ledger)) throw Error("rejected");
        if (comm.rank() != 0 || (step != 600 && step != 1799)) continue;
        CHECK(reducer->figures().at("stage") == 3);
        for (const auto& [name, x] : reducer->named_state())
          if (name.starts_with("residual."))
            for (const float v : x.to_vector()) (step == 600 ? early : late) += double{v} * v;
      }
    }));
    MESSAGE("squares of the residuals after 600 and 1800 steps: ", early, ", ", late);
    CHECK(late < 4 * early);
  }
}

TEST_CASE("lgc: after four attempts the gate stays closed, and every rank is told") {
  std::mutex mutex;
  std::map<std::pair<int64_t, std::string>, int> notes;  // ranks by step and note
  std::map<int64_t, std::map<std::string, double>> figures;
  ReduceOptions o{.steps = 31};
  o.before = [&](Reducer& reducer, int64_t step) {
    const std::lock_guard lock(mutex);
    if (const std::string note = reducer.take_note(); !note.empty()) ++notes[{step, note}];
    if (const auto now = reducer.figures(); now.contains("decoder_error")) figures[step] = now;
  };
  const auto runs = reduce_ranks(2, "lgc:density=0.02,train=5,gate=0.01", o);
  REQUIRE(notes.size() == 4);
  int64_t attempt = 0;
  for (const auto& [note, ranks] : notes) {
    ++attempt;
    CHECK(note.first == 5 * attempt);
    CHECK(ranks == 2);
    CHECK(note.second.starts_with(
        concat("lgc: after ", 5 * attempt, " steps the autoencoder loses")));
    CHECK(note.second.ends_with("for good") == (attempt == 4));
  }
  CHECK(figures.begin()->first == 1);
  CHECK(figures.rbegin()->first == 19);  // nothing is measured afterwards
  const auto weights = [&](size_t step) { return runs[0].states[step].at("autoencoder.weights"); };
  CHECK(weights(18) != weights(19));
  CHECK(weights(30) == weights(19));
  for (size_t step = 20; step < 31; ++step) {
    CHECK(lost(runs, step) < 5e-6);
    CHECK(runs[1].sums[step] == runs[0].sums[step]);
    // The values as they are, in an all-reduce: nothing selected stays in a residual.
    const Values sum = part_of(runs[0].sums[step], "fc.weight");
    const Values& rest = runs[0].states[step].at("residual.fc.weight");
    CHECK(std::ranges::count_if(sum, [](float x) { return x != 0; }) == 35);
    for (size_t i = 0; i < sum.size(); ++i)
      if (sum[i] != 0) CHECK(std::abs(rest[i]) < 1e-5);
  }
}

TEST_CASE("lgc: a step of several buckets counts once, and each bucket is a sequence of its own") {
  ReduceOptions o{.steps = 8, .single_layers = true};
  for (const std::string refresh : {"", ",refresh=2"}) {
    const auto runs = reduce_ranks(3, "lgc:density=0.02,train=4,gate=10" + refresh, o);
    for (size_t step = 0; step < 8; ++step) {
      CAPTURE(step);
      const Values& progress = runs[0].states[step].at("autoencoder.progress");
      CHECK(progress[0] == static_cast<float>(step + 1));
      CHECK(progress[1] == (step < 3 ? 0 : 4));
      CHECK(lost(runs, step) < 5e-6);
      for (const RankRun& run : runs) {
        CHECK(run.accepted[step]);
        CHECK(run.sums[step] == runs[0].sums[step]);
      }
    }
    const auto& entries = runs[0].ledger.entries();
    const int64_t conv = GradientAutoencoder::code_size(23),
                  fc = GradientAutoencoder::code_size(35);
    // Two of the four steps retrain: the first bucket, which is fc.weight's, sends plain values.
    const int64_t retrained = refresh.empty() ? 0 : 2;
    CHECK(entries.at({"fc.weight", PayloadKind::values}).payload ==
          4 * ((4 + retrained) * 35 + (4 - retrained) * fc));
    // The decision falls between the two buckets of the fourth step.
    CHECK(entries.at({"conv2.weight", PayloadKind::values}).payload == 4 * (3 * 23 + 5 * conv));
  }
}

TEST_CASE("lgc: zeros alone train nothing and open no gate") {
  ReduceOptions o{.steps = 9};
  o.fill = [](CompressModel& m, int, int64_t) { m.fill([](uint64_t) { return 0.0f; }); };
  std::mutex mutex;
  o.before = [&](Reducer& reducer, int64_t step) {
    const std::lock_guard lock(mutex);
    if (step == 8) CHECK(reducer.figures() == std::map<std::string, double>{{"stage", 2}});
  };
  for (const RankRun& run : reduce_ranks(2, "lgc:density=0.02,train=3,gate=10", o))
    CHECK(run.states[8].at("autoencoder.steps") == Values(1));
}
