// Shared by the tests of update rules and of the optimizer: a small store, and all rules.
#pragma once

#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "core/parameters.h"
#include "core/random.h"
#include "optim/update_rule.h"

namespace heddle {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Three parameters: one that does not fill whole vectors, one that several threads share, one
// without decay.
struct Toy {
  ParameterStore store;
  Parameter& small = store.add("small", {5, 7}, normal_init(1));
  Parameter& large = store.add("large", {40001}, normal_init(1));
  Parameter& norm = store.add("norm", {3}, constant_init(1), false);
  Toy() { store.finalize(1); }

  void set_gradients(uint64_t seed) {
    for (Parameter& p : store.parameters()) set_gradient(p, seed);
  }
  static void set_gradient(Parameter& p, uint64_t seed) {
    const Philox rng(seed, static_cast<uint64_t>(p.offset));
    const float beta = p.next_beta();
    for (int64_t i = 0; i < p.size(); ++i) {
      float& g = p.grad.data<float>()[i];
      g = (beta == 0 ? 0 : g) + rng.normal(static_cast<uint64_t>(i));
    }
  }
};

inline bool same_bits(const Tensor& a, const Tensor& b) {
  return a.bytes() == b.bytes() &&
         std::memcmp(a.raw(), b.raw(), static_cast<size_t>(a.bytes())) == 0;
}

using MakeRule = std::unique_ptr<UpdateRule> (*)();
inline const std::vector<MakeRule> kRules{
    [] { return make_sgd({.weight_decay = 0.01}); },
    [] { return make_sgd({.momentum = 0.9, .weight_decay = 0.01}); },
    [] { return make_sgd({.momentum = 0.9, .nesterov = true, .weight_decay = 0.01}); },
    [] { return make_adam({.weight_decay = 0.1}); },
    [] { return make_adam({.weight_decay = 0.1, .decoupled = true}); }};

}  // namespace heddle
