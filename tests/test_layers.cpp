// The small layers: pooling, linear, dropout, loss.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "core/kernels.h"
#include "layers/activation.h"
#include "layers/conv2d.h"
#include "layers/embedding.h"
#include "layers/linear.h"
#include "layers/loss.h"
#include "layers/pooling.h"
#include "tests/device.h"
#include "tests/elementwise_checks.h"

using namespace heddle;

namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

Tensor labels_of(const std::vector<int32_t>& values) {
  const Tensor out = Tensor::empty_on(Device{}, {static_cast<int64_t>(values.size())}, DType::i32);
  std::copy(values.begin(), values.end(), out.data<int32_t>());
  return out;
}

// Different values, far from each other, so that a small step changes no maximum.
Tensor distinct(const Shape& shape, Layout layout) {
  const Tensor out = Tensor::empty_on(Device{}, shape, DType::f32, layout);
  for (int64_t i = 0; i < out.size(); ++i)
    out.data<float>()[i] = static_cast<float>(i * 7919 % 10007) / 1000.0f;
  return here(out);
}

}  // namespace

TEST_CASE("max pooling: values against the definition, and gradients") {
  Context context(on_test_device());
  struct Case {
    PoolOptions options;
    int64_t height, width;
  };
  const Case cases[] = {{{.kernel = 2, .stride = 2}, 4, 6},
                        {{.kernel = 3, .stride = 2, .padding = 1}, 5, 6},
                        {{.kernel = 3, .stride = 1, .padding = 1}, 4, 3},
                        {{.kernel = 2, .stride = 3, .padding = 1}, 5, 5},
                        {{.kernel = kMaxPoolKernel, .stride = 1}, 17, 16}};
  for (const Case& k : cases)
    for (Layout layout : input_layouts()) {
      const PoolOptions o = k.options;
      INFO(concat(layout_name(layout), " kernel ", o.kernel, " stride ", o.stride));
      const Tensor x = distinct({2, 16, k.height, k.width}, layout);
      const Network network = [&](Tape& t, const std::vector<Var>& in) {
        return max_pool2d(t, in[0], o);
      };
      Tape tape;
      const Var y = network(tape, {Var(x)});
      const std::vector<float> in = x.to_vector();
      std::vector<float> expected;
      for (int64_t map = 0; map < 32; ++map)
        for (int64_t p = 0; p < y.shape()[2]; ++p)
          for (int64_t q = 0; q < y.shape()[3]; ++q) {
            float top = -kInfinity;
            for (int64_t i = 0; i < o.kernel; ++i)
              for (int64_t j = 0; j < o.kernel; ++j) {
                const int64_t h = p * o.stride + i - o.padding, w = q * o.stride + j - o.padding;
                if (h < 0 || w < 0 || h >= k.height || w >= k.width) continue;
                top = std::max(top, in[(map * k.height + h) * k.width + w]);
              }
            expected.push_back(top);
          }
      CHECK(relative_distance(y.value().to_vector(), expected) < 1e-6);
      check_layer({x}, network, {.samples = 24, .first_step = 0.001953125});
      if (bf16_here()) check_half({converted(x, DType::bf16, layout)}, network, 2e-2);
    }
  Tape tape;
  auto refused = [&](const Shape& shape, const PoolOptions& o) {
    CHECK_THROWS_AS(max_pool2d(tape, Var(Tensor::zeros(shape)), o), InputError);
  };
  refused({1, 3, 2, 2}, {.kernel = 3, .stride = 1});
  refused({1, 3, 4, 4}, {.kernel = 2, .stride = 0});
  refused({1, 3, 4, 4}, {.kernel = 3, .stride = 1, .padding = 2});
  refused({3, 4, 4}, {});
  refused({1, 3, 20, 20}, {.kernel = kMaxPoolKernel + 1});
}

TEST_CASE("pooling: a batch without images") {
  Context context(on_test_device());
  for (Layout layout : input_layouts()) {
    const Var x(Tensor::zeros({0, 16, 6, 6}, DType::f32, layout), true);
    Tape tape;
    const Var y = max_pool2d(tape, x, {.kernel = 3, .stride = 2, .padding = 1});
    CHECK(y.shape() == Shape{0, 16, 3, 3});
    tape.backward(project(tape, y, Tensor::zeros(y.shape(), DType::f32, layout)));
    CHECK(x.grad().shape() == x.shape());
  }
}

TEST_CASE("max pooling: the first of equal values gets the gradient") {
  Context context(on_test_device());
  for (Layout layout : input_layouts()) {
    INFO(concat(layout_name(layout)));
    const Var x(Tensor::zeros({1, 16, 2, 2}, DType::f32, layout), true);
    Tape tape;
    const Var y = max_pool2d(tape, x, {});
    const Tensor r = Tensor::zeros(y.shape(), DType::f32, layout);
    fill(r, 1.0f);
    tape.backward(project(tape, y, r));
    const std::vector<float> dx = x.grad().to_vector();
    for (size_t i = 0; i < dx.size(); ++i) CHECK(dx[i] == (i % 4 == 0 ? 1.0f : 0.0f));
  }
}

TEST_CASE("global average pooling: mean of each map, and gradients") {
  Context context(on_test_device());
  const Network network = [](Tape& t, const std::vector<Var>& in) {
    return global_average_pool(t, in[0]);
  };
  for (Layout layout : input_layouts())
    for (const Shape& shape : {Shape{2, 16, 3, 4}, Shape{3, 32, 1, 1}}) {
      INFO(concat(layout_name(layout), " ", to_string(shape)));
      const Tensor x = random_tensor(shape, 3, layout);
      Tape tape;
      const std::vector<float> y = network(tape, {Var(x)}).value().to_vector(), in = x.to_vector();
      const int64_t pixels = shape[2] * shape[3];
      for (size_t map = 0; map < y.size(); ++map) {
        double sum = 0;
        for (int64_t i = 0; i < pixels; ++i) sum += in[map * pixels + i];
        CHECK(y[map] == doctest::Approx(sum / static_cast<double>(pixels)).epsilon(1e-5));
      }
      check_layer({x}, network);
      // dx is small compared with the checker's noise if maps are large: 12 pixels, 8 bits.
      if (bf16_here())
        check_half({random_tensor(shape, 3, layout, 1.0f, DType::bf16)}, network, 8e-2);
    }
  Tape tape;
  CHECK_THROWS_AS(global_average_pool(tape, Var(Tensor::zeros({2, 16, 0, 0}))), InputError);
}

TEST_CASE("linear: values and gradients, with and without bias, from bf16, without samples") {
  Context context(on_test_device());
  for (bool bias : {true, false}) {
    ParameterStore store;
    Linear fc(store, "fc", 7, 5, bias);
    store.finalize(1);
    randomize(store, 3, 1.0f);
    const Network network = [&](Tape& t, const std::vector<Var>& in) {
      return fc.forward(t, in[0]);
    };
    const Tensor x = random_tensor({3, 7}, 4);
    GradCheck(store, {x}, network).run();
    const std::vector<float> y = forward_value(network, {x}).to_vector();
    double expected = bias ? fc.bias->value.to_vector()[1] : 0.0;
    const std::vector<float> in = x.to_vector(), weight = fc.weight->value.to_vector();
    for (int i = 0; i < 7; ++i) expected += double{in[7 + i]} * weight[7 + i];
    CHECK(y[6] == doctest::Approx(expected).epsilon(1e-5));

    // Leading axes are rows; there may be none.
    GradCheck(store, {random_tensor({7}, 5)}, network).run();
    const auto cube = random_tensor({3, 2, 7}, 5);
    GradCheck(store, {cube}, network).run();
    CHECK(fc.weight->uses_per_sample == 3);
    CHECK(forward_value(network, {cube}).shape() == Shape{3, 2, 5});
    CHECK(forward_value(network, {cube}).to_vector() ==
          forward_value(network, {cube.reshape({6, 7})}).to_vector());

    store.begin_step();
    for (Parameter& p : store.parameters()) fill(p.grad, kNaN);
    Tape none;
    const Var empty = network(none, {Var(Tensor::zeros({0, 7}), true)});
    CHECK(empty.shape() == Shape{0, 5});
    none.backward(project(none, empty, Tensor::zeros({0, 5})));
    for (Parameter& p : store.parameters())
      for (float g : p.grad.to_vector()) CHECK(g == 0.0f);
    CHECK_THROWS_AS(fc.forward(none, Var(Tensor::zeros({3, 8}))), InputError);
    CHECK_THROWS_AS(fc.forward(none, Var(Tensor::zeros({3, 7, 1}))), InputError);
    CHECK_THROWS_AS(fc.forward(none, Var(Tensor::zeros({8}))), InputError);
    CHECK_THROWS_AS(fc.forward(none, Var(Tensor::zeros({}))), InputError);

    if (!bf16_here()) continue;
    const Tensor half = converted(x, DType::bf16, Layout::plain);
    const auto a = GradCheck(store, {half}, network).analytic(DyMode::shared);
    const auto b = GradCheck(store, {converted(half, DType::f32, Layout::plain)}, network)
                       .analytic(DyMode::shared);
    CHECK(relative_distance(a[0], b[0]) < 1e-2);  // rounded once, and once with the noise
    for (size_t i = 1; i < a.size(); ++i) CHECK(relative_distance(a[i], b[i]) < 1e-2);
  }
}

TEST_CASE("layers with weights of a store that is not finalized say so") {
  Context context;
  ParameterStore store;
  const Linear fc(store, "fc", 7, 5);
  const Conv2d conv(store, "conv", {.in = 3, .out = 4, .kernel = 3});
  Parameter& words = store.add("words", {9, 6}, constant_init(0));
  Tape tape;
  const auto says_so = [](const std::function<void()>& forward) {
    try {
      forward();
    } catch (const InputError& error) {
      return std::string(error.what()).find("finalized") != std::string::npos;
    }
    return false;
  };
  CHECK(says_so([&] { fc.forward(tape, Var(Tensor::zeros({2, 7}))); }));
  CHECK(says_so([&] { conv.forward(tape, Var(Tensor::zeros({2, 3, 8, 8}))); }));
  CHECK(says_so([&] { embedding(tape, labels_of({1, 2}), words, DType::f32); }));
}

TEST_CASE("dropout: mask from the key, mean preserved, gradients, evaluation") {
  Context context(on_test_device());
  const Tensor x = random_tensor({4, 50}, 1);
  add_constant(x, 2.0f);  // no zeros of its own
  const TapeOptions options = {.seed = 5, .step = 3};
  const Network network = [](Tape& t, const std::vector<Var>& in) {
    return dropout(t, in[0], 0.3f);
  };
  check_layer({x}, [](Tape& t, const std::vector<Var>& in) { return dropout(t, in[0], 0.0f); });
  auto run = [&](const TapeOptions& o, const Tensor& input) {
    Tape tape(o);
    return network(tape, {Var(input)}).value().to_vector();
  };
  const std::vector<float> y = run(options, x);
  CHECK(run(options, x) == y);
  CHECK(run({.seed = 5, .step = 4}, x) != y);
  CHECK(run({.seed = 6, .step = 3}, x) != y);
  CHECK(run({.training = false, .seed = 5, .step = 3}, x) == x.to_vector());
  {
    Tape tape(options);  // two layers of one pass differ
    CHECK(network(tape, {Var(x)}).value().to_vector() == y);
    CHECK(network(tape, {Var(x)}).value().to_vector() != y);
  }
  // The batch split over two learners.
  std::vector<float> front = run(options, x.slice(0, 1));
  const std::vector<float> back = run({.seed = 5, .step = 3, .first_sample = 1}, x.slice(1, 4));
  front.insert(front.end(), back.begin(), back.end());
  CHECK(front == y);
  // The same along the second axis, for (T, B, H).
  const Tensor cube = random_tensor({3, 4, 6}, 2);
  auto run_cube = [&](int64_t begin, int64_t end) {
    const Tensor part = Tensor::empty({3, end - begin, 6});
    for (int64_t t = 0; t < 3; ++t)
      part.slice(t, t + 1).copy_from(
          cube.slice(t, t + 1).reshape({4, 6}).slice(begin, end).reshape({1, end - begin, 6}));
    Tape tape({.seed = 5, .step = 3, .first_sample = begin});
    return dropout(tape, Var(part), 0.5f, 1).value().to_vector();
  };
  const std::vector<float> whole = run_cube(0, 4), low = run_cube(0, 1), high = run_cube(1, 4);
  for (size_t t = 0; t < 3; ++t)
    for (size_t i = 0; i < 24; ++i)
      CHECK(whole[t * 24 + i] == (i < 6 ? low[t * 6 + i] : high[t * 18 + i - 6]));
  // The mask by its definition: a separate draw for every element of every sample.
  const std::vector<float> cubes = cube.to_vector();
  const Philox rng(5, stream_id(Stream::dropout, 3 << 8));
  for (size_t t = 0; t < 3; ++t)
    for (size_t b = 0; b < 4; ++b)
      for (size_t c = 0; c < 6; ++c) {
        const size_t at = (t * 4 + b) * 6 + c;
        const float keep = rng.uniform((b * 3 + t) * 8 + c) < 0.5f ? 0.0f : 2.0f;
        CHECK(whole[at] == keep * cubes[at]);
      }
  // 1/(1-p), or zero; the mask of backward is that of forward.
  const Var leaf(x, true);
  Tape tape(options);
  const Var out = network(tape, {leaf});
  const Tensor ones = Tensor::zeros(x.shape());
  fill(ones, 1.0f);
  tape.backward(project(tape, out, ones));
  const std::vector<float> dx = leaf.grad().to_vector(), in = x.to_vector();
  for (size_t i = 0; i < y.size(); ++i) {
    CHECK(y[i] == doctest::Approx(in[i] * dx[i]));
    CHECK((dx[i] == 0.0f || dx[i] == doctest::Approx(1 / 0.7)));
  }
  const Tensor large = Tensor::zeros({200000});
  fill(large, 1.0f);
  double mean = 0;
  for (float v : run(options, large)) mean += v / 200000.0;
  CHECK(mean == doctest::Approx(1.0).epsilon(0.006));  // four standard deviations
  {
    Context one(on_test_device({.threads = 1}));
    CHECK(run(options, x) == y);
    const std::vector<float> alone = run(options, large);
    Context three(on_test_device({.threads = 3}));
    CHECK(run(options, large) == alone);
  }
  check_half({random_tensor({4, 50}, 1, Layout::plain, 1.0f, DType::bf16)}, network, 1e-2);
  Tape unaware;  // of its step: the same elements would be dropped in every step
  CHECK_THROWS_AS(dropout(unaware, leaf, 0.5f), InputError);
  CHECK_THROWS_AS(dropout(tape, leaf, 1.0f), InputError);
  Tape deep({.step = 1});
  for (int i = 0; i < 256; ++i) (void)dropout(deep, leaf, 0.5f);
  CHECK_THROWS_AS(dropout(deep, leaf, 0.5f), InputError);  // it would have the mask of the first
  CHECK_THROWS_AS(dropout(tape, leaf, 0.5f, x.shape().rank()), InputError);
  CHECK_THROWS_AS(
      dropout(tape, Var(Tensor::zeros({1, 16, 2, 2}, DType::f32, Layout::nhwc)), 0.5f, 1),
      InputError);
  CHECK_THROWS_AS(dropout(tape, leaf, -0.1f), InputError);
  CHECK_THROWS_AS(dropout(tape, leaf, kNaN), InputError);
}

TEST_CASE("softmax cross-entropy: values, gradients, extremes") {
  Context context(on_test_device());
  const Tensor x = random_tensor({5, 7}, 3, Layout::plain, 3.0f);
  const Tensor labels = labels_of({0, 6, 3, 3, 1});
  for (float smoothing : {0.0f, 0.1f, 0.9f}) {
    CAPTURE(smoothing);
    const Network network = [&](Tape& t, const std::vector<Var>& in) {
      return softmax_cross_entropy(t, in[0], labels, {.label_smoothing = smoothing});
    };
    check_layer({x}, network, {.samples = 35});
    const Network cube = [&](Tape& t, const std::vector<Var>& in) {
      return softmax_cross_entropy(t, in[0], labels_of({0, 6, 3, 1}).reshape({2, 2}),
                                   {.label_smoothing = smoothing});
    };
    check_layer({random_tensor({2, 2, 7}, 4)}, cube, {.samples = 28});
    const Network one = [&](Tape& t, const std::vector<Var>& in) {
      return softmax_cross_entropy(t, in[0], labels_of({6}).reshape({}),
                                   {.label_smoothing = smoothing});
    };
    check_layer({random_tensor({7}, 4)}, one, {.samples = 7});
    double expected = 0;
    const std::vector<float> in = x.to_vector();
    for (int n = 0; n < 5; ++n) {
      const float* z = in.data() + n * 7;
      double total = 0;
      for (int c = 0; c < 7; ++c) total += std::exp(double{z[c]});
      for (int c = 0; c < 7; ++c) {
        const double target =
            smoothing / 7.0 + (c == labels.data<int32_t>()[n] ? 1.0 - smoothing : 0.0);
        expected -= target * (z[c] - std::log(total)) / 5.0;
      }
    }
    Tape tape;
    CHECK(network(tape, {Var(x)}).value().item() == doctest::Approx(expected).epsilon(1e-6));
  }
  // Written over the logits or to separate memory, the gradient is the same.
  std::vector<float> gradients[2];
  for (bool overwrite : {false, true}) {
    const Var z(x.clone(), true);
    Tape tape;
    tape.backward(softmax_cross_entropy(tape, z, labels, {.overwrite_logits = overwrite}));
    gradients[overwrite] = z.grad().to_vector();
    CHECK((z.value().to_vector() == x.to_vector()) == !overwrite);
  }
  CHECK(gradients[0] == gradients[1]);
  {  // only differences of logits count: large ones cost no digits
    const Var large(here(Tensor::from({16000.25f, 16000.25f}, {1, 2})), true);
    Tape tape;
    tape.backward(softmax_cross_entropy(tape, large, labels_of({0})));
    CHECK(large.grad().to_vector()[0] == doctest::Approx(-0.5).epsilon(1e-6));
    CHECK(large.grad().to_vector()[1] == doctest::Approx(0.5).epsilon(1e-6));
  }
  auto loss = [&](std::vector<float> logits, int32_t label, float smoothing = 0.0f) {
    Tape tape;
    const auto n = static_cast<int64_t>(logits.size());
    return softmax_cross_entropy(tape, Var(here(Tensor::from(logits, {1, n}))), labels_of({label}),
                                 {.label_smoothing = smoothing})
        .value()
        .item();
  };
  CHECK(loss({1e4f, 0, 0}, 0) == 0.0f);
  CHECK(loss({1e4f, 0, 0}, 1) == doctest::Approx(1e4));
  CHECK(loss({3e38f, -3e38f}, 0) == 0.0f);
  CHECK(loss({0, -kInfinity}, 0) == 0.0f);  // a masked class
  CHECK(loss({0, -kInfinity}, 1) == kInfinity);
  CHECK(std::isnan(loss({0, kNaN, 1}, 0)));
  CHECK(std::isnan(loss({kNaN, 0, 1}, 1)));
  CHECK(std::isnan(loss({0, kInfinity}, 0)));
  CHECK(loss({5}, 0) == 0.0f);

  Tape tape;
  auto refused = [&](const Tensor& logits, const Tensor& label, float smoothing = 0.0f) {
    CHECK_THROWS_AS(softmax_cross_entropy(tape, Var(logits), label, {.label_smoothing = smoothing}),
                    InputError);
  };
  refused(x, labels_of({0, 1, 2, 3}));
  refused(x, labels_of({0, 1, 2, 3, 7}));
  refused(x, labels_of({0, 1, -1, 3, 4}));
  refused(x, labels, 1.0f);
  refused(x, labels, kNaN);
  refused(Tensor::zeros({0, 7}), labels_of({}));
  refused(Tensor::zeros({5, 7}, DType::bf16), labels);
  refused(x, Tensor::zeros({5}, DType::i64));
}

TEST_CASE("count_top_k: ties and NaN count against the sample") {
  Context context(on_test_device());
  const Tensor z = here(Tensor::from({1, 2, 3, 2, 2, 2, kNaN, 1, 0}, {3, 3}));
  CHECK(count_top_k(z, labels_of({2, 0, 1}), 1) == 1);
  CHECK(count_top_k(z, labels_of({1, 0, 1}), 2) == 1 + 0 + 1);
  CHECK(count_top_k(z, labels_of({0, 0, 0}), 3) == 3);
}
