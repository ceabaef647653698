// Update rules against PyTorch, on divided buffers, and without weight decay.
// Expected numbers: torch 1.13.1, float64, three steps of the named optimizer.
#include <doctest/doctest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>

#include "core/context.h"
#include "core/kernels.h"
#include "optim/optimizer.h"
#include "tests/optim_helpers.h"

using namespace heddle;

TEST_CASE("update rules: three steps match PyTorch") {
  Context context;
  const std::vector<std::vector<float>> gradients{
      {0.5f, -1, 0.25f, 2}, {-0.1f, 0.3f, 1e-3f, -4}, {0, 2.5f, -0.7f, 0.125f}};
  const std::vector<std::vector<double>> expected{
      {0.957092949, -2.1741759, 0.543451575, 0.1874998},
      {0.878074749, -2.0251395, 0.499352474, 0.2058598},
      {0.847593358, -2.19725062, 0.54299409, 0.373064228},
      {0.977175914, -1.98744157, 0.485398295, -0.00368606786},
      {0.977967593, -1.98437393, 0.486066295, -0.00367234221}};
  for (size_t r = 0; r < kRules.size(); ++r) {
    CAPTURE(r);
    ParameterStore store;
    Parameter& p = store.add("w", {4}, constant_init(0));
    store.finalize(0);
    p.value.copy_from(Tensor::from({1, -2, 0.5f, 0}));
    auto rule = kRules[r]();
    rule->attach(store);
    for (int64_t step = 1; step <= 3; ++step) {
      p.grad.copy_from(Tensor::from(gradients[static_cast<size_t>(step - 1)]));
      rule->update(p, {.lr = r < 3 ? 0.1 : 0.01, .step = step});
    }
    for (size_t i = 0; i < 4; ++i)
      CHECK(p.value.to_vector()[i] == doctest::Approx(expected[r][i]).epsilon(1.2e-7).scale(0.1));
  }
}

TEST_CASE("update rules: the same bits however buffers are divided") {
  for (const MakeRule make : kRules) {
    std::vector<Tensor> results;
    for (const int cut : {0, 1, 2}) {
      Context context({.threads = cut == 1 ? 1 : 2});
      omp_set_num_threads(context.threads());
      Toy toy;
      auto rule = make();
      rule->attach(toy.store);
      for (int64_t step = 1; step <= 3; ++step) {
        toy.store.begin_step();
        toy.set_gradients(static_cast<uint64_t>(step));
        const UpdateInput input{.lr = 0.05, .grad_scale = 0.3, .step = step};
        const int64_t n = toy.store.values().size();
        if (cut == 0) rule->update_range(0, n, true, input);
        if (cut == 1)
          for (const Parameter& p : toy.store.parameters()) rule->update(p, input);
        for (int64_t i = 0; cut == 2 && i < n; i += 977)
          rule->update_range(i, std::min(n, i + 977), true, input);
      }
      results.push_back(toy.store.values());
      double padding = squared_norm(toy.store.values());
      for (const Parameter& p : toy.store.parameters()) padding -= squared_norm(p.value);
      CHECK(std::abs(padding) < 1e-6);
    }
    CHECK(same_bits(results[0], results[1]));
    CHECK(same_bits(results[0], results[2]));
  }
}

TEST_CASE("update rules: no weight decay on batch norm and biases when asked") {
  Context context;
  for (const bool decay_all : {true, false}) {
    Toy toy;
    Optimizer optimizer(toy.store, make_sgd({.weight_decay = 0.5, .decay_norm_bias = decay_all}));
    const float before = toy.small.value.data<float>()[0];
    optimizer.begin_step(1);
    optimizer.finish_step();
    CHECK(toy.norm.value.data<float>()[0] == (decay_all ? 0.5f : 1.0f));
    CHECK(toy.small.value.data<float>()[0] == before / 2);
  }
}
