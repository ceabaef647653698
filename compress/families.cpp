#include "compress/families.h"

#include "core/error.h"

namespace heddle {

// One line for each algorithm, which its file defines.
std::unique_ptr<Reducer> make_dense(const ReducerSetup& setup);
std::unique_ptr<Reducer> make_cast(const ReducerSetup& setup);
std::unique_ptr<Reducer> make_adacomp(const ReducerSetup& setup);
std::unique_ptr<Reducer> make_top_k(const ReducerSetup& setup);
std::unique_ptr<Reducer> make_random_k(const ReducerSetup& setup);
std::unique_ptr<Reducer> make_scalecom(const ReducerSetup& setup);
std::unique_ptr<Reducer> make_lgc(const ReducerSetup& setup);
std::unique_ptr<Reducer> make_qsgd(const ReducerSetup& setup);
std::unique_ptr<Reducer> make_power_sgd(const ReducerSetup& setup);
std::unique_ptr<Reducer> make_topagg(const ReducerSetup& setup);

namespace {

std::deque<Family>& table() {
  static const SpecKey kDensity{.name = "density", .initial = 0.01, .low = 1e-6, .high = 1};
  // Steps in which a rate grows from 4 to its final value; see LayerTable::ramped().
  static const SpecKey kRamp{.name = "ramp", .initial = 0, .low = 0, .high = 1e9, .whole = true};
  static const SpecKey kValues{.name = "values", .initial = 0, .words = {"fp32", "bf16"}};
  static std::deque<Family> rows = {
      {"none", {}, make_dense},
      {"bf16", {}, make_cast},
      {"fp16", {}, make_cast},
      {"topk",
       {kDensity, {.name = "indices", .initial = 0, .words = {"delta", "plain"}}, kRamp, kValues},
       make_top_k},
      {"randomk", {kDensity, kRamp, kValues}, make_random_k},
      {"adacomp",
       {{.name = "bin", .initial = 0, .low = 2, .high = 16384, .whole = true, .words = {"auto"}},
        {.name = "factor", .initial = 2, .low = 1, .high = 8},
        {.name = "scale", .initial = 0, .words = {"layer", "bin"}}},
       make_adacomp},
      {"scalecom",
       {{.name = "rate", .initial = 100, .low = 1, .high = 1e6, .whole = true, .words = {"auto"}},
        {.name = "beta", .initial = 1, .low = 0.001, .high = 1},
        {.name = "select", .initial = 0, .words = {"chunk", "exact"}},
        kRamp,
        kValues},
       make_scalecom},
      {"lgc",
       {{.name = "density", .initial = 0.001, .low = 1e-6, .high = 1},
        {.name = "train", .initial = 300, .low = 1, .high = 1e6, .whole = true},
        {.name = "lr", .initial = 0, .low = 1e-6, .high = 1, .words = {"auto"}},
        {.name = "order", .initial = 0, .words = {"value", "index"}},
        {.name = "codec", .initial = 0, .words = {"linear", "paper"}},
        {.name = "gate", .initial = 0.9, .low = 0, .high = 10},
        {.name = "refresh", .initial = 0, .low = 0, .high = 1e6, .whole = true}},
       make_lgc,
       false},
      {"qsgd",
       {{.name = "bits", .initial = 4, .low = 2, .high = 8, .whole = true},
        {.name = "bucket", .initial = 512, .low = 8, .high = 1 << 20, .whole = true},
        {.name = "rounding", .initial = 0, .words = {"stochastic", "nearest"}}},
       make_qsgd},
      {"powersgd",
       {{.name = "rank", .initial = 4, .low = 1, .high = 256, .whole = true}, kValues},
       make_power_sgd},
      {"topagg",
       {kDensity,
        {.name = "sigma", .initial = 0, .low = 0, .high = 1e9},
        {.name = "epsilon", .initial = 0, .low = 1e-6, .high = 1e6, .words = {"none"}},
        {.name = "threshold", .initial = 0, .low = 0, .high = 1e9},
        {.name = "output", .initial = 0, .words = {"sign", "votes"}},
        {.name = "vote", .initial = 0, .words = {"sign", "stochastic", "clip"}},
        {.name = "clip", .initial = 1, .low = 1e-6, .high = 1e6},
        {.name = "bound", .initial = 0, .words = {"gaussian", "ternary"}},
        {.name = "noise-seed",
         .initial = 0,
         .low = 1,
         .high = 1e15,
         .whole = true,
         .words = {"os"}}},
       make_topagg,
       false},
  };
  return rows;
}

}  // namespace

const std::deque<Family>& families() { return table(); }

void add_family(const Family& family) {
  check(!family.name.empty() && family.name.find_first_of(":,") == std::string::npos,
        "algorithms: expected a name without : and , found ", family.name);
  for (const Family& known : families())
    check(known.name != family.name, "algorithms: ", family.name, " is there already");
  table().push_back(family);
}

void Reducer::set_choice(const std::string& parameter, double) {
  throw InputError(concat(parameter, ": ", name(), " has no setting for this layer"));
}

std::unique_ptr<Reducer> make_reducer(const CompressSpec& spec, const ReducerOptions& options,
                                      const ParameterStore& store) {
  const Family& family = find_family(spec.family);
  return family.make({family, spec, options, store});
}

}  // namespace heddle
