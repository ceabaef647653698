#include "compress/layer_table.h"

#include <cmath>
#include <regex>

#include "core/error.h"

namespace heddle {
namespace {

constexpr double kFirstRate = 4;  // of a ramp

// Returns the parameter with four axes that was added first, frozen or not; null if there is none.
const Parameter* first_convolution(const ParameterStore& store) {
  const Parameter* first = nullptr;
  for (const auto* parameters : {&store.parameters(), &store.frozen()})
    for (const Parameter& p : *parameters)
      if (p.shape().rank() == 4 && (first == nullptr || p.index < first->index)) first = &p;
  return first;
}

}  // namespace

LayerTable::LayerTable(const ReducerSetup& setup) : family_(setup.family) {
  const ReducerOptions& options = setup.options;
  std::regex dense;
  try {
    dense = std::regex(options.dense_layers);
  } catch (const std::regex_error& error) {
    throw InputError(concat("dense layers: \"", options.dense_layers,
                            "\" is not a regular expression: ", error.what()));
  }
  const double choice = has_settings() ? setup.spec.values.at(family_.keys[0].name) : 0;
  if (const auto ramp = setup.spec.values.find("ramp"); ramp != setup.spec.values.end())
    ramp_ = to_int64(ramp->second);
  const Parameter* first = first_convolution(setup.store);
  for (const Parameter& p : setup.store.parameters()) {
    const bool named = !options.dense_layers.empty() && std::regex_search(p.name, dense);
    const bool compressed = p.shape().rank() > 1 && p.size() > 0 &&
                            p.size() >= options.min_compress && &p != first && !named;
    layers_[p.name] = {&p, layers_.size(), compressed, compressed ? choice : 0};
  }
}

double LayerTable::ramped(double choice, int64_t compressed_steps) const {
  const double rate = choice < 1 ? 1 / choice : choice;
  if (compressed_steps >= ramp_ || undecided(choice) || rate <= kFirstRate) return choice;
  const double done = to_double(compressed_steps) / to_double(ramp_);
  const double now = kFirstRate * std::pow(rate / kFirstRate, done);
  return choice < 1 ? 1 / now : std::round(now);
}

}  // namespace heddle
