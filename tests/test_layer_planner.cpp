// L-GreCo during training: tables against the codecs' errors, windows, and plans that are equal on
// all ranks, keep their budget, and can be replayed.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "compress/codecs/low_rank.h"
#include "compress/codecs/quantize.h"
#include "tests/planner_helpers.h"

using namespace heddle;

namespace {

const std::vector<std::string> kPlanned = {"topk:density=0.05",
                                           "topk:density=0.05,indices=plain",
                                           "randomk:density=0.05",
                                           "scalecom:rate=20",
                                           "scalecom:rate=20,beta=0.3,select=exact",
                                           "qsgd:bits=4,bucket=100",
                                           "qsgd:bits=4,rounding=nearest",
                                           "adacomp:bin=20",
                                           "adacomp:bin=20,scale=bin",
                                           "powersgd:rank=3"};

double norm_of(const Values& x) {
  double squares = 0;
  for (const float v : x) squares += static_cast<double>(v) * v;
  return std::sqrt(squares);
}

Tensor random_tensor(int64_t n, uint64_t seed) {
  Tensor x = Tensor::empty_on(Device{}, {n});
  for (int64_t i = 0; i < n; ++i) {
    const float v = Philox(seed, 7).normal(static_cast<uint64_t>(i));
    x.data<float>()[i] = v * v * v;
  }
  return x;
}

// Returns the error of one encoding of x by a plain calculation.
double lost(const std::string& family, const Values& x, double setting, uint64_t draw) {
  Values rest = x;
  const auto n = std::ssize(x);
  const auto drop_largest = [&](int64_t begin, int64_t end, int64_t k) {
    std::sort(rest.begin() + begin, rest.begin() + end,
              [](float a, float b) { return std::abs(a) > std::abs(b); });
    std::fill_n(rest.begin() + begin, k, 0.0f);
  };
  const auto rate = static_cast<int64_t>(setting);
  if (family == "chunk") {
    for (int64_t c = 0; c < n; c += rate) drop_largest(c, std::min(n, c + rate), 1);
  } else if (family == "exact") {
    drop_largest(0, n, (n + rate - 1) / rate);
  } else if (family == "topk") {
    drop_largest(0, n, std::llround(setting * static_cast<double>(n)));
  } else if (family.ends_with("scale")) {
    std::vector<double> largest;
    for (int64_t b = 0; b < n; b += rate) {
      drop_largest(b, std::min(n, b + rate), 0);
      largest.push_back(std::abs(rest[static_cast<size_t>(b)]));
    }
    const double top = *std::ranges::max_element(largest);
    double sum = 0;
    for (const double m : largest) sum += m / static_cast<double>(largest.size());
    for (size_t b = 0; b < largest.size(); ++b) {
      float& first = rest[b * static_cast<size_t>(rate)];
      const double code = std::round(8 * std::log2(top / largest[b]));
      const double s = family == "one scale" ? sum : top * std::exp2(-code / 8);
      first = static_cast<float>(largest[b] - s);
    }
  } else if (family == "randomk") {
    const int64_t k = std::llround(setting * static_cast<double>(n));
    for (const uint32_t i : select_random(n, k, Philox(draw, 3))) rest[i] = 0;
  } else {
    const int64_t block = family == "nearest" ? 512 : 100;
    for (int64_t b = 0; b < n; b += block) {
      const int64_t m = std::min(block, n - b);
      const int bits = static_cast<int>(setting);
      std::vector<uint8_t> bytes(static_cast<size_t>(quantized_bytes(m, bits)));
      const auto noise = family == "nearest" ? std::nullopt : std::optional<Philox>({draw, 9});
      quantize(x.data() + b, m, bits, noise, b, bytes.data());
      dequantize(bytes.data(), m, bits, rest.data() + b);
    }
    for (int64_t i = 0; i < n; ++i) rest[static_cast<size_t>(i)] -= x[static_cast<size_t>(i)];
  }
  return norm_of(rest);
}

void reduce_all(PlannedModel& model, Reducer& reducer, Communicator& comm, Ledger& ledger,
                int64_t step) {
  auto& all = model.store.parameters();
  GradientBucket bucket{model.store.grads(), {}, step};
  for (size_t i = all.size(); i-- > 0;) bucket.parameters.push_back(&all[i]);
  (void)reducer.reduce(bucket, comm, ledger);
}

// Runs ScaleCom under a planner, without an optimizer; returns its state before the last step.
LayerPlannerState plan_alone(
    Communicator& comm, const LayerPlannerOptions& options, int64_t steps,
    double (*lr)(int64_t step) = [](int64_t) { return 0.1; }) {
  PlannedModel model;
  auto reducer = reducer_of("scalecom:rate=20", model.store);
  LayerPlanner planner(dynamic_cast<CompressedReducer&>(*reducer), options, 0);
  Ledger ledger;
  LayerPlannerState state;
  for (int64_t step = 0; step < steps; ++step) {
    model.fill(static_cast<uint64_t>(comm.rank()), step, 0);
    reduce_all(model, *reducer, comm, ledger, step);
    state = planner.state();
    planner.finish_step(step + 1, lr(step), [&](const auto&, const auto& call) { call(comm); });
  }
  return state;
}

}  // namespace

TEST_CASE("planner: a plan's errors are the mean of all ranks' tables") {
  constexpr int kRanks = 3;
  std::vector<std::vector<double>> tables(kRanks);
  std::vector<LayerChoices> layers;
  expect_none(run_ranks(kRanks, [&](Communicator& comm) {
    LayerPlannerOptions options{.every = 6, .window = 3};
    if (comm.rank() == 0)
      options.on_plan = [&](const PlanReport& report) { layers = report.layers; };
    // Closed at 6, due at 9.
    tables[static_cast<size_t>(comm.rank())] = plan_alone(comm, options, 9).table;
  }));
  size_t at = 0;
  for (const LayerChoices& layer : layers)
    for (const double error : layer.errors) {
      double mean = 0;
      for (const std::vector<double>& table : tables) mean += table.at(at) / kRanks;
      CHECK(error == doctest::Approx(mean).epsilon(1e-12));
      CHECK(std::abs(tables[0][at] - tables[1][at]) > 1e-6 * mean);
      ++at;
    }
  CHECK(at == tables[0].size());
  CHECK(at > 0);
}

TEST_CASE("planner: a run resumed while a plan is being solved arrives at the same plan") {
  // Windows close at 6 and 12, plans are due at 9 and 15; the learning rate falls at the last step.
  constexpr int64_t kDue = 15;
  const auto lr = [](int64_t step) { return step + 1 < kDue ? 0.1 : 0.05; };
  expect_none(run_ranks(2, [&](Communicator& comm) {
    std::vector<PlanReport> plans;
    LayerPlannerOptions options{.every = 6, .window = 3, .accordion = true};
    options.on_plan = [&](const PlanReport& report) { plans.push_back(report); };
    const LayerPlannerState state = plan_alone(comm, options, kDue, lr);
    PlannedModel model;
    auto reducer = reducer_of("scalecom:rate=20", model.store);
    LayerPlanner other(dynamic_cast<CompressedReducer&>(*reducer), options, 0);
    other.restore(kDue - 1, state);
    other.finish_step(kDue, lr(kDue - 1), [&](const auto&, const auto& call) { call(comm); });
    if (plans.size() != 3) throw Error(concat(plans.size(), " plans"));
    const PlanReport &whole = plans[1], &resumed = plans[2];
    if (whole.critical != std::vector<bool>(6, false)) throw Error("judged by a later rate");
    if (resumed.critical != whole.critical || resumed.plan.chosen != whole.plan.chosen ||
        resumed.plan.error != whole.plan.error || resumed.step != whole.step)
      throw Error("a different plan");
  }));
}

TEST_CASE("planner: with another interval the next table replaces an unfinished plan") {
  // A window closes at 12, its plan is due at 15; after the resume a window closes at 15, with its
  // plan due at once.
  expect_none(run_ranks(2, [&](Communicator& comm) {
    const LayerPlannerState state = plan_alone(comm, {.every = 6, .window = 3}, 14);
    if (state.due != 15) throw Error(concat("due at ", state.due));
    std::vector<PlanReport> plans;
    LayerPlannerOptions options{.every = 15, .window = 15};
    options.on_plan = [&](const PlanReport& report) { plans.push_back(report); };
    PlannedModel model;
    auto reducer = reducer_of("scalecom:rate=20", model.store);
    LayerPlanner planner(dynamic_cast<CompressedReducer&>(*reducer), options, 0);
    planner.restore(13, state);
    Ledger ledger;
    for (int64_t step = 13; step < 15; ++step) {
      model.fill(static_cast<uint64_t>(comm.rank()), step, 3);  // other layers are the peaked ones
      reduce_all(model, *reducer, comm, ledger, step);
      planner.finish_step(step + 1, 0.1, [&](const auto&, const auto& call) { call(comm); });
    }
    if (plans.size() != 1 || plans[0].step != 15) throw Error(concat(plans.size(), " plans"));
    const std::vector<double> before = mean_over_ranks(comm, state.table);
    size_t at = 0, same = 0;
    for (const LayerChoices& layer : plans[0].layers)
      for (const double error : layer.errors) same += error == before.at(at++);
    if (at != before.size() || same == at) throw Error("the plan is from the previous table");
    if (plans[0].plan.budget != plan_layers(plans[0].layers).budget)
      throw Error("the plan and its layers are from different tables");
  }));
}

TEST_CASE("planner: error tables equal the error of encoding and decoding") {
  Context context({.threads = 2});
  PlannedModel model;
  const std::vector<std::string> families = {"topk",  "topk",    "randomk",   "chunk",      "exact",
                                             "noise", "nearest", "one scale", "bin's scale"};
  for (size_t f = 0; f < families.size(); ++f) {
    const auto reducer = reducer_of(kPlanned[f], model.store);
    const auto& compressed = dynamic_cast<const CompressedReducer&>(*reducer);
    for (const LayerChoices& layer : compressed.candidates()) {
      const Tensor x = random_tensor(model.store.find(layer.name)->size(), f);
      const std::vector<double> errors = compressed.errors(layer, x);
      REQUIRE(errors.size() == layer.settings.size());
      for (size_t c = 0; c < errors.size(); ++c) {
        CAPTURE(kPlanned[f]);
        CAPTURE(layer.settings[c]);
        const bool random = families[f] == "randomk" || families[f] == "noise";
        double squares = 0;
        const uint64_t draws = random ? 300 : 1;
        for (uint64_t draw = 0; draw < draws; ++draw)
          squares += std::pow(lost(families[f], x.to_vector(), layer.settings[c], draw), 2);
        const double expected = std::sqrt(squares / static_cast<double>(draws));
        CHECK(errors[c] == doctest::Approx(expected).epsilon(random ? 0.01 : 1e-5));
      }
    }
  }
}

TEST_CASE("plans: nine settings from a quarter to four times the uniform one, on a log scale") {
  Context context;
  PlannedModel model;
  const auto settings = [&](const char* spec) {
    const auto reducer = reducer_of(spec, model.store);
    return dynamic_cast<const CompressedReducer&>(*reducer).candidates()[0].settings;
  };
  CHECK(settings("scalecom:rate=20") == std::vector<double>{5, 7, 10, 14, 20, 28, 40, 57, 80});
  const std::vector<double> densities = settings("topk:density=0.1");
  REQUIRE(densities.size() == 9);
  for (size_t i = 0; i < 9; ++i)
    CHECK(densities[i] == doctest::Approx(0.025 * std::pow(2.0, static_cast<double>(i) / 2)));
}

TEST_CASE("planner: PowerSGD's table approximates the omitted singular values") {
  Context context({.threads = 2});
  PlannedModel model;
  const auto reducer = reducer_of("powersgd:rank=3", model.store);
  const auto& compressed = dynamic_cast<const CompressedReducer&>(*reducer);
  const LayerChoices layer = compressed.candidates()[0];
  CHECK(layer.settings == std::vector<double>{1, 2, 3, 4, 5, 6});
  CHECK(layer.uniform == 2);
  const Shape shape = model.store.find(layer.name)->shape();
  const int64_t rows = shape[0], columns = shape[1], rank = 12;
  const Tensor u = random_tensor(rank * rows, 1), v = random_tensor(rank * columns, 2);
  cpu::orthogonalize({u.reshape({rank, rows}), v.reshape({rank, columns})});
  for (int64_t k = 0; k < rank; ++k)
    for (int64_t i = 0; i < rows; ++i)
      u.data<float>()[k * rows + i] *= static_cast<float>(std::pow(0.6, k));
  const Tensor x = Tensor::empty_on(Device{}, {rows * columns});
  cpu::multiply_factors(u.reshape({rank, rows}), v.reshape({rank, columns}), x);
  const std::vector<double> errors = compressed.errors(layer, x);
  for (size_t r = 1; r <= errors.size(); ++r) {
    double tail = 0;
    for (int64_t k = static_cast<int64_t>(r); k < rank; ++k) tail += std::pow(0.36, k);
    CHECK(errors[r - 1] >= std::sqrt(tail) * 0.9999);
    CHECK(errors[r - 1] <= std::sqrt(tail) * 1.05);
  }
}

TEST_CASE("planner: the bytes of each setting equal the ledger's") {
  for (const std::string& spec : kPlanned) {
    if (spec.starts_with("adacomp")) continue;  // an expectation: test_adacomp.cpp
    Context context({.threads = 1});
    PlannedModel model;
    const auto made = reducer_of(spec, model.store);
    const auto layers = dynamic_cast<const CompressedReducer&>(*made).candidates();
    CHECK(layers.size() == 6);
    for (size_t c = 0; c < 9; ++c) {
      PlannedTraining o{.spec = spec, .steps = 4, .planner = {}, .replay_at = 3};
      int64_t expected = 0;
      for (const LayerChoices& layer : layers) {
        const size_t i = std::min(c, layer.settings.size() - 1);
        o.replay[layer.name] = layer.settings[i];
        expected += layer.bytes[i];
      }
      CAPTURE(spec);
      CAPTURE(c);
      CHECK(as_planned(train(2, o)[1].payload[3], expected, spec));
    }
  }
}

TEST_CASE("planner: identical learners have the same plan for any P") {
  for (const std::string& spec : kPlanned) {
    CAPTURE(spec);
    const PlannedTraining o{.spec = spec, .steps = 31, .identical = true};
    const auto alone = train(1, o)[0].plans;
    REQUIRE(alone.size() == 1);
    CHECK(alone[0].step == 30);
    CHECK(alone[0].plan.fallback == "");
    for (const int p : {2, 3, 4}) {
      const auto plans = train(p, o)[0].plans;
      REQUIRE(plans.size() == 1);
      CHECK(plans[0].plan.chosen == alone[0].plan.chosen);
      // For three ranks the mean adds thirds, which are rounded.
      if (p != 3) CHECK(plans[0].plan.error == alone[0].plan.error);
      CHECK(plans[0].plan.error == doctest::Approx(alone[0].plan.error).epsilon(1e-6));
    }
  }
}

TEST_CASE("planner: different learners agree; the bytes fall; a replay is the same, bit for bit") {
  for (const std::string& spec : kPlanned) {
    CAPTURE(spec);
    PlannedTraining o{.spec = spec};
    const auto runs = train(3, o);
    REQUIRE(runs[0].plans.size() == 1);
    const auto& [step, layers, plan, changed, critical] = runs[0].plans[0];
    CHECK(critical.empty());
    CHECK(step == 30);
    for (const PlannedRun& run : runs) CHECK(run.plans[0].plan.chosen == plan.chosen);
    CHECK(plan.error <= plan.budget);
    CHECK(as_planned(runs[0].payload[29], plan.uniform_bytes, spec));
    CHECK(as_planned(runs[0].payload[30], plan.bytes, spec));
    CHECK(as_planned(runs[0].payload[44], plan.bytes, spec));
    CHECK(changed == (plan.bytes < plan.uniform_bytes));
    if (spec != "randomk:density=0.05") CHECK(changed);

    o.overlap = false;
    CHECK(train(3, o)[2].values == runs[0].values);
    o.overlap = true;
    o.planner = {};
    for (size_t l = 0; l < layers.size(); ++l)
      o.replay[layers[l].name] = layers[l].settings[plan.chosen[l]];
    o.replay_at = step;
    CHECK(train(3, o)[1].values == runs[0].values);
    o.replay_at = -1;
    CHECK((train(3, o)[0].values == runs[0].values) == !changed);
  }
}

TEST_CASE("planner: windows close in time; a small gain does not change the plan") {
  PlannedTraining o{.spec = "qsgd:bits=4", .steps = 71};
  auto plans = train(2, o)[0].plans;
  REQUIRE(plans.size() == 3);
  for (size_t i = 0; i < 3; ++i) CHECK(plans[i].step == 30 + 20 * static_cast<int64_t>(i));
  CHECK(plans[0].changed);
  for (const size_t i : {1, 2}) {
    CHECK(!plans[i].changed);
    CHECK(plans[i].plan.chosen == plans[0].plan.chosen);
    CHECK(plans[i].plan.error <= plans[i].plan.budget);
    CHECK(plans[i].plan.uniform_bytes == plans[0].plan.uniform_bytes);
  }
  // Other layers are peaked now: the old plan no longer keeps the budget.
  o.shift = [](int64_t step) -> size_t { return step < 30 ? 1 : 0; };
  plans = train(2, o)[0].plans;
  CHECK(plans[1].changed);
  CHECK(plans[1].plan.bytes > plans[0].plan.bytes);
  CHECK(plans[1].plan.error <= plans[1].plan.budget);
  // A window is cut to the interval, which leaves no steps for the background.
  o = {.steps = 13, .planner = {.every = 6, .window = 10}};
  plans = train(2, o)[0].plans;
  REQUIRE(plans.size() == 1);  // compressed from step 3 on: the first whole window closes at 12
  CHECK(plans[0].step == 12);
  o.planner.window = 3;
  plans = train(2, o)[0].plans;
  REQUIRE(plans.size() == 1);
  CHECK(plans[0].step == 9);
}

TEST_CASE("planner: NaN in a window, zero gradients, plans that differ") {
  PlannedTraining o{.steps = 51};
  o.spoil = [](PlannedModel& model, int rank, int64_t step) {
    if (step == 17 && rank == 1) model.store.find("layer2.weight")->grad.data<float>()[5] = NAN;
  };
  for (const auto& run : train(2, o)) {
    REQUIRE(run.plans.size() == 2);
    CHECK(run.plans[0].plan.fallback == "");
    CHECK(std::isfinite(run.plans[0].plan.error));
    CHECK(run.log.empty());
  }
  // Only NaN in a layer's window: its norm is unknown, and the plan says so, once.
  o.spoil = [](PlannedModel& model, int rank, int64_t step) {
    if (step > 10 && rank == 1) model.store.find("layer2.weight")->grad.data<float>()[5] = NAN;
  };
  auto run = train(2, o)[0];
  CHECK(run.plans[1].plan.fallback == "an error or the budget is negative or not finite");
  CHECK(run.log.size() == 1);
  // A plan that was in use is given up then.
  o.spoil = [](PlannedModel& model, int rank, int64_t step) {
    if (step > 30 && rank == 1) model.store.find("layer2.weight")->grad.data<float>()[5] = NAN;
  };
  run = train(2, o)[0];
  CHECK(run.plans[0].changed);
  CHECK(run.plans[1].changed);
  for (size_t l = 0; l < 6; ++l)
    CHECK(run.plans[1].plan.chosen[l] == run.plans[1].layers[l].uniform);
  o.spoil = [](PlannedModel& model, int, int64_t) { model.store.grads().fill_zero(); };
  run = train(2, o)[0];
  CHECK(run.plans[0].plan.fallback == "the budget is zero");
  CHECK(!run.plans[0].changed);

  const auto errors = run_ranks(2, [](Communicator& comm) {
    plan_alone(comm, {.every = 2, .window = 2, .alpha = comm.rank() == 0 ? 1.0 : 2.0}, 2);
  });
  CHECK(errors[0].find("the layer plan of rank 1") != std::string::npos);
}
