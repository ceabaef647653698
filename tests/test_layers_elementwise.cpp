// Activations, losses that compare two tensors, joined channels.
#include <doctest/doctest.h>

#include <cmath>

#include "core/kernels.h"
#include "layers/activation.h"
#include "layers/concat.h"
#include "layers/loss.h"
#include "tests/device.h"
#include "tests/elementwise_checks.h"

using namespace heddle;

TEST_CASE("relu: values and gradients") {
  Context context(on_test_device());
  for (Layout layout : input_layouts()) {
    INFO(concat(layout_name(layout)));
    const Shape shape = {2, 16, 3, 2};
    const Network apply_relu = [](Tape& t, const std::vector<Var>& in) { return relu(t, in[0]); };
    check_layer({random_tensor(shape, 1, layout)}, apply_relu, {.max_skipped = 0.05});
    const Tensor half = random_tensor(shape, 1, layout, 1.0f, DType::bf16);
    check_half({half}, apply_relu, 1e-2);  // the noise that the checker adds is rounded too
  }
  Tape tape;
  const std::vector<float> y =
      relu(tape, Var(here(Tensor::from({-1, 0, 2, NAN, -INFINITY, INFINITY})))).value().to_vector();
  CHECK(y[0] == 0);
  CHECK(y[2] == 2);
  CHECK(std::isnan(y[3]));
  CHECK(y[4] == 0);
  CHECK(y[5] == INFINITY);
  CHECK_THROWS_AS(relu(tape, Var(Tensor::zeros({2}, DType::i32))), InputError);
}

TEST_CASE("leaky ReLU, sigmoid, tanh: values and gradients") {
  Context context(on_test_device());
  const std::vector<float> points = {-1, 0, 2, NAN, -INFINITY, INFINITY, -90, 90};
  struct Case {
    Network network;
    std::vector<float> expected;  // at the points
    float at_zero;                // gradient
  };
  const auto of = [](auto layer) {
    return [layer](Tape& t, const std::vector<Var>& in) { return layer(t, in[0]); };
  };
  for (const Case& c :
       {Case{[](Tape&t, const std::vector<Var>&in) { return leaky_relu(t, in[0], 0.25f); },
             {-0.25f, 0, 2, NAN, -INFINITY, INFINITY, -22.5f, 90},
             0.25f},
        Case{of(sigmoid), {0.26894142f, 0.5f, 0.8807971f, NAN, 0, 1, 0, 1}, 0.25f},
        Case{of(heddle::tanh), {-0.7615942f, 0, 0.9640276f, NAN, -1, 1, -1, 1}, 1}}) {
    for (Layout layout : input_layouts()) {
      INFO(concat(layout_name(layout)));
      const Shape shape = {2, 16, 3, 2};
      check_layer({random_tensor(shape, 1, layout, 2.0f)}, c.network, {.max_skipped = 0.05});
      check_half({random_tensor(shape, 1, layout, 1.0f, DType::bf16)}, c.network, 2e-2);
    }
    Tape tape;
    const Var x(here(Tensor::from(points)), true);
    const Var y = c.network(tape, {x});
    const std::vector<float> values = y.value().to_vector();
    for (size_t i = 0; i < points.size(); ++i) {
      if (std::isnan(c.expected[i]))
        CHECK(std::isnan(values[i]));
      else if (std::isinf(c.expected[i]))
        CHECK(values[i] == c.expected[i]);
      else
        CHECK(std::abs(values[i] - c.expected[i]) < 1e-6);
    }
    Tape again;
    const Var zero(here(Tensor::zeros({1})), true);
    again.backward(project(again, c.network(again, {zero}), here(Tensor::from({1}))));
    CHECK(zero.grad().to_vector()[0] == c.at_zero);
    CHECK_THROWS_AS(c.network(tape, {Var(Tensor::zeros({2}, DType::i32))}), InputError);
  }
  Tape tape;
  CHECK_THROWS_AS(leaky_relu(tape, Var(Tensor::zeros({2})), -0.1f), InputError);
}

TEST_CASE("squared error and binary cross-entropy: values and gradients of both sides") {
  Context context(on_test_device());
  const Shape shape = {1, 16, 1, 2};  // few, so that gradients are not small
  for (Layout layout : input_layouts()) {
    INFO(concat(layout_name(layout)));
    const Tensor a = random_tensor(shape, 1, layout), b = random_tensor(shape, 2);
    const Network squared = [](Tape& t, const std::vector<Var>& in) {
      return mse_loss(t, in[0], in[1]);
    };
    check_layer({a, b}, squared);
    const Tensor targets = b.clone();
    scale(targets, 0.5f);
    add_constant(targets, 0.5f);
    const Network entropy = [&](Tape& t, const std::vector<Var>& in) {
      return bce_with_logits(t, in[0], targets);
    };
    check_layer({random_tensor(shape, 1, layout, 4.0f)}, entropy);

    double square = 0, cross = 0;
    const auto x = a.to_vector(), y = b.to_vector(), t = targets.to_vector();
    for (size_t i = 0; i < x.size(); ++i) {
      square += std::pow(double{x[i]} - y[i], 2) / static_cast<double>(x.size());
      const double p = 1 / (1 + std::exp(-double{x[i]}));
      cross -= (t[i] * std::log(p) + (1 - t[i]) * std::log(1 - p)) / static_cast<double>(x.size());
    }
    Tape tape;
    CHECK(mse_loss(tape, Var(a), Var(b)).value().item() == doctest::Approx(square).epsilon(1e-6));
    CHECK(bce_with_logits(tape, Var(a), targets).value().item() ==
          doctest::Approx(cross).epsilon(1e-6));
  }
  Tape tape;
  const Var far(here(Tensor::from({1e4f, -1e4f})));
  CHECK(bce_with_logits(tape, far, here(Tensor::from({0, 1}))).value().item() == 1e4f);
  CHECK(bce_with_logits(tape, far, here(Tensor::from({1, 0}))).value().item() == 0);
  const Var x(Tensor::zeros({2, 3}));
  CHECK_THROWS_AS(mse_loss(tape, x, Var(Tensor::zeros({3, 2}))), InputError);
  CHECK_THROWS_AS(mse_loss(tape, x, Var(Tensor::zeros({2, 3}, DType::bf16))), InputError);
  CHECK_THROWS_AS(bce_with_logits(tape, x, Tensor::zeros({2, 3}, DType::i32)), InputError);
  CHECK_THROWS_AS(mse_loss(tape, Var(Tensor::zeros({0})), Var(Tensor::zeros({0}))), InputError);
}

TEST_CASE("concatenated channels: values and gradients") {
  Context context(on_test_device());
  const Network joined = [](Tape& t, const std::vector<Var>& in) {
    return concat_channels(t, in[0], in[1]);
  };
  for (Layout layout : input_layouts()) {
    INFO(concat(layout_name(layout)));
    const Tensor a = random_tensor({3, 16, 2, 5}, 1, layout), b = random_tensor({3, 4, 2, 5}, 2);
    check_layer({a, b}, joined);
    Tape tape;
    const Var y = joined(tape, {Var(a), Var(b)});
    CHECK(y.shape() == Shape({3, 20, 2, 5}));
    const auto values = y.value().to_vector(), first = a.to_vector(), second = b.to_vector();
    for (size_t n = 0; n < 3; ++n)
      for (size_t i = 0; i < 200; ++i)
        REQUIRE(values[n * 200 + i] == (i < 160 ? first[n * 160 + i] : second[n * 40 + i - 160]));
  }
  check_layer({random_tensor({5, 2}, 1), random_tensor({5, 3}, 2)}, joined);
  check_half({random_tensor({2, 3, 4}, 1, Layout::plain, 1.0f, DType::bf16),
              random_tensor({2, 1, 4}, 2, Layout::plain, 1.0f, DType::bf16)},
             joined, 1e-2);
  Tape tape;
  const auto refused = [&](const Tensor& a, const Tensor& b) {
    CHECK_THROWS_AS(concat_channels(tape, Var(a), Var(b)), InputError);
  };
  refused(Tensor::zeros({2, 3, 4}), Tensor::zeros({2, 3, 5}));
  refused(Tensor::zeros({2, 3, 4}), Tensor::zeros({3, 3, 4}));
  refused(Tensor::zeros({2, 3}), Tensor::zeros({2, 3, 1}));
  refused(Tensor::zeros({2}), Tensor::zeros({2}));
  refused(Tensor::zeros({2, 3}), Tensor::zeros({2, 3}, DType::bf16));
}
