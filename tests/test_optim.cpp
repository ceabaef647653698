// The optimizer's order of events, clipping, accumulation and skips.
#include <doctest/doctest.h>
#include <omp.h>

#include <cmath>
#include <cstring>
#include <optional>

#include "core/context.h"
#include "core/kernels.h"
#include "core/tape.h"
#include "optim/clip.h"
#include "optim/optimizer.h"
#include "tests/optim_helpers.h"

using namespace heddle;

TEST_CASE("optimizer: an update waits for the gradient and for the weights") {
  Context context;
  Toy toy;
  Optimizer optimizer(toy.store, make_sgd({.momentum = 0.9}));
  optimizer.begin_step(0.1);
  toy.set_gradients(1);
  const Tensor before = toy.store.values().clone();
  optimizer.ready(toy.large);
  optimizer.weights_free(toy.small);
  CHECK(same_bits(before, toy.store.values()));
  optimizer.weights_free(toy.large);
  CHECK(same_bits(before.slice(toy.small.offset, toy.small.offset + 35), toy.small.value));
  const Tensor large = toy.large.value.clone();
  CHECK_FALSE(same_bits(before.slice(toy.large.offset, toy.large.offset + 40001), large));
  optimizer.ready(toy.small);
  CHECK_FALSE(same_bits(before.slice(toy.small.offset, toy.small.offset + 35), toy.small.value));
  const StepReport report = optimizer.finish_step();
  CHECK(report.due);
  CHECK(same_bits(large, toy.large.value));  // once only
  CHECK(optimizer.steps() == 1);
}

TEST_CASE("optimizer: a gradient that comes after its update is refused, not lost") {
  Context context;
  ParameterStore store;
  Parameter& w = store.add("w", {4}, constant_init(1));
  store.finalize(1);
  for (const bool deferred : {false, true}) {
    Optimizer optimizer(store, make_sgd({}), {.clip_grad_norm = deferred ? 1e9 : 0.0});
    optimizer.begin_step(0.1);
    const auto backward = [&] {
      fill(w.grad, 1);
      w.written = true;
      optimizer.ready(w);
      optimizer.weights_free(w);
    };
    backward();
    if (deferred)
      CHECK_NOTHROW(backward());
    else
      CHECK_THROWS_AS(backward(), InputError);
  }
}

TEST_CASE("optimizer: updates during backward, at its end or deferred give the same bits") {
  Context context;
  for (const MakeRule make : kRules) {
    std::vector<Tensor> results;
    for (const int way : {0, 1, 2}) {
      Toy toy;
      OptimizerOptions options;
      if (way == 2) options.on_nonfinite = OnNonfinite::step;
      Optimizer optimizer(toy.store, make(), options);
      for (uint64_t step = 0; step < 3; ++step) {
        optimizer.begin_step(0.05);
        for (Parameter* p : {&toy.norm, &toy.small, &toy.large}) {
          Toy::set_gradient(*p, step);
          if (way == 0) optimizer.weights_free(*p);
          optimizer.ready(*p);
        }
        optimizer.finish_step();
      }
      results.push_back(toy.store.values());
    }
    CHECK(same_bits(results[0], results[1]));
    CHECK(same_bits(results[0], results[2]));
  }
}

TEST_CASE("optimizer: begin_step after the forward pass on a tape") {
  Context context;
  ParameterStore store;
  Parameter& w = store.add("w", {1}, constant_init(3));
  store.finalize(0);
  Optimizer optimizer(store, make_sgd({}));
  for (int step = 0; step < 2; ++step) {
    Tape tape;
    const float value = w.value.item();
    Var loss(Tensor::from({value * value / 2}), true);
    tape.record("square", loss, {&w}, [&](BackwardPass& pass) {
      fill(w.grad, w.next_beta() * w.grad.item() + value);
      pass.contributed(w);
      CHECK(w.value.item() == value);  // the closure may still read it
    });
    optimizer.begin_step(0.5);
    tape.backward(
        loss, [&](Parameter& p) { optimizer.ready(p); },
        [&](Parameter& p) {
          optimizer.weights_free(p);
          CHECK(p.value.item() == value / 2);
        });
    optimizer.finish_step();
  }
  CHECK(w.value.item() == 0.75f);
}

TEST_CASE("optimizer: parameters without a gradient get zero and are named once") {
  Context context;
  Toy toy;
  std::vector<std::string> lines;
  Optimizer optimizer(toy.store, make_sgd({.momentum = 0.5}),
                      {.log = [&](const std::string& line) { lines.push_back(line); }});
  optimizer.begin_step(1);
  toy.set_gradients(1);
  optimizer.finish_step();
  CHECK(lines.empty());
  const float value = toy.norm.value.data<float>()[0];
  const float momentum = toy.norm.grad.data<float>()[0];
  for (int step = 0; step < 2; ++step) {
    optimizer.begin_step(1);
    Toy::set_gradient(toy.small, 2);
    Toy::set_gradient(toy.large, 2);
    optimizer.ready(toy.norm);  // the tape also calls it where no gradient arrived
    optimizer.weights_free(toy.norm);
    optimizer.finish_step();
  }
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].find("parameter norm: no gradient") != std::string::npos);
  CHECK(toy.norm.value.data<float>()[0] == doctest::Approx(value - momentum * 0.75).epsilon(1e-6));
}

TEST_CASE("row-sparse gradients: the same bits as dense ones, no other row is read") {
  Context context;
  struct Model {
    ParameterStore store;
    Parameter& embedding = store.add("embedding", {6, 20}, normal_init(1));
    Parameter& dense = store.add("dense", {9}, normal_init(1));
    Model() { store.finalize(1); }
  };
  struct Kind {
    MakeRule rule;
    bool rows_only;
  };
  const std::vector<Kind> kinds{{[] { return make_sgd({}); }, true},
                                {[] { return make_sgd({.weight_decay = 0.1}); }, false},
                                {[] { return make_sgd({.momentum = 0.9}); }, false},
                                {[] { return make_adam({}); }, false}};
  for (const Kind& kind : kinds)
    for (double clip : {0.0, 0.5}) {
      Model sparse, full;
      Optimizer a(sparse.store, kind.rule(), {.clip_grad_norm = clip});
      Optimizer b(full.store, kind.rule(), {.clip_grad_norm = clip});
      for (int32_t step = 0; step < 4; ++step) {
        const std::vector<int32_t> rows = {step, step + 2};
        a.begin_step(0.1);
        b.begin_step(0.1);
        for (Model* m : {&sparse, &full}) {
          Toy::set_gradient(m->dense, static_cast<uint64_t>(step));
          CHECK(m->embedding.next_beta() == 0.0f);
          m->embedding.grad.fill_zero();
          for (int32_t row : rows)
            fill(m->embedding.grad.slice(row, row + 1), 0.25f * static_cast<float>(row + 1));
        }
        sparse.embedding.touched_rows = rows;
        a.finish_step();
        b.finish_step();
        REQUIRE(same_bits(sparse.store.values(), full.store.values()));
      }
      // Rules that leave rows without a gradient unchanged do not read a row that is not listed.
      const Tensor before = sparse.embedding.value.clone();
      a.begin_step(0.1);
      Toy::set_gradient(sparse.dense, 9);
      sparse.embedding.next_beta();
      sparse.embedding.grad.fill_zero();
      fill(sparse.embedding.grad.slice(5, 6), 1.0f);
      sparse.embedding.touched_rows = std::vector<int32_t>{0};
      a.finish_step();
      CHECK(same_bits(before.slice(5, 6), sparse.embedding.value.slice(5, 6)) == kind.rows_only);
    }
}

TEST_CASE("clipping: matches torch.nn.utils.clip_grad_norm_ with any number of threads") {
  Context context;
  ParameterStore store;
  Parameter& p = store.add("w", {4}, constant_init(0));
  store.finalize(0);
  p.grad.copy_from(Tensor::from({3, 0, 4, 0}));
  CHECK(global_norm(store) == 5);
  CHECK(clip_factor(5, 10) == 1);
  CHECK(3 * clip_factor(5, 1) == doctest::Approx(0.599999905).epsilon(1e-7));
  CHECK(4 * clip_factor(5, 1) == doctest::Approx(0.799999833).epsilon(1e-7));
  p.grad.copy_from(Tensor::from({3, kNan, 4, 0}));
  CHECK(std::isnan(global_norm(store)));
  CHECK(clip_factor(kNan, 1) == 1);

  Toy toy;
  toy.set_gradients(1);
  std::vector<double> norms;
  for (const int threads : {1, 2, 3, 7}) {
    omp_set_num_threads(threads);
    norms.push_back(global_norm(toy.store));
  }
  omp_set_num_threads(context.threads());
  for (const double norm : norms) CHECK(norm == norms[0]);
}

TEST_CASE("optimizer: clipping scales the mean gradient of all parameters") {
  Context context;
  Toy toy;
  const Tensor before = toy.store.values().clone();
  Optimizer optimizer(toy.store, make_sgd({}), {.accumulate = 2, .clip_grad_norm = 0.5});
  StepReport report;
  for (int micro = 0; micro < 2; ++micro) {
    optimizer.begin_step(1);
    toy.set_gradients(3);
    report = optimizer.finish_step();
    CHECK(report.due == (micro == 1));
  }
  CHECK(report.grad_norm == doctest::Approx(global_norm(toy.store) / 2).epsilon(1e-12));
  CHECK(report.grad_norm > 100);
  axpy(-1, before, toy.store.values());
  CHECK(std::sqrt(squared_norm(toy.store.values())) == doctest::Approx(0.5).epsilon(1e-4));
}

TEST_CASE("accumulation: four micro-batches equal one big batch") {
  Context context;
  // loss = mean over samples of (w - x)^2 / 2; the gradient is w - mean(x).
  const std::vector<float> samples{1, 2, 3, 4, -5, 6, 0.5f, 8};
  std::vector<std::vector<float>> results;
  for (const int parts : {1, 4}) {
    ParameterStore store;
    Parameter& w = store.add("w", {1}, constant_init(1));
    store.finalize(0);
    Optimizer optimizer(store, make_sgd({.momentum = 0.9}), {.accumulate = parts});
    for (int step = 0; step < 5; ++step) {
      for (int part = 0; part < parts; ++part) {
        optimizer.begin_step(0.1);
        const int count = 8 / parts;
        float gradient = 0;
        for (int i = part * count; i < (part + 1) * count; ++i)
          gradient +=
              (w.value.item() - samples[static_cast<size_t>(i)]) / static_cast<float>(count);
        const float beta = w.next_beta();
        fill(w.grad, (beta == 0 ? 0 : w.grad.item()) + gradient);
        optimizer.ready(w);
        optimizer.weights_free(w);
        CHECK(optimizer.finish_step().due == (part == parts - 1));
      }
    }
    CHECK(optimizer.steps() == 5);
    results.push_back(w.value.to_vector());
  }
  CHECK(results[0][0] == doctest::Approx(results[1][0]).epsilon(1e-6));
  CHECK(results[0][0] > 1.5);
}

TEST_CASE("non-finite gradients: a skipped step leaves weights and state unchanged") {
  Context context;
  for (const double clip : {0.0, 1.0}) {
    Toy toy;
    Optimizer optimizer(toy.store, make_adam({}),
                        {.clip_grad_norm = clip,
                         .on_nonfinite = clip > 0 ? OnNonfinite::bucket : OnNonfinite::step});
    optimizer.begin_step(0.1);
    toy.set_gradients(1);
    optimizer.finish_step();
    const Tensor values = toy.store.values().clone();
    std::vector<Tensor> state;
    for (const auto& [name, tensor] : optimizer.rule().named_state())
      state.push_back(tensor.clone());

    optimizer.begin_step(0.1);
    toy.set_gradients(2);
    toy.large.grad.data<float>()[12345] = kNan;
    toy.small.grad.data<float>()[1] = INFINITY;
    for (Parameter& p : toy.store.parameters()) {
      optimizer.ready(p);
      optimizer.weights_free(p);
    }
    const StepReport report = optimizer.finish_step();
    CHECK(report.skipped);
    CHECK(report.skipped_parameters == 2);
    CHECK(report.first_skipped == toy.large.name);  // first in the order of backward
    CHECK(optimizer.skipped_steps() == 1);
    CHECK(optimizer.steps() == 1);
    CHECK(same_bits(values, toy.store.values()));
    const auto now = optimizer.rule().named_state();
    for (size_t i = 0; i < state.size(); ++i) CHECK(same_bits(state[i], now[i].second));

    optimizer.begin_step(0.1);
    toy.set_gradients(3);
    CHECK_FALSE(optimizer.finish_step().skipped);
    CHECK(all_finite(toy.store.values()));
  }
}

TEST_CASE("non-finite gradients: bucket by bucket, finite ones are applied") {
  Context context;
  Toy toy;
  Optimizer optimizer(toy.store, make_sgd({.momentum = 0.9}));
  const Tensor large = toy.large.value.clone(), small = toy.small.value.clone();
  optimizer.begin_step(0.1);
  toy.set_gradients(2);
  toy.large.grad.data<float>()[40000] = -INFINITY;
  const StepReport report = optimizer.finish_step();
  CHECK_FALSE(report.skipped);
  CHECK(report.skipped_parameters == 1);
  CHECK(report.first_skipped == toy.large.name);
  CHECK(same_bits(large, toy.large.value));
  CHECK_FALSE(same_bits(small, toy.small.value));
  for (const auto& [name, tensor] : optimizer.named_state())
    if (name == "momentum_buffer.large") CHECK(squared_norm(tensor) == 0);
}

TEST_CASE("optimizer: state can be copied into another optimizer") {
  Context context;
  Toy original, copy;
  const auto rule = [] { return make_adam({.decoupled = true}); };
  Optimizer first(original.store, rule()), second(copy.store, rule());
  const auto step = [](Toy& toy, Optimizer& optimizer, uint64_t seed) {
    optimizer.begin_step(0.1);
    toy.set_gradients(seed);
    optimizer.finish_step();
  };
  step(original, first, 1);
  step(original, first, 2);
  copy.store.values().copy_from(original.store.values());
  const auto from = first.named_state(), to = second.named_state();
  REQUIRE(from.size() == 7);
  CHECK(from[0].first == "exp_avg.small");
  CHECK(from[0].second.shape() == Shape{5, 7});
  for (size_t i = 0; i < from.size(); ++i) {
    CHECK(from[i].first == to[i].first);
    to[i].second.copy_from(from[i].second);
  }
  step(original, first, 3);
  step(copy, second, 3);
  CHECK(second.steps() == 3);
  CHECK(same_bits(original.store.values(), copy.store.values()));
}

TEST_CASE("optimizer: invalid options are refused") {
  Context context;
  CHECK_THROWS_AS(make_sgd({.momentum = 1}), InputError);
  CHECK_THROWS_AS(make_sgd({.nesterov = true}), InputError);
  CHECK_THROWS_AS(make_sgd({.weight_decay = kNan}), InputError);
  CHECK_THROWS_AS(make_adam({.beta2 = 1}), InputError);
  CHECK_THROWS_AS(make_adam({.eps = -1}), InputError);
  Toy toy;
  CHECK_THROWS_AS(Optimizer(toy.store, make_sgd({}), {.accumulate = 0}), InputError);
  CHECK_THROWS_AS(Optimizer(toy.store, make_sgd({}), {.clip_grad_norm = -1}), InputError);
  CHECK_THROWS_WITH(Optimizer(toy.store, nullptr),
                    "optimizer: expected an update rule, found none");
  Optimizer optimizer(toy.store, make_sgd({}));
  CHECK_THROWS_AS(optimizer.begin_step(kNan), InputError);
  // Without begin_step it would use the last learning rate, or none.
  CHECK_THROWS_AS(optimizer.finish_step(), InputError);
  optimizer.begin_step(0.1);
  CHECK_NOTHROW(optimizer.finish_step());
  CHECK_THROWS_AS(optimizer.finish_step(), InputError);
  CHECK(optimizer.steps() == 1);
}
