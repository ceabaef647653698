// Files and tables about an exchange, written and read by the programs: layer plans, the quality of
// compression.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "apps/log/quality_report.h"
#include "apps/session/layer_plan.h"
#include "compress/families.h"
#include "core/context.h"
#include "core/files.h"
#include "tests/app_helpers.h"

using namespace heddle;

namespace {

LayerQuality sample(const std::string& name, double correlation, double energy,
                    double contraction) {
  LayerQuality q;
  q.name = name;
  q.contraction = contraction;
  q.cosine = 0.5;
  q.residual_norm = 6;
  q.gradient_norm = 3;
  q.energy = energy;
  q.correlation = correlation;
  q.mismatch = q.bound = std::numeric_limits<double>::quiet_NaN();
  return q;
}

}  // namespace

TEST_CASE("layer plan: a reducer gets the written settings, bit for bit") {
  Context context;
  for (const char* spec : {"topk:density=0.03", "scalecom:rate=30", "qsgd:bits=4"}) {
    CAPTURE(spec);
    const TempFolder temp;
    ParameterStore store;
    store.add("a.weight", {40, 50}, constant_init(0));
    store.add("b.weight", {30, 70}, constant_init(0));
    store.finalize(1);
    CommonOptions o;
    o.compress = spec;
    o.parsed.compress = parse_compress_choice(spec);
    o.layerwise = "lgreco";
    const auto make = [&] {
      return make_reducer(parse_compress(spec), {.min_compress = 10}, store);
    };
    const auto planned = make();
    PlanReport report{.step = 12,
                      .layers = dynamic_cast<CompressedReducer&>(*planned).candidates(),
                      .plan = {},
                      .changed = true,
                      .critical = {}};
    REQUIRE(report.layers.size() == 2);
    for (LayerChoices& layer : report.layers)
      for (size_t c = 0; c < layer.settings.size(); ++c)
        layer.errors.push_back(static_cast<double>(c + 1) / 7);
    report.plan.chosen = {0, report.layers[1].settings.size() - 2};
    report.plan.budget = 0.9;
    o.plan = temp.write("plan.json", describe_layer_plan(report, o, store, 2));
    const auto reducer = make();
    auto& compressed = dynamic_cast<CompressedReducer&>(*reducer);
    apply_layer_plan(o, store, 2, compressed);
    const auto json = nlohmann::json::parse(read_text_file(o.plan));
    for (size_t l = 0; l < 2; ++l) {
      const LayerChoices& layer = report.layers[l];
      const size_t c = report.plan.chosen[l];
      CHECK(compressed.choices().at(layer.name) == layer.settings[c]);
      CHECK(json["layers"][l]["error"] == layer.errors[c]);
      CHECK(json["layers"][l]["share"] == layer.errors[c] / 0.9);
      CHECK(json["layers"][l]["uniform"] == layer.settings[layer.uniform]);
      CHECK(json["layers"][l]["uniform_bytes"] == layer.bytes[layer.uniform]);
      CHECK(json["layers"][l]["bytes"] == layer.bytes[c]);
    }
  }
}

TEST_CASE("layer plan: errors of gradients, or of compensated ones") {
  const ParameterStore store;
  CommonOptions o;
  o.layerwise = "lgreco";
  for (const bool compensated : {false, true}) {
    if (compensated) o.lgreco = "every=7,errors=compensated";
    const LayerPlannerOptions options = planner_options(o, {.steps_per_epoch = 9}, store, 2, {});
    CHECK(options.compensated == compensated);
    CHECK(options.every == (compensated ? 7 : 9));
    const auto plan = nlohmann::json::parse(describe_layer_plan({}, o, store, 2));
    CHECK(plan["errors_of"] == (compensated ? "compensated" : "gradients"));
  }
}

TEST_CASE("layer plan: refused for another network, other learners or missing layers") {
  Context context;
  const TempFolder temp;
  ParameterStore store;
  store.add("a.weight", {40, 50}, constant_init(0));
  store.add("b.weight", {30, 70}, constant_init(0));
  store.finalize(1);
  const nlohmann::json good = {{"family", "topk"},
                               {"learners", 2},
                               {"layers",
                                {{{"name", "a.weight"}, {"elements", 2000}, {"setting", 0.02}},
                                 {{"name", "b.weight"}, {"elements", 2100}, {"setting", 0.03}}}}};
  const auto complaint = [&](const char* pointer, const nlohmann::json& value) {
    nlohmann::json plan = good;
    plan[nlohmann::json::json_pointer(pointer)] = value;
    CommonOptions o;
    o.plan = temp.write("plan.json", plan.dump());
    const auto reducer = make_reducer(parse_compress("topk"), {.min_compress = 10}, store);
    auto& compressed = dynamic_cast<CompressedReducer&>(*reducer);
    return message_of([&] { apply_layer_plan(o, store, 2, compressed); });
  };
  CHECK(complaint("/learners", 2) == "");
  CHECK(mentions(complaint("/learners", 3), {"3", "2"}));
  CHECK(mentions(complaint("/family", "qsgd"), {"qsgd", "topk"}));
  CHECK(mentions(complaint("/layers/0/name", "c.weight"), {"c.weight", "2000"}));
  CHECK(mentions(complaint("/layers/1/elements", 2000), {"2000", "2100"}));
  CHECK(mentions(complaint("/layers/1", good["layers"][0]), {"b.weight"}));
  CHECK(contains(complaint("/layers/0/setting", 2), "expected a number from"));
  CHECK(mentions(complaint("/layers", "none"), {"plan"}));
}

TEST_CASE("quality report: one warning if learners are uncorrelated on average") {
  const auto warnings_of = [](const std::vector<double>& alike) {
    Strings said;
    QualityReport report([&](const std::string& line) { said.push_back(line); });
    int64_t step = 0;
    for (const double a : alike)  // the second layer has nine tenths of the energy
      CHECK(report.add(++step, {sample("a", 1, 1, 0.5), sample("b", a, 9, 0.5)}));
    return said;
  };
  CHECK(warnings_of({-1, -1}).empty());  // too few samples
  const Strings said = warnings_of({-0.9, 0.1, -0.2, -0.9, -0.9});
  REQUIRE(said.size() == 1);
  CHECK(said[0].find("step 3: the learners' gradients are not correlated") == 0);
  CHECK(warnings_of({0.5, 0.1, -0.2}).empty());
  CHECK(warnings_of({-0.2, -0.2, -0.05}).size() == 1);  // with a's share: -0.08, -0.08, 0.055
  CHECK(warnings_of({-0.1, -0.1, -0.1}).empty());       // 0.01 each
  std::vector<double> later(20, 1);    // correlated at first; only the last ten samples count
  later.insert(later.end(), 8, -0.3);  // -0.17 each
  CHECK(warnings_of(later).empty());
  later.push_back(-0.3);
  REQUIRE(warnings_of(later).size() == 1);
  CHECK(warnings_of(later)[0].find("step 29:") == 0);
}

TEST_CASE("quality report: the table has the means over the samples, by layer") {
  QualityReport report([](const std::string&) {});
  CHECK(report.table().empty());
  CHECK(!report.add(1, {}));
  report.add(2, {sample("a", 1, 1, 0.25)});
  report.add(4, {sample("a", 0.5, 1, 0.75), sample("b", 0.5, 1, 0.125)});
  const std::string table = report.table();
  CAPTURE(table);
  CHECK(table.find("a                 0.5000   0.5000         2.00      0.7500\n") !=
        std::string::npos);
  CHECK(table.find("b                 0.1250   0.5000         2.00      0.5000\n") !=
        std::string::npos);
  CHECK(mentions(table, {" 2 ", "0.7500"}));
  CHECK(report.json()["step"] == 4);
  CHECK(report.json()["alike"] == 0.5);  // check_words: quoted
}
