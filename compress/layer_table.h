// LayerTable: which layers of a network an algorithm compresses, and with which setting (rate,
// density, bits or low rank). Settings change between steps only; layers are found by the name of
// their parameter.
//
//   LayerTable layers(setup);
//   for (auto& [name, layer] : layers) if (layer.compressed) ... layer.choice ...
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "compress/families.h"

namespace heddle {

struct CompressedLayer {
  const Parameter* parameter;
  uint64_t index;   // in the order of creation: a key of random numbers
  bool compressed;  // false: always dense (make_reducer() in families.h says which)
  double choice;    // the setting; 0 before a rule has decided (rate=auto)
  bool dense = false, trial = false;  // exchanged dense for now; only a trial: its residual stays
  double now = 0;  // the setting in the current step: `choice`, or a milder one during a ramp

  const std::string& name() const { return parameter->name; }
  int64_t size() const { return parameter->size(); }
};

class LayerTable {
 public:
  // Throws InputError where options.dense_layers is not a regular expression.
  explicit LayerTable(const ReducerSetup& setup);

  // Throw std::out_of_range for a name that no parameter has.
  CompressedLayer& at(const std::string& name) { return layers_.at(name); }
  const CompressedLayer& at(const std::string& name) const { return layers_.at(name); }
  // In the order of names.
  auto begin() const { return layers_.begin(); }
  auto end() const { return layers_.end(); }

  const Family& family() const { return family_; }
  // Whether layers may have settings of their own: whether the family's first key takes numbers.
  bool has_settings() const { return !family_.keys.empty() && family_.keys[0].high > 0; }
  // Whether a setting stands for a rule that has not decided yet (rate=auto).
  bool undecided(double setting) const { return has_settings() && setting < family_.keys[0].low; }

  // Returns the number of compressed steps until every layer is compressed as its setting says.
  int64_t ramp() const { return ramp_; }
  // Returns the setting (a rate, or a density below 1) that is used in this compressed step: during
  // a ramp the rate grows from 4 by the same factor in every step. The schedule is this project's
  // own; Lin et al. 2018 (arXiv 1712.01887, section 3.3) raise the sparsity in four steps of one
  // epoch each.
  double ramped(double choice, int64_t compressed_steps) const;

 private:
  const Family& family_;
  int64_t ramp_ = 0;
  std::map<std::string, CompressedLayer> layers_;
};

}  // namespace heddle
