// Every layer against PyTorch: outputs and gradients of tests/golden/make_golden.py, in every
// layout that the shape allows.
#include <doctest/doctest.h>

#include <functional>

#include "core/kernels.h"
#include "layers/activation.h"
#include "layers/attention.h"
#include "layers/batchnorm.h"
#include "layers/conv2d.h"
#include "layers/layernorm.h"
#include "layers/linear.h"
#include "layers/loss.h"
#include "layers/pooling.h"
#include "tests/golden.h"

using namespace heddle;

namespace {

// Returns those of `offered` that the shape allows.
std::vector<Layout> layouts(const Shape& shape, std::vector<Layout> offered = input_layouts()) {
  if (shape[1] % 16 != 0) std::erase(offered, Layout::c16);
  return offered;
}

Parameter& add_parameter(ParameterStore& store, const std::string& name, const Shape& shape) {
  return store.add(name, shape, constant_init(0.0f));
}

void check_conv2d(const std::string& name, const Shape& x_shape, const Shape& w_shape,
                  const Conv2dOptions& options) {
  for (Layout layout : layouts(x_shape)) {
    CAPTURE(std::string(layout_name(layout)));
    const Golden golden(name);
    ParameterStore store;
    Parameter& weight = add_parameter(store, "weight", w_shape);
    store.finalize(0);
    spoil_gradients(store);
    weight.value.copy_from(golden.value("weight", w_shape, he_scale(w_shape)));
    const Var x(converted(golden.value("x", x_shape), DType::f32, layout), true);
    Tape tape;
    const Var y = conv2d(tape, x, weight, nullptr, options);
    backward(tape, y, golden.value("dy", y.shape()));
    golden.expect("y", y.value());
    golden.expect("dx", x.grad());
    golden.expect("dweight", weight.grad);
  }
}

void check_transposed(const std::string& name, const Shape& x_shape, const Shape& w_shape,
                      const Conv2dOptions& options) {
  for (Layout layout : layouts(x_shape)) {
    CAPTURE(std::string(layout_name(layout)));
    const Golden golden(name);
    const Shape channels{w_shape[1] * options.groups};
    ParameterStore store;
    Parameter& weight = add_parameter(store, "weight", w_shape);
    Parameter& bias = add_parameter(store, "bias", channels);
    store.finalize(0);
    spoil_gradients(store);
    weight.value.copy_from(golden.value("weight", w_shape, he_scale(w_shape)));
    bias.value.copy_from(golden.value("bias", channels, 0.1f));
    const Var x(converted(golden.value("x", x_shape), DType::f32, layout), true);
    Tape tape;
    const Var y = conv_transpose2d(tape, x, weight, &bias, options);
    backward(tape, y, golden.value("dy", y.shape()));
    golden.expect("y", y.value());
    golden.expect("dx", x.grad());
    golden.expect("dweight", weight.grad);
    golden.expect("dbias", bias.grad);
  }
}

void check_batchnorm(const std::string& name, const Shape& shape, bool training, bool relu = false,
                     bool add = false) {
  const Shape c{shape[1]};
  for (Layout layout : layouts(shape, map_layouts())) {
    CAPTURE(std::string(layout_name(layout)));
    const Golden golden(name);
    ParameterStore store;
    const BatchNorm2d norm(store, "bn", shape[1]);
    store.finalize(0);
    spoil_gradients(store);
    norm.weight->value.copy_from(golden.value("weight", c, 0.1f, 1.0));
    norm.bias->value.copy_from(golden.value("bias", c, 0.1f));
    norm.running_mean->value.copy_from(golden.value("running_mean", c, 0.1f));
    norm.running_var->value.copy_from(golden.value("running_var", c, 0.1f, 1.0));
    const Var x(converted(golden.value("x", shape, 0.2f, 0.5), DType::f32, layout), true);
    const Var residual(converted(golden.value("residual", shape), DType::f32, layout), true);
    Tape tape({.training = training});
    const Var y = batchnorm2d(tape, x, norm, {.relu = relu, .residual = add ? &residual : nullptr});
    golden.expect("y", y.value());
    if (!training) continue;
    backward(tape, y, golden.value("dy", shape));
    golden.expect("running_mean", norm.running_mean->value);
    golden.expect("running_var", norm.running_var->value);
    golden.expect("dx", x.grad());
    golden.expect("dweight", norm.weight->grad);
    golden.expect("dbias", norm.bias->grad);
    if (add) golden.expect("dresidual", residual.grad());
  }
}

void check_without_parameters(const std::string& name, const Shape& shape,
                              const std::function<Var(Tape&, const Var&)>& layer, float scale = 1) {
  for (Layout layout : layouts(shape)) {
    CAPTURE(std::string(layout_name(layout)));
    const Golden golden(name);
    const Var x(converted(golden.value("x", shape, scale), DType::f32, layout), true);
    Tape tape;
    const Var y = layer(tape, x);
    backward(tape, y, golden.value("dy", y.shape()));
    golden.expect("y", y.value());
    golden.expect("dx", x.grad());
  }
}

}  // namespace

TEST_CASE("golden: C++ and Python derive the same numbers from names") {
  Context context(on_test_device());
  const Golden golden("formula");
  const Shape n{1000};
  CHECK(formula("layer1.0.conv1.weight", n).to_vector() == golden.load("uniform").to_vector());
  const float scale = he_scale({16, 16, 3, 3});
  CHECK(formula("layer1.0.conv1.weight", n, scale).to_vector() ==
        golden.load("scaled").to_vector());
  CHECK(formula("bn1.weight", n, 0.1f, 1.0).to_vector() == golden.load("shifted").to_vector());
  const Tensor labels = golden.load("labels"), ours = formula_labels("labels:0", 100, 10);
  CHECK(std::equal(labels.data<int64_t>(), labels.data<int64_t>() + 100, ours.data<int32_t>()));
}

TEST_CASE("golden: conv2d") {
  Context context(on_test_device());
  check_conv2d("conv2d_3x3_s1", {2, 8, 9, 7}, {12, 8, 3, 3}, {.padding = 1});
  check_conv2d("conv2d_3x3_s2", {2, 8, 9, 7}, {12, 8, 3, 3}, {.stride = 2, .padding = 1});
  check_conv2d("conv2d_1x1_s2", {2, 8, 9, 7}, {12, 8, 1, 1}, {.stride = 2});
  check_conv2d("conv2d_7x7_s2", {2, 3, 15, 13}, {16, 3, 7, 7}, {.stride = 2, .padding = 3});
  check_conv2d("conv2d_groups2", {2, 8, 9, 7}, {12, 4, 3, 3}, {.padding = 1, .groups = 2});
  check_conv2d("conv2d_3x3_c16", {2, 16, 8, 8}, {16, 16, 3, 3}, {.padding = 1});
  check_conv2d("conv2d_3x3_c32", {2, 32, 8, 8}, {32, 32, 3, 3}, {.padding = 1});
  check_conv2d("conv2d_3x3_c32_odd", {3, 32, 9, 7}, {48, 32, 3, 3}, {.padding = 1});
  check_conv2d("conv2d_3x3_c64", {1, 64, 6, 11}, {64, 64, 3, 3}, {.padding = 1});
  check_conv2d("conv2d_3x3_c16_s2", {2, 16, 8, 8}, {32, 16, 3, 3}, {.stride = 2, .padding = 1});
  check_conv2d("conv2d_3x3_c3_c16", {2, 3, 8, 8}, {16, 3, 3, 3}, {.padding = 1});
  check_conv2d("conv2d_1x1_c32", {2, 32, 4, 4}, {64, 32, 1, 1}, {});
}

TEST_CASE("golden: transposed convolution") {
  Context context(on_test_device());
  check_transposed("conv_transpose2d_3x3_s2", {2, 8, 4, 5}, {8, 6, 3, 3},
                   {.stride = 2, .padding = 1});
  check_transposed("conv_transpose2d_4x4_c16", {2, 32, 4, 3}, {32, 16, 4, 4},
                   {.stride = 2, .padding = 1});
  check_transposed("conv_transpose2d_groups2", {2, 8, 4, 5}, {8, 3, 3, 3}, {.groups = 2});
  check_transposed("conv_transpose1d", {3, 4, 1, 9}, {4, 32, 1, 3}, {.stride = 2});
}

TEST_CASE("golden: batch norm, alone and fused") {
  Context context(on_test_device());
  for (const auto& [suffix, shape] :
       {std::pair{"", Shape{3, 5, 4, 6}}, std::pair{"_c16", Shape{2, 16, 4, 4}}}) {
    check_batchnorm(concat("batchnorm_train", suffix), shape, true);
    check_batchnorm(concat("batchnorm_eval", suffix), shape, false);
    check_batchnorm(concat("batchnorm_relu", suffix), shape, true, true);
    check_batchnorm(concat("batchnorm_add_relu", suffix), shape, true, true, true);
  }
}

TEST_CASE("golden: activations and pooling") {
  Context context(on_test_device());
  check_without_parameters("relu", {2, 8, 5, 5}, relu);
  check_without_parameters("leaky_relu", {2, 8, 5, 5},
                           [](Tape& tape, const Var& x) { return leaky_relu(tape, x, 0.2f); });
  check_without_parameters("sigmoid", {2, 8, 5, 5}, sigmoid, 4);
  check_without_parameters("tanh", {2, 8, 5, 5}, heddle::tanh, 4);
  check_without_parameters("gelu", {2, 8, 5, 5}, gelu, 4);
  check_without_parameters("softmax", {3, 16, 2, 9}, softmax, 4);
  const PoolOptions max{.kernel = 3, .stride = 2, .padding = 1};
  auto max_pool = [&](Tape& tape, const Var& x) { return max_pool2d(tape, x, max); };
  check_without_parameters("max_pool_3x3_s2", {2, 5, 9, 8}, max_pool);
  check_without_parameters("max_pool_3x3_s2_c16", {2, 16, 8, 8}, max_pool);
  check_without_parameters("global_avg_pool", {2, 16, 5, 7}, global_average_pool);
}

TEST_CASE("golden: linear") {
  Context context(on_test_device());
  const Golden golden("linear");
  ParameterStore store;
  Parameter& weight = add_parameter(store, "weight", {10, 24});
  Parameter& bias = add_parameter(store, "bias", {10});
  store.finalize(0);
  spoil_gradients(store);
  weight.value.copy_from(golden.value("weight", {10, 24}, he_scale({10, 24})));
  bias.value.copy_from(golden.value("bias", {10}, 0.1f));
  const Var x(golden.value("x", {5, 24}), true);
  Tape tape;
  const Var y = linear(tape, x, weight, &bias);
  backward(tape, y, golden.value("dy", y.shape()));
  golden.expect("y", y.value());
  golden.expect("dx", x.grad());
  golden.expect("dweight", weight.grad);
  golden.expect("dbias", bias.grad);
}

TEST_CASE("golden: layer normalisation") {
  Context context(on_test_device());
  const Golden golden("layernorm");
  ParameterStore store;
  const LayerNorm norm(store, "norm", 10);
  store.finalize(0);
  spoil_gradients(store);
  norm.weight->value.copy_from(golden.value("weight", {10}, 0.1f, 1.0));
  norm.bias->value.copy_from(golden.value("bias", {10}, 0.1f));
  const Var x(golden.value("x", {4, 16, 10}, 0.02f, 0.05), true);
  Tape tape;
  const Var y = norm.forward(tape, x);
  backward(tape, y, golden.value("dy", y.shape()));
  golden.expect("y", y.value());
  golden.expect("dx", x.grad());
  golden.expect("dweight", norm.weight->grad);
  golden.expect("dbias", norm.bias->grad);
}

TEST_CASE("golden: multi-head attention") {
  Context context(on_test_device());
  struct Case {
    const char* name;
    Shape shape;
    int64_t heads;
    bool causal;
  };
  for (const Case& c :
       {Case{"attention", {5, 3, 8}, 2, false}, Case{"attention_causal", {6, 2, 12}, 3, true}}) {
    const Golden golden(c.name);
    ParameterStore store;
    const MultiHeadAttention layer(store, "x", c.shape[2], c.heads);
    store.finalize(0);
    spoil_gradients(store);
    const std::pair<const char*, Parameter*> weights[] = {{"in_proj_weight", layer.in_weight},
                                                          {"in_proj_bias", layer.in_bias},
                                                          {"out_proj_weight", layer.out_weight},
                                                          {"out_proj_bias", layer.out_bias}};
    for (const auto& [name, p] : weights) p->value.copy_from(golden.value(name, p->shape(), 0.5f));
    const Var x(golden.value("x", c.shape), true);
    Tape tape;
    const Var y = layer.forward(tape, x, c.causal);
    backward(tape, y, golden.value("dy", y.shape()));
    golden.expect("y", y.value());
    golden.expect("dx", x.grad());
    for (const auto& [name, p] : weights) golden.expect(std::string("d") + name, p->grad);
  }
}

TEST_CASE("golden: softmax cross-entropy") {
  Context context(on_test_device());
  for (const auto& [name, smoothing] :
       {std::pair{"cross_entropy", 0.0f}, std::pair{"cross_entropy_smoothed", 0.1f}}) {
    const Golden golden(name);
    const Var logits(golden.value("logits", {7, 10}, 3.0f), true);
    Tape tape;
    const Var loss =
        softmax_cross_entropy(tape, logits, golden.labels(7, 10), {.label_smoothing = smoothing});
    tape.backward(loss);
    golden.expect("loss", loss.value());
    golden.expect("dlogits", logits.grad());
  }
}

TEST_CASE("golden: squared error and binary cross-entropy") {
  Context context(on_test_device());
  for (const bool squared : {true, false}) {
    const Golden golden(squared ? "mse_loss" : "bce_with_logits");
    const Shape shape{4, 3, 5};
    const Var a(golden.value("a", shape, squared ? 1.0f : 8.0f), true);
    const Tensor b = golden.value("b", shape, 0.5f, 0.5);
    Tape tape;
    const Var loss = squared ? mse_loss(tape, a, Var(b)) : bce_with_logits(tape, a, b);
    tape.backward(loss);
    golden.expect("loss", loss.value());
    golden.expect("da", a.grad());
  }
}
