#include "apps/session/layer_plan.h"

#include <algorithm>
#include <cmath>

#include "apps/cli/json.h"
#include "core/error.h"
#include "core/files.h"

namespace heddle {
namespace {

const std::vector<SpecKey> kKeys = {
    {.name = "alpha", .initial = 1, .low = 0.01, .high = 100},
    {.name = "every", .initial = 0, .low = 1, .high = 1e12, .whole = true, .words = {"epoch"}},
    {.name = "window", .initial = 10, .low = 1, .high = 1e6, .whole = true},
    {.name = "errors", .initial = 0, .words = {"gradients", "compensated"}},
    {.name = "objective", .initial = 0, .words = {"bytes", "time"}},
    {.name = "budget", .initial = 0, .words = {"uniform", "accordion"}}};

using Values = std::map<std::string, double>;

Values lgreco_values(const CommonOptions& o) { return parse_settings(o.lgreco, kKeys, "lgreco"); }
bool with_residuals(const Values& values) { return values.at("errors") == 1; }
bool by_time(const Values& values) { return values.at("objective") == 1; }
bool by_accordion(const Values& values) { return values.at("budget") == 1; }

int64_t elements_of(const ParameterStore& store, const std::string& name) {
  for (const Parameter& p : store.parameters())
    if (p.name == name) return p.size();
  return 0;
}

// Returns "step 400: layer plan: 12345 bytes of gradients a step, uniform 16000; 0.97 of the error
// budget", with "; 3.1 ms of encoding and exchange, uniform 4" and "; 2 of 20 layers are critical"
// where the plan has these.
std::string summary(const PlanReport& report, const Values& values) {
  const LayerPlan& plan = report.plan;
  std::string text =
      concat("step ", report.step, ": layer plan", report.changed ? "" : ", unchanged", ": ",
             plan.bytes, " bytes of gradients a step, uniform ", plan.uniform_bytes, "; ",
             std::round(1000 * plan.error / plan.budget) / 1000, " of the error budget");
  const auto ms = [](int64_t nanoseconds) {
    return std::round(to_double(nanoseconds) / 1e3) / 1e3;
  };
  if (by_time(values))
    text += concat("; ", ms(plan.cost), " ms of encoding and exchange, uniform ",
                   ms(plan.uniform_cost));
  if (by_accordion(values))
    text += concat("; ", std::ranges::count(report.critical, true), " of ", report.critical.size(),
                   " layers are critical");
  return text;
}

}  // namespace

void check_layerwise(const CommonOptions& o) {
  const Family& family = find_family(o.parsed.compress.spec.family);
  const bool planned = o.layerwise == "lgreco";
  check(!planned || o.plan.empty(),
        "--layerwise lgreco makes plans and --plan uses one; give only one of them");
  const bool free = !family.keys.empty() && (!planned || family.planned);
  check((!planned && o.plan.empty()) || free, planned ? "--layerwise lgreco" : "--plan",
        ": --compress ", family.name, " has no setting that a plan could choose");
  const bool timed = by_time(lgreco_values(o));
  check(!planned || !timed || !o.deterministic,
        "--lgreco objective=time plans by measured times, which --deterministic excludes");
}

LayerPlannerOptions planner_options(const CommonOptions& o, const StepPlan& plan,
                                    const ParameterStore& store, int learners,
                                    const RunOutput& output) {
  if (o.layerwise != "lgreco") return {};
  const Values values = lgreco_values(o);
  check(
      !by_time(values) || !store.values().device().is_cuda(),
      "--lgreco objective=time times the codecs on the CPU, but --device cuda encodes on the GPU");
  const auto every = to_int64(values.at("every"));
  LayerPlannerOptions options{.every = every > 0 ? every : plan.steps_per_epoch,
                              .window = to_int64(values.at("window")),
                              .compensated = with_residuals(values),
                              .alpha = values.at("alpha"),
                              .accordion = by_accordion(values),
                              .time = by_time(values),
                              .log = output.log};
  if (output.folder != nullptr)
    options.on_plan = [&o, &store, values, learners, output](const PlanReport& report) {
      output.folder->write_optional(concat("plan-", report.step, ".json"),
                                    describe_layer_plan(report, o, store, learners));
      if (output.log) output.log(summary(report, values));
    };
  return options;
}

std::string describe_layer_plan(const PlanReport& report, const CommonOptions& o,
                                const ParameterStore& store, int learners) {
  using Json = nlohmann::ordered_json;
  const LayerPlan& plan = report.plan;
  const Values values = lgreco_values(o);
  Json layers = Json::array();
  double uniform_error = 0;
  for (size_t l = 0; l < report.layers.size(); ++l) {
    const LayerChoices& layer = report.layers[l];
    const size_t c = plan.chosen[l], u = layer.uniform;
    uniform_error += layer.errors[u];
    Json row = {{"name", layer.name},           {"elements", elements_of(store, layer.name)},
                {"setting", layer.settings[c]}, {"uniform", layer.settings[u]},
                {"error", layer.errors[c]},     {"uniform_error", layer.errors[u]},
                {"bytes", layer.bytes[c]},      {"uniform_bytes", layer.bytes[u]}};
    if (by_time(values))
      row.update(Json{{"cost", layer.cost()[c]}, {"uniform_cost", layer.cost()[u]}});
    row["share"] = layer.errors[c] / plan.budget;
    if (by_accordion(values)) row["critical"] = static_cast<bool>(report.critical[l]);
    layers.push_back(row);
  }
  const CompressSpec spec = o.parsed.compress.spec;
  Json json = {{"step", report.step},
               {"family", spec.family},
               {"compress", to_string(spec)},
               {"learners", learners},
               {"objective", by_time(values) ? "time" : "bytes"},
               {"errors_of", with_residuals(values) ? "compensated" : "gradients"},
               {"alpha", values.at("alpha")},
               {"budget_from", by_accordion(values) ? "accordion" : "uniform"},
               {"budget", plan.budget},
               {"error", plan.error},
               {"uniform_error", uniform_error},
               {"bytes", plan.bytes},
               {"uniform_bytes", plan.uniform_bytes}};
  if (by_time(values)) json.update(Json{{"cost", plan.cost}, {"uniform_cost", plan.uniform_cost}});
  json["changed"] = report.changed;
  json["fallback"] = plan.fallback;
  json["layers"] = layers;
  return json.dump(2) + '\n';
}

void apply_layer_plan(const CommonOptions& o, const ParameterStore& store, int learners,
                      CompressedReducer& reducer) {
  const std::string where = "--plan " + o.plan + ": ";
  std::map<std::string, double> settings;
  read_members(where + "is not a plan", [&] {
    const auto plan = parse_json(read_text_file(o.plan), "--plan " + o.plan);
    const auto family = plan.at("family").get<std::string>();
    check(family == reducer.name(), where, "is for --compress ", printable(family), ", not ",
          reducer.name());
    const auto ranks = plan.at("learners").get<double>();
    check(ranks == learners, where, "is for ", ranks, " learners, not ", learners);
    for (const auto& layer : plan.at("layers")) {
      const auto name = layer.at("name").get<std::string>();
      const auto elements = whole(layer.at("elements"));
      const int64_t here = elements_of(store, name);
      check(elements == here && here > 0, where, "is for another network: ", printable(name),
            " has ", elements, " elements there, ", here, " here");
      settings[name] = layer.at("setting").get<double>();
    }
  });
  for (const LayerChoices& layer : reducer.candidates())
    check(settings.contains(layer.name), where, "has no setting for ", layer.name);
  for (const auto& [name, setting] : settings) reducer.set_choice(name, setting);
}

}  // namespace heddle
