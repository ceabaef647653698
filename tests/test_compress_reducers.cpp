// Every reducer: the same bits on all ranks, the ledger, gradients that are not finite, the choice
// of compressed layers, checkpoints; and quantising reducers.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/compress_helpers.h"

using namespace heddle;

namespace {

double worst_difference(const Values& a, const Values& b) {
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(double{a[i]} - b[i]));
  return worst;
}

Values exact_sum(const std::vector<RankRun>& runs, size_t step) {
  Values sum = runs[0].given[step];
  for (size_t r = 1; r < runs.size(); ++r)
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += runs[r].given[step][i];
  return sum;
}

std::string complaint(const std::function<void()>& call) {
  try {
    call();
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("reducers: equal bits on all ranks; the ledger's total is the communicator's") {
  for (const std::string& spec : kAllSpecs)
    for (int p : {1, 2, 3, 4, 5}) {
      CAPTURE(spec);
      CAPTURE(p);
      const auto runs = reduce_ranks(p, spec);
      for (const RankRun& run : runs) {
        CHECK(run.sums == runs[0].sums);
        CHECK(run.accepted == std::vector<bool>(6, true));
        CHECK(run.ledger.total().sent == run.traffic.sent);
        CHECK(run.ledger.total().received == run.traffic.received);
        for (const auto& [key, entry] : run.ledger.entries())
          if (key.second != PayloadKind::control) CHECK(place_of(key.first).second > 0);
      }
      // Dense layers are exact to rounding; the padding between parameters stays zero.
      const Values sum = exact_sum(runs, 2);
      for (const std::string layer : {"conv1.weight", "bn1.weight", "fc.bias"})
        if (spec != "bf16" && spec != "fp16")
          CHECK(worst_difference(part_of(runs[0].sums[2], layer), part_of(sum, layer)) < 1e-5);
      Values rest = runs[0].sums[2];
      for (const std::string layer :
           {"conv1.weight", "bn1.weight", "conv2.weight", "fc.weight", "fc.bias"}) {
        const auto [offset, size] = place_of(layer);
        std::fill_n(rest.begin() + offset, size, 0.0f);
      }
      CHECK(rest == Values(rest.size()));
    }
}

TEST_CASE("reducers: two runs, and buckets of one layer or of all, give the same bits") {
  for (const std::string& spec : kAllSpecs) {
    CAPTURE(spec);
    const auto runs = reduce_ranks(2, spec), again = reduce_ranks(2, spec);
    CHECK(again[1].sums == runs[0].sums);
    CHECK(again[1].states == runs[1].states);
    // Sums of two do not depend on the position in the bucket; the noise that rounds them does, and
    // LGC codes the bucket as a whole. Whose residual gets what a sum's rounding loses depends on
    // the position, too.
    if (spec == "qsgd:bits=4,bucket=64" || spec.starts_with("lgc")) continue;
    if (spec == "scalecom:rate=30,beta=0.3,values=bf16") continue;
    const auto single = reduce_ranks(2, spec, {.single_layers = true});
    CHECK(single[0].sums == runs[0].sums);
    CHECK(single[1].states == runs[1].states);
  }
}

TEST_CASE(
    "not finite on one rank: all ranks reject, residuals are unchanged, the next step is right") {
  for (const std::string& spec : kAllSpecs)
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()})
      for (const std::string where : {"fc.weight", "fc.bias"})
        for (int culprit : {0, 1, 2}) {  // 0 leads step 3
          CAPTURE(spec);
          CAPTURE(where);
          CAPTURE(culprit);
          const auto fill = [&](CompressModel& m, int rank, int64_t step) {
            m.fill_random(rank, step);
            if (step == 3 && rank == culprit) m.store.find(where)->grad.data<float>()[20] = bad;
          };
          const auto runs = reduce_ranks(3, spec, {.fill = fill});
          const auto without = reduce_ranks(3, spec, {.step_numbers = {0, 1, 2, 4, 5}});
          for (size_t r = 0; r < 3; ++r) {
            CHECK(runs[r].accepted == std::vector<bool>{true, true, true, false, true, true});
            CHECK(runs[r].states[3] == runs[r].states[2]);
            CHECK(runs[r].sums[4] == without[r].sums[3]);
            CHECK(runs[r].sums[5] == without[r].sums[4]);
            CHECK(runs[r].states[5] == without[r].states[4]);
          }
          if (spec == "none") break;
        }
}

TEST_CASE("not finite in a bucket of one compressed layer, without dense layers") {
  for (const std::string& spec : kAllSpecs) {
    CAPTURE(spec);
    const auto fill = [](CompressModel& m, int rank, int64_t step) {
      m.fill_random(rank, step);
      if (step == 1 && rank == 1) m.store.find("fc.weight")->grad.data<float>()[20] = NAN;
    };
    for (RankRun& run : reduce_ranks(2, spec, {.steps = 3, .fill = fill, .single_layers = true})) {
      CHECK(run.accepted == std::vector<bool>{true, false, true});
      CHECK(run.states[1]["residual.fc.weight"] == run.states[0]["residual.fc.weight"]);
    }
  }
}

TEST_CASE("a failed collective leaves residuals unchanged, bit for bit") {
  for (const std::string& spec : kAllSpecs) {
    CAPTURE(spec);
    expect_none(run_ranks(2, [&](Communicator& comm) {
      CompressModel model;
      const auto reducer = make_reducer(parse_compress(spec), {.seed = 5}, model.store);
      Ledger ledger;
      model.fill_random(comm.rank(), 0);
      reducer->reduce(model.bucket(0), comm, ledger);
      if (comm.rank() == 1) return comm.abort("gone");
      const auto before = state_of(*reducer);
      model.fill_random(0, 1);
      bool failed = false;
      try {
        reducer->reduce(model.bucket(1), comm, ledger);
      } catch (const Error&) {
        failed = true;
      }
      if (!failed) throw Error("the other rank is gone, and nothing was noticed");
      if (state_of(*reducer) != before) throw Error("the residuals have changed");
    }));
  }
}

TEST_CASE("finite gradients too large for a residual: all ranks reject, residuals are unchanged") {
  for (const std::string& spec : kAllSpecs) {
    CAPTURE(spec);
    const auto fill = [](CompressModel& m, int rank, int64_t step) {
      m.fill_random(rank, step);
      if (step == 1)
        for (float& v : std::span(m.store.find("fc.weight")->grad.data<float>(), 1750)) v = 3e38f;
    };
    for (const RankRun& run : reduce_ranks(3, spec, {.steps = 3, .fill = fill})) {
      CHECK(run.accepted == std::vector<bool>{true, false, true});
      CHECK(run.states[1] == run.states[0]);
    }
  }
}

TEST_CASE("casts: a value beyond fp16, on one rank or in the sum, is applied on none") {
  struct Case {
    std::string spec;
    float value;
    bool everywhere, accepted;
  };
  for (const Case& c : {Case{"fp16", 7e4f, false, false}, Case{"fp16", 4e4f, true, false},
                        Case{"fp16", 4e4f, false, true}, Case{"fp16", 2e4f, true, true},
                        Case{"bf16", 7e4f, true, true}}) {
    CAPTURE(c.spec);
    CAPTURE(c.value);
    const auto fill = [&](CompressModel& m, int rank, int64_t step) {
      m.fill_random(rank, step);
      if (step == 1 && (c.everywhere || rank == 1))
        m.store.find("fc.weight")->grad.data<float>()[3] = c.value;
    };
    for (const RankRun& run : reduce_ranks(3, c.spec, {.steps = 3, .fill = fill}))
      CHECK(run.accepted == std::vector<bool>{true, c.accepted, true});
  }
}

TEST_CASE("powersgd: an overflowing factor of finite gradients is used on no rank") {
  const auto fill = [](CompressModel& m, int rank, int64_t step) {
    m.fill_random(rank, step);
    if (step == 1 || step == 2)
      for (float& v : std::span(m.store.find("fc.weight")->grad.data<float>(), 1750)) v = 9e29f;
  };
  const auto before = [&](Reducer& reducer, int64_t step) {
    if (step != 2) return;  // as in a checkpoint written before factors were scaled
    for (const auto& [name, x] : reducer.named_state())
      if (name == "factor.fc.weight") std::fill_n(x.data<float>(), x.size(), 1e31f);
  };
  for (const char* spec : {"powersgd:rank=2", "powersgd:rank=2,values=bf16"})
    for (const RankRun& run : reduce_ranks(2, spec, {.steps = 3, .fill = fill, .before = before})) {
      CAPTURE(spec);
      CHECK(run.accepted == std::vector<bool>{true, true, false});
      for (const std::string name :
           {"residual.fc.weight", "residual.conv2.weight", "factor.conv2.weight"})
        CHECK(run.states[2].at(name) == run.states[1].at(name));
    }
}

TEST_CASE("which layers are dense: first convolution, one axis, small ones, named ones") {
  Context context;
  CompressModel model;
  const auto compressed = [&](const ReducerOptions& options) {
    std::string names;
    const auto reducer = make_reducer(parse_compress("topk"), options, model.store);
    for (const Parameter& p : model.store.parameters())
      if (reducer->choices().contains(p.name)) names += p.name + " ";
    return names;
  };
  CHECK(compressed({}) == "conv2.weight fc.weight ");
  CHECK(compressed({.min_compress = 1152}) == "conv2.weight fc.weight ");
  CHECK(compressed({.min_compress = 1153}) == "fc.weight ");
  CHECK(compressed({.min_compress = 0}) == "conv2.weight fc.weight ");
  CHECK(compressed({.dense_layers = "^fc"}) == "conv2.weight ");
  CHECK(compressed({.dense_layers = "weight"}) == "");
  CHECK(complaint([&] { compressed({.dense_layers = "("}); }).find("\"(\"") != std::string::npos);

  for (const std::string frozen : {"conv1", "conv2"}) {  // the first of all, not of those trained
    ParameterStore store;
    store.freeze([&](const std::string& name) { return name.starts_with(frozen); });
    for (const char* name : {"conv1.weight", "conv2.weight", "conv3.weight"})
      store.add(name, {16, 16, 3, 3}, constant_init(0));
    store.finalize(1);
    const auto choices = make_reducer(parse_compress("topk"), {}, store)->choices();
    CHECK_FALSE(choices.contains("conv1.weight"));
    CHECK(choices.contains("conv2.weight") == (frozen == "conv1"));
    CHECK(choices.contains("conv3.weight"));
  }

  const auto reducer = make_reducer(parse_compress("qsgd"), {}, model.store);
  reducer->set_choice("fc.weight", 8);
  CHECK(reducer->choices().at("fc.weight") == 8);
  CHECK(reducer->choices().at("conv2.weight") == 4);
  CHECK(complaint([&] { reducer->set_choice("fc.weight", 9); }) ==
        "fc.weight: bits: expected a whole number from 2 to 8, found 9");
  CHECK(complaint([&] { reducer->set_choice("fc.bias", 8); }) != "");
  CHECK(complaint([&] { reducer->set_choice("fc", 8); }) != "");
  for (const char* spec : {"none", "bf16"})
    CHECK(complaint([&] {
            make_reducer(parse_compress(spec), {}, model.store)->set_choice("fc.weight", 8);
          }) != "");
}

TEST_CASE("payload: the bytes of a parameter in a step equal the ledger's") {
  Context context({.threads = 1});
  for (const char* spec :
       {"bf16", "fp16", "scalecom:rate=50", "scalecom:rate=1000", "topk:density=0.05,indices=plain",
        "randomk:density=0.02", "qsgd:bits=4", "powersgd:rank=2", "scalecom:rate=50,values=bf16",
        "topk:density=0.05,indices=plain,values=bf16", "randomk:density=0.02,values=bf16",
        "powersgd:rank=2,values=bf16"}) {
    const int steps = 4;
    const std::vector<RankRun> runs = reduce_ranks(2, spec, {.steps = steps});
    CompressModel model;
    const auto made = make_reducer(parse_compress(spec), {.seed = 5}, model.store);
    const auto& reducer = dynamic_cast<const CompressedReducer&>(*made);
    for (const Parameter& p : model.store.parameters()) {
      int64_t counted = 0;
      for (const auto kind : {PayloadKind::values, PayloadKind::indices, PayloadKind::scales})
        if (const auto entry = runs[1].ledger.entries().find({p.name, kind});
            entry != runs[1].ledger.entries().end())
          counted += entry->second.payload;
      CAPTURE(spec);
      CAPTURE(p.name);
      CHECK(counted == steps * reducer.payload(p.name));
      CHECK((reducer.payload(p.name) < p.size() * 4) == reducer.compresses(p.name));
    }
  }
  CompressModel model;
  const auto open = make_reducer(parse_compress("scalecom:rate=auto"), {.seed = 5}, model.store);
  CHECK(dynamic_cast<const CompressedReducer&>(*open).payload("fc.weight") ==
        model.store.find("fc.weight")->size() * 4);
}

TEST_CASE("state: copied into a new reducer it continues bit for bit") {
  for (const std::string& spec : kAllSpecs) {
    CAPTURE(spec);
    const auto runs = reduce_ranks(2, spec);
    std::vector<RankRun> resumed(2);
    expect_none(run_ranks(2, [&](Communicator& comm) {
      const auto r = static_cast<size_t>(comm.rank());
      CompressModel model;
      const auto reducer = make_reducer(parse_compress(spec), {.seed = 5}, model.store);
      for (const auto& [name, x] : reducer->named_state())
        x.copy_from(Tensor::from(runs[r].states[2].at(name), x.shape()));
      for (int64_t step = 3; step < 6; ++step) {
        model.fill_random(comm.rank(), step);
        reducer->reduce(model.bucket(step), comm, resumed[r].ledger);
        resumed[r].sums.push_back(flat_values(model.store.grads()));
      }
    }));
    for (size_t s = 0; s < 3; ++s) CHECK(resumed[1].sums[s] == runs[0].sums[s + 3]);
  }
}

TEST_CASE("casts: each gradient and the sum are rounded once") {
  for (const std::string spec : {"fp16", "bf16"})
    for (int p : {1, 2, 5}) {
      CAPTURE(spec);
      const double unit = spec == "fp16" ? 1.0 / 2048 : 1.0 / 256;
      const auto runs = reduce_ranks(p, spec);
      const Values sum = part_of(exact_sum(runs, 1), "fc.weight");
      const Values got = part_of(runs[0].sums[1], "fc.weight");
      std::vector<Values> given;
      for (const RankRun& run : runs) given.push_back(part_of(run.given[1], "fc.weight"));
      for (size_t i = 0; i < sum.size(); ++i) {
        double bound = 1e-6;
        for (const Values& g : given) bound += unit * std::abs(g[i]);
        CHECK(std::abs(got[i] - sum[i]) <= bound + unit * (std::abs(sum[i]) + bound));
      }
      CHECK(worst_difference(got, sum) > 1e-5);
      int64_t payload = 0;  // 16 bits each, counted once though they are sent twice
      for (const auto& [key, entry] : runs[0].ledger.entries())
        if (key.first == "fc.weight") payload += entry.payload;
      CHECK(payload == 6 * 2 * 1750);
    }
}

TEST_CASE("qsgd: error bound, unbiased over steps, independent noise of ranks, bytes counted") {
  // Four bits: 7 steps up to the largest of 64 elements, which is below 7 here; the noise of P
  // ranks and of the sum.
  const auto fill = [](CompressModel& m, int rank, int64_t) { m.fill_random(rank, 0); };
  constexpr int kSteps = 400;
  const auto runs = reduce_ranks(3, "qsgd:bits=4,bucket=64", {.steps = kSteps, .fill = fill});
  const Values sum = part_of(exact_sum(runs, 0), "fc.weight");
  std::vector<double> mean(sum.size());
  double square = 0;
  for (const Values& flat : runs[0].sums) {
    const Values got = part_of(flat, "fc.weight");
    CHECK(worst_difference(got, sum) < 3 * 7.0 / 7 + 21.0 / 7);
    for (size_t i = 0; i < mean.size(); ++i) {
      mean[i] += got[i] / double{kSteps};
      square += (got[i] - sum[i]) * double{got[i] - sum[i]} / (kSteps * double{1750});
    }
  }
  // Rounding to one of two neighbours has a variance of at most a quarter of their squared
  // distance: for each rank, and for the sum, which is off by the ranks' steps when rounded again.
  double bound = 0;
  for (size_t b = 0; b < sum.size(); b += 64) {
    const size_t end = std::min(b + 64, sum.size());
    const auto step = [&](const Values& x) {
      float largest = 0;
      for (size_t i = b; i < end; ++i) largest = std::max(largest, std::abs(x[i]));
      return double{largest} / 7;
    };
    double squares = 0, steps = 0;
    for (const RankRun& run : runs) {
      const double of_rank = step(part_of(run.given[0], "fc.weight"));
      squares += of_rank * of_rank;
      steps += of_rank;
    }
    const double of_sum = step(sum) + steps / 7;
    bound += static_cast<double>(end - b) * (squares + of_sum * of_sum) / 4 / 1750;
  }
  CHECK(square <= bound);
  CHECK(square > bound / 4);
  const double deviation = std::sqrt(square);
  for (size_t i = 0; i < mean.size(); ++i)
    CHECK(std::abs(mean[i] - sum[i]) < 6 * deviation / std::sqrt(kSteps));
  // 4 bits an element and a scale for every 64 of them; sending them twice does not count.
  const auto entry = [&](PayloadKind kind) {
    return runs[0].ledger.entries().at({"fc.weight", kind}).payload / kSteps;
  };
  CHECK(entry(PayloadKind::values) == 875);
  CHECK(entry(PayloadKind::scales) == 28 * 4);

  // Equal gradients on all ranks except for one large element in each block, which sets the levels
  // and cancels in the sum, so the ranks' errors remain. The squared error of the mean of eight is
  // an eighth of one rank's if errors are independent, and as large if all ranks round in the same
  // way.
  const auto equal = [](CompressModel& m, int rank, int64_t) {
    m.fill_random(0, 0);
    float* x = m.store.find("fc.weight")->grad.data<float>();
    for (int64_t i = 0; i < 1750; i += 64) x[i] = rank % 2 == 0 ? 20.0f : -20.0f;
  };
  const auto spread = [&](int p) {
    const auto r = reduce_ranks(p, "qsgd:bits=6,bucket=64", {.steps = 40, .fill = equal});
    const Values exact = part_of(exact_sum(r, 0), "fc.weight");
    double error = 0;
    for (const Values& flat : r[0].sums) {
      const Values got = part_of(flat, "fc.weight");
      for (size_t i = 0; i < got.size(); ++i)
        if (i % 64 != 0) error += (got[i] - exact[i]) * double{got[i] - exact[i]};
    }
    return error / p / p;
  };
  const double ratio = spread(8) / spread(1);
  CHECK(ratio > 0.1);
  CHECK(ratio < 0.2);
}
