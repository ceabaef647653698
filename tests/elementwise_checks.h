// Gradient checks of layers without parameters.
#pragma once

#include <doctest/doctest.h>

#include <vector>

#include "core/kernels.h"
#include "tests/gradcheck.h"

namespace heddle {

using Network = GradCheck::Network;

// Checks a layer without parameters.
inline void check_layer(std::vector<Tensor> inputs, const Network& network,
                        const GradCheckOptions& options = {}) {
  ParameterStore store;
  store.finalize(1);
  GradCheck(store, std::move(inputs), network, options).run();
}

// Compares output and gradients in bf16 with those in fp32 on the same numbers.
inline void check_half(const std::vector<Tensor>& half, const Network& network, double bound) {
  ParameterStore store;
  store.finalize(1);
  std::vector<Tensor> full;
  for (const Tensor& t : half) full.push_back(converted(t, DType::f32, t.layout()));
  const auto a = GradCheck(store, half, network).analytic(DyMode::shared),
             b = GradCheck(store, full, network).analytic(DyMode::shared);
  for (size_t i = 0; i < a.size(); ++i) CHECK(relative_distance(a[i], b[i]) < bound);
  const Tensor y = forward_value(network, half);
  CHECK(y.dtype() == DType::bf16);
  CHECK(relative_distance(y.to_vector(), forward_value(network, full).to_vector()) < 4e-3);
}

}  // namespace heddle
