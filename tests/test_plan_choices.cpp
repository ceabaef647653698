// Choices of layer plans: gradients with or without residuals, Accordion's budget by the regime of
// each layer's gradients, time instead of bytes.
#include <doctest/doctest.h>

#include <atomic>
#include <cmath>

#include "core/kernels.h"
#include "tests/planner_helpers.h"

using namespace heddle;

namespace {

using Judged = std::vector<bool>;
const Judged kAll(6, true), kNone(6, false);

const std::vector<std::string> kSpecs = {
    "topk:density=0.05", "topk:density=0.05,indices=plain", "randomk:density=0.05",
    "scalecom:rate=20",  "qsgd:bits=4,bucket=100",          "powersgd:rank=3"};

double error_of(const PlanReport& report, const std::vector<size_t>& settings) {
  LayerPlan plan;
  plan.chosen = settings;
  measure_plan(report.layers, plan);
  return plan.error;
}

// Two layers whose first elements are sent. Errors and times are invented.
struct MadeUp {
  std::map<std::string, std::vector<double>> errors = {{"a", {6, 4, 1}}, {"b", {5, 4, 3}}};
  std::map<std::string, std::vector<double>> seconds = {{"a", {0, 0, 0}}, {"b", {0, 0, 0}}};
};

class Prefix : public CompressedReducer {
 public:
  Prefix(const ReducerSetup& setup, const MadeUp& figures)
      : CompressedReducer(setup), figures_(figures) {}

 protected:
  bool exchange(Exchange& e) override {
    NamedTensors sums = e.dense;
    for (const Item& item : e.compressed) {
      const auto kept = static_cast<int64_t>(item.layer->choice);
      sums.emplace_back(item.name(), item.tensor.slice(0, kept));
      item.tensor.slice(kept, item.n()).fill_zero();
    }
    return all_reduce(e, sums);
  }
  std::vector<double> settings(const Layer& /*layer*/) const override { return kKept; }
  int64_t bytes(const Layer& /*layer*/, double kept) const override {
    return static_cast<int64_t>(kept) * 4;
  }
  std::vector<double> lost_norms(const Layer& layer, const Tensor& /*x*/,
                                 const std::vector<double>& /*settings*/) const override {
    return figures_.errors.at(layer.parameter->name);
  }
  double codec_seconds(const Layer& layer, const Tensor& /*x*/, double kept) const override {
    const auto c = static_cast<size_t>(std::ranges::find(kKept, kept) - kKept.begin());
    return figures_.seconds.at(layer.parameter->name)[c];
  }

 private:
  inline static const std::vector<double> kKept = {1000, 2000, 4000};
  const MadeUp& figures_;
};

const Family kPrefix = {
    "prefix", {{.name = "kept", .initial = 2000, .low = 1, .high = 1e6, .whole = true}}, nullptr};

// The plans of two ranks on a modelled network, by rank; calls figures(rank, step) in each step.
std::vector<std::vector<PlanReport>> plan_on(double bytes_per_s, const LayerPlannerOptions& given,
                                             const std::function<MadeUp(int, int64_t)>& figures,
                                             int64_t steps = 4) {
  std::vector<std::vector<PlanReport>> plans(2);
  ThreadsOptions threads{.timeout_s = 30};
  threads.net = {.bytes_per_s = bytes_per_s, .latency_s = 1e-3, .virtual_time = true};
  const auto body = [&](Communicator& comm) {
    ParameterStore store;
    for (const char* name : {"a", "b"}) store.add(name, {80, 50}, constant_init(0));
    store.finalize(1);
    MadeUp now = figures(comm.rank(), 0);
    const CompressSpec spec{"prefix", {{"kept", 2000}}};
    Prefix reducer({kPrefix, spec, {}, store}, now);
    LayerPlannerOptions options = given;
    options.every = 4, options.window = 4;
    options.on_plan = [&](const PlanReport& report) {
      plans[static_cast<size_t>(comm.rank())].push_back(report);
    };
    LayerPlanner planner(reducer, options, 0);
    Ledger ledger;
    for (int64_t step = 0; step < steps; ++step) {
      now = figures(comm.rank(), step);
      // One bucket for both layers, then one for the second alone: exchanges of two sizes.
      for (const size_t layers : {2, 1}) {
        GradientBucket bucket{{}, {}, step};
        auto& all = store.parameters();
        for (size_t i = 0; i < layers; ++i) bucket.parameters.push_back(&all[1 - i]);
        const int64_t end = bucket.parameters.back()->offset + 4000;
        bucket.flat = store.grads().slice(0, end);
        fill(bucket.flat, 1);
        if (!reducer.reduce(bucket, comm, ledger)) throw Error("not accepted");
      }
      planner.finish_step(step + 1, 0.1, [&](const auto&, const auto& call) { call(comm); });
    }
  };
  expect_none(run_ranks(2, body, threads));
  return plans;
}

}  // namespace

TEST_CASE("planner: Accordion allows steady layers more error, on all ranks") {
  for (const std::string& spec : kSpecs) {
    CAPTURE(spec);
    PlannedTraining o{.spec = spec, .steps = 51};
    const auto uniform = train(3, o)[0].plans;
    o.planner.accordion = true;
    const auto runs = train(3, o);
    const auto& plans = runs[0].plans;
    REQUIRE(plans.size() == 2);
    for (const PlannedRun& run : runs)
      for (size_t i = 0; i < 2; ++i) {
        CHECK(run.plans[i].critical == plans[i].critical);
        CHECK(run.plans[i].plan.chosen == plans[i].plan.chosen);
      }
    CHECK(plans[0].critical == kAll);
    CHECK(plans[0].plan.chosen == uniform[0].plan.chosen);
    CHECK(plans[0].plan.budget == uniform[0].plan.budget);
    CHECK(plans[1].critical == kNone);
    CHECK(plans[1].plan.bytes < uniform[1].plan.bytes);
    CHECK(plans[1].changed);
    CHECK(as_planned(runs[0].payload[50], plans[1].plan.bytes, spec));
    for (const PlanReport& report : plans) {
      const double budget = error_of(report, accordion_settings(report.layers, report.critical));
      CHECK(report.plan.budget == budget);
      CHECK(report.plan.error <= budget);
      CHECK(report.plan.bytes <= report.plan.uniform_bytes);
    }
  }
}

TEST_CASE("planner: alpha is a factor of Accordion's budget, too") {
  PlannedTraining o{.steps = 31};
  o.planner.accordion = true;
  const double budget = train(2, o)[0].plans.at(0).plan.budget;
  o.planner.alpha = 1.5;
  CHECK(train(2, o)[0].plans.at(0).plan.budget == doctest::Approx(1.5 * budget));
}

TEST_CASE("planner: a jump of one layer's gradients and a decay of the rate are critical") {
  PlannedTraining o{.steps = 71};
  o.planner.accordion = true;
  o.spoil = [](PlannedModel& model, int, int64_t step) {
    if (step >= 30) scale(model.store.find("layer2.weight")->grad, 3);
  };
  auto plans = train(2, o)[0].plans;
  CHECK(plans[1].critical == Judged{false, false, true, false, false, false});
  CHECK(plans[2].critical == kNone);
  o.spoil = [](PlannedModel&, int, int64_t) {};
  // The window has closed at step 40 with the old rate; the plan is made ten steps later.
  o.lr = [](int64_t step) { return step < 45 ? 0.1 : 0.05; };
  plans = train(2, o)[0].plans;
  CHECK(plans[1].critical == kAll);
  CHECK(plans[2].critical == kNone);
  o.lr = [](int64_t step) { return step < 45 ? 0.1 : 0.06; };
  CHECK(train(2, o)[0].plans[1].critical == kNone);
}

TEST_CASE("planner: growing residuals make no layer critical, unknown norms do") {
  // Few elements are sent, so that in the second window most residuals hold the gradients of three
  // times as many steps.
  PlannedTraining o{.spec = "topk:density=0.002", .steps = 21};
  o.planner = {.every = 8, .window = 4, .compensated = true, .accordion = true};
  auto plans = train(2, o)[0].plans;
  REQUIRE(plans.size() == 2);
  CHECK(plans[1].critical == kNone);
  const std::vector<size_t> fewest(6, 0);
  CHECK(error_of(plans[1], fewest) > 1.5 * error_of(plans[0], fewest));

  o = {.steps = 71};
  o.planner.accordion = true;
  o.spoil = [](PlannedModel& model, int rank, int64_t step) {
    if (step > 10 && step < 25 && rank == 1)
      model.store.find("layer2.weight")->grad.data<float>()[5] = NAN;
  };
  const auto runs = train(2, o);
  for (const PlannedRun& run : runs) {
    REQUIRE(run.plans.size() == 3);
    CHECK(run.plans[0].plan.fallback == "an error or the budget is negative or not finite");
    CHECK(run.plans[1].critical[2]);   // nothing to compare with
    CHECK(!run.plans[1].critical[5]);  // its bucket was finite
    CHECK(run.plans[2].critical == kNone);
  }
}

TEST_CASE("planner: plans settle; with residuals in the errors they alternate") {
  // The mean gradient is the same throughout. A layer of which little is sent has a large residual
  // at the next plan, and then a small one.
  PlannedTraining o{.steps = 345};
  o.planner = {.every = 40, .window = 5};
  auto plans = train(2, o)[0].plans;
  REQUIRE(plans.size() == 8);
  for (size_t i = 2; i < 8; ++i) CHECK(!plans[i].changed);
  CHECK(plans[7].plan.bytes < plans[7].plan.uniform_bytes);
  o.planner.compensated = true;
  plans = train(2, o)[0].plans;
  const auto first = [&](size_t i) { return plans[i].layers[0].settings[plans[i].plan.chosen[0]]; };
  for (size_t i = 2; i < 7; ++i) {
    CHECK((first(i) > 50) != (first(i) < 10));
    CHECK((first(i) > 50) == (first(i + 1) < 10));
  }
}

TEST_CASE("planner: bytes and time choose differently, by the network") {
  const auto slow_codec = [](int rank, int64_t) {
    MadeUp figures;
    // 2 ms on average over the ranks, except for the fewest elements.
    figures.seconds["b"] = {0, rank == 0 ? 1e-3 : 3e-3, rank == 0 ? 1e-3 : 3e-3};
    return figures;
  };
  const std::vector<size_t> uniform = {1, 1}, other = {2, 0};
  CHECK(plan_on(1e8, {}, slow_codec)[0][0].plan.chosen == uniform);
  // 4000 more bytes take 0.04 ms on the fast network, 4 ms on the slow one.
  const auto fast = plan_on(1e8, {.time = true}, slow_codec);
  const auto slow = plan_on(1e6, {.time = true}, slow_codec);
  for (size_t rank = 0; rank < 2; ++rank) {
    REQUIRE(fast[rank].size() == 1);
    CHECK(fast[rank][0].plan.chosen == other);
    CHECK(slow[rank][0].plan.chosen == uniform);
  }
  const PlanReport& report = fast[0][0];
  CHECK(report.plan.bytes > report.plan.uniform_bytes);
  CHECK(report.plan.cost < report.plan.uniform_cost);
  for (size_t l = 0; l < 2; ++l) {
    CHECK(fast[1][0].layers[l].costs == report.layers[l].costs);
    for (size_t c = 0; c < 3; ++c) {
      const double codec = l == 1 && c > 0 ? 2e6 : 0;
      const auto wire = static_cast<double>(report.layers[l].bytes[c]) * 10;
      CHECK(static_cast<double>(report.layers[l].costs[c]) ==
            doctest::Approx(codec + wire).epsilon(0.01));
    }
  }
}

TEST_CASE("planner: a plan that becomes more expensive than the uniform settings is dropped") {
  // Uniform 1 ms each time; the only other plan with these errors 0.6 ms, then 1.01, then 0.995.
  const auto aging = [](int, int64_t step) {
    MadeUp figures;
    const double fewest = step < 4 ? 0 : (step < 8 ? 0.41e-3 : 0.395e-3);
    figures.seconds = {{"a", {1, 0.5e-3, 0.6e-3}}, {"b", {fewest, 0.5e-3, 1}}};
    return figures;
  };
  const auto plans = plan_on(1e12, {.time = true}, aging, 12)[0];
  REQUIRE(plans.size() == 3);
  CHECK(plans[0].plan.chosen == std::vector<size_t>{2, 0});
  CHECK(plans[1].plan.chosen == std::vector<size_t>{1, 1});
  CHECK(plans[2].plan.chosen == std::vector<size_t>{1, 1});  // 0.5 % is not worth a change
  for (const PlanReport& report : plans) CHECK(report.plan.cost <= report.plan.uniform_cost);
}

TEST_CASE("planner: the previous plan is kept only within the budget") {
  const auto growing = [](int, int64_t step) {
    MadeUp figures;
    figures.errors["a"][0] = step < 4 ? 4.7 : 4.9;
    return figures;
  };
  const auto plans = plan_on(1e9, {.alpha = 1.1}, growing, 8)[0];
  REQUIRE(plans.size() == 2);
  CHECK(plans[0].plan.budget == doctest::Approx(8.8));
  CHECK(plans[0].plan.chosen == std::vector<size_t>{0, 1});  // 8.7
  CHECK(plans[1].plan.chosen == std::vector<size_t>{1, 1});  // 8.9 is over it
  for (const PlanReport& report : plans) CHECK(report.plan.error <= report.plan.budget);
}

TEST_CASE("planner: a new plan leaves 2 % of the budget only where that costs less") {
  // The budget is 8. First 7.96 in 0.6 ms, or 7.8 in 0.605 ms. Then the latter is far over the
  // budget, and there are 7.96 in 0.995 ms and 7.76 in 1.005 ms; the uniform settings take 1 ms.
  const auto figures_at = [](int, int64_t step) {
    MadeUp figures;
    figures.errors = {{"a", {3.96, 4, step < 4 ? 3.8 : 5}}, {"b", {step < 4 ? 9 : 3.8, 4, 9}}};
    figures.seconds = {{"a", {step < 4 ? 0.1e-3 : 0.495e-3, 0.5e-3, 0.105e-3}},
                       {"b", {0.51e-3, 0.5e-3, 1}}};
    return figures;
  };
  const auto plans = plan_on(1e12, {.time = true}, figures_at, 8)[0];
  REQUIRE(plans.size() == 2);
  CHECK(plans[0].plan.chosen == std::vector<size_t>{2, 1});
  CHECK(plans[0].plan.budget == doctest::Approx(8));
  CHECK(plans[1].plan.chosen == std::vector<size_t>{0, 1});
  CHECK(plans[1].plan.cost <= plans[1].plan.uniform_cost);
}

TEST_CASE("planner: encoding at each setting is timed") {
  Context context({.threads = 1});
  PlannedModel model;
  model.fill(0, 0, 0);
  for (const std::string& spec : kSpecs) {
    CAPTURE(spec);
    const auto reducer = reducer_of(spec, model.store);
    const auto& compressed = dynamic_cast<const CompressedReducer&>(*reducer);
    for (const LayerChoices& layer : compressed.candidates()) {
      const Tensor x = model.store.find(layer.name)->grad.clone();
      const Values before = x.to_vector();
      const std::vector<double> seconds = compressed.seconds(layer, x.reshape({x.size()}));
      CHECK(seconds.size() == layer.settings.size());
      for (const double s : seconds) CHECK((s > 0 && s < 10));
      CHECK(x.to_vector() == before);
    }
  }
}

TEST_CASE("planner: plans by measured times agree, keep the budget, and can be replayed") {
  for (const std::string& spec : kSpecs) {
    CAPTURE(spec);
    PlannedTraining o{.spec = spec, .steps = 36};
    o.planner.time = true;
    const auto runs = train(3, o);
    const PlanReport& report = runs[0].plans.at(0);
    for (const PlannedRun& run : runs) {
      CHECK(run.plans.at(0).plan.chosen == report.plan.chosen);
      for (size_t l = 0; l < 6; ++l) CHECK(run.plans[0].layers[l].costs == report.layers[l].costs);
    }
    CHECK(report.plan.error <= report.plan.budget);
    CHECK(report.plan.cost <= report.plan.uniform_cost);
    for (const LayerChoices& layer : report.layers)
      for (const int64_t cost : layer.costs) CHECK(cost > 0);
    CHECK(as_planned(runs[0].payload[30], report.plan.bytes, spec));
    o.planner = {};
    for (size_t l = 0; l < 6; ++l)
      o.replay[report.layers[l].name] = report.layers[l].settings[report.plan.chosen[l]];
    o.replay_at = report.step;
    CHECK(train(3, o)[1].values == runs[0].values);
  }
}

TEST_CASE("planner: what replaces a plan saves 2 % with its slack") {
  // First only the uniform settings are within the budget, 8 in 1 ms. Then there are 7.9 in
  // 0.979 ms, and 7.8 in 0.985 ms, which leaves the slack but saves only 1.5 %.
  const auto figures_at = [](int, int64_t step) {
    MadeUp figures;
    figures.errors = {{"a", {step < 4 ? 9 : 3.9, 4, step < 4 ? 9 : 3.8}}, {"b", {9, 4, 9}}};
    figures.seconds = {{"a", {0.479e-3, 0.5e-3, 0.485e-3}}, {"b", {1, 0.5e-3, 1}}};
    return figures;
  };
  const auto plans = plan_on(1e12, {.time = true}, figures_at, 8)[0];
  REQUIRE(plans.size() == 2);
  CHECK(plans[0].plan.chosen == std::vector<size_t>{1, 1});
  CHECK(plans[1].plan.chosen == std::vector<size_t>{1, 1});
}
