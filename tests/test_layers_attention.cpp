// GELU, softmax, layer normalisation, attention and GRU: values against their definitions, and
// gradients. tests/test_golden.cpp compares them with PyTorch.
#include <doctest/doctest.h>

#include <cmath>

#include "core/kernels.h"
#include "layers/activation.h"
#include "layers/attention.h"
#include "layers/gru.h"
#include "layers/layernorm.h"
#include "tests/device.h"
#include "tests/elementwise_checks.h"

using namespace heddle;

TEST_CASE("gelu: values, extremes and gradients") {
  Context context(on_test_device());
  const Network network = [](Tape& t, const std::vector<Var>& in) { return gelu(t, in[0]); };
  for (Layout layout : input_layouts()) {
    INFO(concat(layout_name(layout)));
    check_layer({random_tensor({2, 16, 3, 2}, 1, layout, 3.0f)}, network);
    if (bf16_here())
      check_half({random_tensor({2, 16, 3, 2}, 1, layout, 3.0f, DType::bf16)}, network, 2e-2);
  }
  Tape tape;
  const Var x(here(Tensor::from({-1, 0, 2, NAN, -30, 30})));
  const std::vector<float> y = gelu(tape, x).value().to_vector(),
                           expected = {-0.15865526f, 0, 1.9544997f, NAN, 0, 30};
  for (size_t i = 0; i < y.size(); ++i)
    if (std::isnan(expected[i]))
      CHECK(std::isnan(y[i]));
    else
      CHECK(std::abs(y[i] - expected[i]) < 1e-6);
  CHECK_THROWS_AS(gelu(tape, Var(Tensor::zeros({2}, DType::i32))), InputError);
}

TEST_CASE("softmax: rows of the last axis, large values, gradients") {
  Context context(on_test_device());
  const Network network = [](Tape& t, const std::vector<Var>& in) { return softmax(t, in[0]); };
  for (const Shape& shape : {Shape{7}, Shape{2, 16, 3, 5}, Shape{2, 3, 40}})
    check_layer({random_tensor(shape, 1, Layout::plain, 2.0f)}, network, {.max_skipped = 0.1});
  for (Layout layout : input_layouts())
    check_layer({random_tensor({2, 16, 3, 5}, 2, layout, 2.0f)}, network, {.max_skipped = 0.1});
  if (bf16_here())
    check_half({random_tensor({6, 9}, 1, Layout::plain, 2.0f, DType::bf16)}, network, 3e-2);
  Tape tape;
  const Var x(here(Tensor::from({1000, 1001, -INFINITY, NAN, 0, 1}, {2, 3})));
  const std::vector<float> y = softmax(tape, x).value().to_vector();
  CHECK(std::abs(y[0] - 0.26894142f) < 1e-6);
  CHECK(std::abs(y[1] - 0.7310586f) < 1e-6);
  CHECK(y[2] == 0);
  for (size_t i = 3; i < 6; ++i) CHECK(std::isnan(y[i]));
  const std::vector<float> long_row = random_tensor({400}, 5).to_vector(),
                           share = softmax(tape, Var(random_tensor({400}, 5))).value().to_vector();
  double sum = 0;
  for (const float v : long_row) sum += std::exp(static_cast<double>(v));
  for (size_t i = 0; i < share.size(); ++i)
    CHECK(share[i] ==
          doctest::Approx(std::exp(static_cast<double>(long_row[i])) / sum).epsilon(1e-5));
  CHECK(softmax(tape, Var(here(Tensor::from({-3, 8}, {2, 1})))).value().to_vector() ==
        std::vector<float>{1, 1});
  CHECK(softmax(tape, Var(Tensor::zeros({0, 3}))).shape() == Shape{0, 3});
  CHECK_THROWS_AS(softmax(tape, Var(Tensor::zeros({}))), InputError);
  CHECK_THROWS_AS(softmax(tape, Var(Tensor::zeros({2, 0}))), InputError);
}

TEST_CASE("layer normalisation: mean and variance of each row, gradients") {
  Context context(on_test_device());
  for (const Shape& shape : {Shape{5, 12}, Shape{2, 3, 300}, Shape{12}}) {
    CAPTURE(to_string(shape));
    const int64_t columns = shape[shape.rank() - 1];
    ParameterStore store;
    const LayerNorm norm(store, "norm", columns);
    store.finalize(1);
    const Network network = [&](Tape& t, const std::vector<Var>& in) {
      return norm.forward(t, in[0]);
    };
    const Tensor x = random_tensor(shape, 3);
    add_constant(x, 5.0f);
    const std::vector<float> y = forward_value(network, {x}).to_vector();
    for (size_t r = 0; r < y.size(); r += to_size(columns)) {
      double sum = 0, squares = 0;
      for (size_t c = 0; c < to_size(columns); ++c) {
        sum += y[r + c];
        squares += static_cast<double>(y[r + c]) * y[r + c];
      }
      CHECK(std::abs(sum / static_cast<double>(columns)) < 1e-5);
      CHECK(squares / static_cast<double>(columns) == doctest::Approx(1).epsilon(1e-3));
    }
    randomize(store, 2, 0.5f);
    GradCheck(store, {x}, network, {.max_skipped = 0.1}).run();
    if (!bf16_here()) continue;
    const Tensor half = converted(random_tensor(shape, 3), DType::bf16, Layout::plain);
    const auto a = GradCheck(store, {half}, network).analytic(DyMode::shared);
    const auto b = GradCheck(store, {converted(half, DType::f32, Layout::plain)}, network)
                       .analytic(DyMode::shared);
    for (size_t i = 0; i < a.size(); ++i) CHECK(relative_distance(a[i], b[i]) < 3e-2);
  }
  ParameterStore store;
  const LayerNorm norm(store, "norm", 3);
  store.finalize(1);
  Tape tape;
  CHECK_THROWS_AS(norm.forward(tape, Var(Tensor::zeros({3, 4}))), InputError);
  CHECK_THROWS_AS(norm.forward(tape, Var(Tensor::zeros({}))), InputError);
  CHECK_THROWS_AS(LayerNorm(store, "none", 0), InputError);
}

TEST_CASE("attention: one head by hand, what a causal position sees, gradients") {
  Context context(on_test_device());
  // One head of width 2: queries, keys and values of two positions.
  Tape tape;
  const Tensor qkv = here(Tensor::from({1, 0, 1, 0, 1, 2, 0, 1, 0, 2, 3, 4}, {2, 1, 6}));
  const double root = std::sqrt(2.0), first = std::exp(1 / root), second = std::exp(2 / root);
  const std::vector<float> y = self_attention(tape, Var(qkv), 1).value().to_vector(),
                           causal = self_attention(tape, Var(qkv), 1, true).value().to_vector();
  CHECK(y[0] == doctest::Approx((first * 1 + 1 * 3) / (first + 1)));
  CHECK(y[1] == doctest::Approx((first * 2 + 1 * 4) / (first + 1)));
  CHECK(y[2] == doctest::Approx((1 * 1 + second * 3) / (1 + second)));
  CHECK(causal[0] == 1);
  CHECK(causal[1] == 2);
  CHECK(causal[2] == y[2]);
  // Later positions change no earlier output, with several heads and samples.
  const Tensor x = random_tensor({5, 3, 24}, 1), changed = x.clone();
  fill(changed.slice(3, 5), 0.5f);
  const std::vector<float> before = self_attention(tape, Var(x), 4, true).value().to_vector(),
                           after = self_attention(tape, Var(changed), 4, true).value().to_vector();
  for (size_t i = 0; i < 5 * 3 * 8; ++i) CHECK((before[i] == after[i]) == (i < 3 * 3 * 8));

  for (const bool only_before : {false, true}) {
    const Network core = [&](Tape& t, const std::vector<Var>& in) {
      return self_attention(t, in[0], 4, only_before);
    };
    if (bf16_here())
      check_half({random_tensor({5, 3, 24}, 7, Layout::plain, 1.0f, DType::bf16)}, core, 5e-2);
    ParameterStore store;
    const MultiHeadAttention layer(store, "attention", 8, 2);
    store.finalize(1);
    randomize(store, 2, 0.5f);
    const Network network = [&](Tape& t, const std::vector<Var>& in) {
      return layer.forward(t, in[0], only_before);
    };
    const Tensor in = random_tensor({5, 3, 8}, 4);
    GradCheck(store, {in}, network, {.max_skipped = 0.1}).run();
    if (!bf16_here()) continue;
    const Tensor half = converted(in, DType::bf16, Layout::plain);
    const auto a = GradCheck(store, {half}, network).analytic(DyMode::shared);
    const auto b = GradCheck(store, {converted(half, DType::f32, Layout::plain)}, network)
                       .analytic(DyMode::shared);
    for (size_t i = 0; i < a.size(); ++i) CHECK(relative_distance(a[i], b[i]) < 5e-2);
  }
  for (const Shape& shape : {Shape{2, 1, 8}, Shape{2, 6}, Shape{0, 1, 6}, Shape{2, 1, 0}})
    CHECK_THROWS_AS(self_attention(tape, Var(Tensor::zeros(shape)), 1), InputError);
  CHECK_THROWS_AS(self_attention(tape, Var(Tensor::zeros({2, 1, 6})), 4), InputError);
  CHECK_THROWS_AS(self_attention(tape, Var(Tensor::zeros({2, 1, 6})), 0), InputError);
  ParameterStore store;
  CHECK_THROWS_AS(MultiHeadAttention(store, "x", 8, 3), InputError);
}

TEST_CASE("gru: gradients, one and two layers; states carry windows on; what is refused") {
  Context context(on_test_device());
  struct Case {
    int64_t steps, batch, input, hidden, layers;
  };
  for (const Case& s :
       {Case{1, 1, 1, 1, 1}, Case{4, 2, 3, 5, 1}, Case{3, 3, 16, 16, 2}, Case{3, 2, 4, 7, 2}}) {
    CAPTURE(s.steps);
    CAPTURE(s.layers);
    ParameterStore store;
    const Gru rnn(store, "rnn", s.input, s.hidden, s.layers);
    store.finalize(1);
    randomize(store, 2, 0.6f);
    const Tensor start = random_tensor({s.layers, s.batch, s.hidden}, 3);
    const Network network = [&](Tape& t, const std::vector<Var>& in) {
      Tensor state = start;
      return rnn.forward(t, in[0], state);
    };
    const Tensor x = random_tensor({s.steps, s.batch, s.input}, 4);
    GradCheck(store, {x}, network, {.samples = 64}).run();
    if (bf16_here() && s.hidden > 1) {  // one number alone may be all rounding
      const Tensor half = converted(x, DType::bf16, Layout::plain);
      const auto a = GradCheck(store, {half}, network).analytic(DyMode::shared);
      const auto b = GradCheck(store, {converted(half, DType::f32, Layout::plain)}, network)
                         .analytic(DyMode::shared);
      for (size_t i = 0; i < a.size(); ++i) CHECK(relative_distance(a[i], b[i]) < 3e-2);
    }
    // One window is two windows, whose state goes from one to the other.
    if (s.steps < 2) continue;
    Tape tape({.training = false});
    Tensor whole = start, carried = start;
    const std::vector<float> y = rnn.forward(tape, Var(x), whole).value().to_vector();
    std::vector<float> parts = rnn.forward(tape, Var(x.slice(0, 1)), carried).value().to_vector();
    const std::vector<float> rest =
        rnn.forward(tape, Var(x.slice(1, s.steps)), carried).value().to_vector();
    parts.insert(parts.end(), rest.begin(), rest.end());
    CHECK(relative_distance(parts, y) < 1e-6);
    CHECK(relative_distance(carried.to_vector(), whole.to_vector()) < 1e-6);
  }
  ParameterStore store;
  const Gru rnn(store, "rnn", 3, 5);
  store.finalize(1);
  Tape tape;
  ParameterStore other;
  RecurrentWeights w = add_recurrent_weights(other, "w", 0, 15, 3, 5, 1);
  w.bias_ih = w.bias_hh = &other.add("small", {12}, constant_init(1));
  other.finalize(1);
  Tensor zeros = Tensor::zeros({2, 5});
  CHECK_THROWS_AS(gru_layer(tape, Var(Tensor::zeros({4, 2, 3})), w, zeros), InputError);
  Tensor state = rnn.zero_state(2);
  CHECK_THROWS_AS(rnn.forward(tape, Var(Tensor::zeros({4, 2, 4})), state), InputError);
  CHECK_THROWS_AS(rnn.forward(tape, Var(Tensor::zeros({4, 3, 3})), state), InputError);
  CHECK_THROWS_AS(rnn.forward(tape, Var(Tensor::zeros({0, 2, 3})), state), InputError);
  CHECK_THROWS_AS(rnn.forward(tape, Var(Tensor::zeros({2, 3})), state), InputError);
  CHECK_THROWS_AS(Gru(store, "x", 3, 0), InputError);
}
