// Shortcuts, residual blocks and whole small networks.
#include <doctest/doctest.h>

#include <limits>
#include <map>
#include <memory>

#include "core/kernels.h"
#include "layers/activation.h"
#include "layers/loss.h"
#include "layers/pooling.h"
#include "layers/resnet.h"
#include "layers/shortcut.h"
#include "layers/small_cnn.h"
#include "tests/device.h"
#include "tests/gradcheck.h"

using namespace heddle;

namespace {

Tensor labels_mod(int64_t n, int32_t classes) {
  const Tensor out = Tensor::empty_on(Device{}, {n}, DType::i32);
  for (int64_t i = 0; i < n; ++i) out.data<int32_t>()[i] = static_cast<int32_t>(i % classes);
  return out;
}

// Losses of a few steps of plain gradient descent on one batch.
std::vector<float> train(const std::string& arch, int64_t size, int steps, DType dtype = DType::f32,
                         float rate = 0.05f) {
  ParameterStore store;
  ResNet model(store, {.arch = arch, .classes = 5, .stem = ResNetOptions::Stem::cifar});
  store.finalize(7);
  const Tensor x = random_tensor({6, 3, size, size}, 8, Layout::plain, 1.0f, dtype);
  const Tensor labels = labels_mod(6, 5);
  std::vector<float> losses;
  for (int step = 0; step < steps; ++step) {
    Tape tape;
    const Var loss = softmax_cross_entropy(tape, model.forward(tape, Var(x)), labels);
    losses.push_back(loss.value().item());
    store.begin_step();
    tape.backward(loss);
    axpy(-rate, store.grads(), store.values());
  }
  losses.push_back(static_cast<float>(sum(store.values())));
  return losses;
}

// Two 3x3 convolutions with the shortcut of option A or a projection, as in layers/resnet.cpp.
struct TestBlock {
  ParameterStore store;
  Conv2d first, second;
  BatchNorm2d norm1, norm2;
  std::unique_ptr<Conv2d> projection;
  std::unique_ptr<BatchNorm2d> norm3;
  int64_t out;

  TestBlock(int64_t in, int64_t channels, int64_t stride, bool project_shortcut)
      : first(store, "conv1",
              {.in = in, .out = channels, .kernel = 3, .stride = stride, .padding = 1}),
        second(store, "conv2", {.in = channels, .out = channels, .kernel = 3, .padding = 1}),
        norm1(store, "bn1", channels),
        norm2(store, "bn2", channels),
        out(channels) {
    if (project_shortcut) {
      projection = std::make_unique<Conv2d>(
          store, "down", Conv2d::Options{.in = in, .out = channels, .stride = stride});
      norm3 = std::make_unique<BatchNorm2d>(store, "bn3", channels);
    }
    store.finalize(1);
    randomize(store, 2, 0.3f);
  }

  Var forward(Tape& tape, const Var& x) {
    Var skip = x;
    if (projection)
      skip = batchnorm2d(tape, projection->forward(tape, x), *norm3);
    else if (x.shape()[1] != out)
      skip = subsample_pad(tape, x, out);
    Var y = batchnorm2d(tape, first.forward(tape, x), norm1, {.relu = true});
    return batchnorm2d(tape, second.forward(tape, y), norm2, {.relu = true, .residual = &skip});
  }
};

}  // namespace

TEST_CASE("subsample_pad: values and gradients, in every layout and both precisions") {
  Context context(on_test_device());
  ParameterStore store;
  store.finalize(1);
  const GradCheck::Network network = [](Tape& t, const std::vector<Var>& in) {
    return subsample_pad(t, in[0], 32);
  };
  for (Layout layout : map_layouts())
    for (const Shape& shape : {Shape{2, 16, 4, 6}, Shape{2, 16, 5, 3}, Shape{1, 16, 1, 1}}) {
      INFO(concat(layout_name(layout), " ", to_string(shape)));
      const Tensor half = random_tensor(shape, 3, layout, 1.0f, DType::bf16);
      const Tensor x = converted(half, DType::f32, layout);
      GradCheck(store, {x}, network).run();
      Tape tape;
      const Tensor y = network(tape, {Var(x)}).value();
      const int64_t h = (shape[2] + 1) / 2, w = (shape[3] + 1) / 2;
      REQUIRE(y.shape() == Shape{shape[0], 32, h, w});
      const std::vector<float> in = x.to_vector(), out = y.to_vector();
      size_t wrong = 0;
      for (int64_t n = 0; n < shape[0]; ++n)
        for (int64_t c = 0; c < 32; ++c)
          for (int64_t i = 0; i < h; ++i)
            for (int64_t j = 0; j < w; ++j) {
              const bool inside = c >= 8 && c < 24;
              const float expected =
                  inside ? in[((n * 16 + c - 8) * shape[2] + 2 * i) * shape[3] + 2 * j] : 0.0f;
              wrong += out[((n * 32 + c) * h + i) * w + j] != expected;
            }
      CHECK(wrong == 0);
      CHECK(network(tape, {Var(half)}).value().to_vector() == out);
      CHECK(relative_distance(GradCheck(store, {half}, network).analytic(DyMode::shared)[0],
                              GradCheck(store, {x}, network).analytic(DyMode::shared)[0]) < 1e-2);
    }
  Tape tape;
  CHECK_THROWS_AS(subsample_pad(tape, Var(Tensor::zeros({1, 16, 2, 2})), 17), InputError);
  CHECK_THROWS_AS(subsample_pad(tape, Var(Tensor::zeros({1, 16, 2, 2})), 8), InputError);
  CHECK_THROWS_AS(subsample_pad(tape, Var(Tensor::zeros({1, 16, 2, 2}, DType::i32)), 32),
                  InputError);
}

TEST_CASE("residual blocks: gradients, and bf16 against fp32") {
  Context context(on_test_device());
  struct Case {
    int64_t in, out, stride;
    bool projection;
  };
  for (const Case& k : {Case{16, 16, 1, false}, Case{16, 32, 2, false}, Case{16, 32, 2, true}})
    for (Layout layout : map_layouts()) {
      INFO(concat(k.in, " -> ", k.out, " ", layout_name(layout)));
      TestBlock block(k.in, k.out, k.stride, k.projection);
      const GradCheck::Network network = [&](Tape& t, const std::vector<Var>& in) {
        return block.forward(t, in[0]);
      };
      // Biases far from zero keep every ReLU on its side, open for even channels and closed for odd
      // ones, so that no difference meets a kink. The shortcut's norm has no ReLU of its own.
      for (const char* name : {"bn1.bias", "bn2.bias"}) {
        std::vector<float> bias(k.out);
        for (int64_t c = 0; c < k.out; ++c) bias[c] = c % 2 == 0 ? 5.0f : -5.0f;
        block.store.find(name)->value.copy_from(Tensor::from(bias));
      }
      // A few differences may still drown in rounding: measured, one of 32.
      GradCheck check(block.store, {random_tensor({4, k.in, 3, 6}, 3, layout)}, network,
                      {.max_skipped = 0.15, .first_step = 0.25});
      check.run();
      if (layout == Layout::plain || !bf16_here()) continue;
      const Tensor half = random_tensor({2, k.in, 5, 4}, 3, layout, 1.0f, DType::bf16);
      const Tensor x = converted(half, DType::f32, layout);
      // Every activation is rounded to 2^-9, and the errors of all layers add up: this sees gross
      // errors only; the layers have their own bounds.
      const auto a = GradCheck(block.store, {half}, network).analytic(DyMode::shared),
                 b = GradCheck(block.store, {x}, network).analytic(DyMode::shared);
      for (size_t i = 0; i < a.size(); ++i) {
        CAPTURE(i);
        CHECK(relative_distance(a[i], b[i]) < 0.1);
      }
    }
}

TEST_CASE("training: bit-identical for one seed in another Context, close with fewer threads") {
  std::vector<float> first;
  {
    Context context(on_test_device({.threads = 2, .deterministic = true}));
    first = train("resnet20", 9, 4);
    CHECK(train("resnet20", 9, 4) == first);
    CHECK(first[3] < first[0]);
  }
  {
    Context context(on_test_device({.threads = 2, .deterministic = true}));
    CHECK(train("resnet20", 9, 4) == first);
  }
  Context context(on_test_device({.threads = 1, .deterministic = true}));
  const std::vector<float> alone = train("resnet20", 9, 4);
  // Weight gradients of convolutions are split over the threads; the rest adds in a fixed order.
  for (size_t i = 0; i < 4; ++i) CHECK(alone[i] == doctest::Approx(first[i]).epsilon(1e-3));
  if (bf16_here()) {
    const std::vector<float> half = train("resnet20", 9, 4, DType::bf16);
    CHECK(half[0] == doctest::Approx(first[0]).epsilon(0.02));
    CHECK(half[3] < half[0]);
  }
  CHECK(train("resnet18", 5, 2) == train("resnet18", 5, 2));
}

TEST_CASE("flatten: rows of plain tensors, in every layout and both precisions") {
  Context context(on_test_device());
  for (const Layout layout : {Layout::plain, Layout::nhwc})
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const Tensor x = random_tensor({3, 5, 2, 4}, 1, Layout::plain, 1.0f, dtype);
      const Tensor there = converted(x, dtype, layout);
      Tape tape;
      const Var y = flatten(tape, Var(there));
      CHECK(y.shape() == Shape{3, 40});
      CHECK(converted(y.value(), DType::f32, Layout::plain).to_vector() ==
            converted(x, DType::f32, Layout::plain).to_vector());
    }
  for (const Layout layout : {Layout::plain, Layout::nhwc}) {
    ParameterStore store;
    store.finalize(1);
    GradCheck check(store, {random_tensor({2, 3, 4, 4}, 2, layout)},
                    [](Tape& tape, const std::vector<Var>& in) { return flatten(tape, in[0]); });
    check.run();
  }
}

TEST_CASE("SmallCnn: its weights, its gradients, and one image for itself") {
  Context context(on_test_device());
  ParameterStore store;
  const SmallCnn model(store, {.classes = 10, .image_size = 32});
  store.finalize(1);
  CHECK(store.count() == 25578);
  CHECK(store.buffers().empty());
  const Tensor images = random_tensor({3, 3, 32, 32}, 2);
  Tape tape;
  const auto all = model.forward(tape, Var(images)).value().to_vector();
  for (int64_t i = 0; i < 3; ++i) {
    Tape one;
    const auto alone = model.forward(one, Var(images.slice(i, i + 1))).value().to_vector();
    CHECK(relative_distance(alone, {all.begin() + 10 * i, all.begin() + 10 * (i + 1)}) < 1e-5);
  }
  // Along the gradient of each parameter the loss changes as the gradient says.
  ParameterStore small;
  const SmallCnn tiny(small, {.classes = 3, .image_size = 9});
  small.finalize(2);
  const Tensor few = random_tensor({8, 3, 9, 9}, 3), labels = labels_mod(8, 3);
  const auto loss = [&] {
    Tape t;
    return static_cast<double>(
        softmax_cross_entropy(t, tiny.forward(t, Var(few)), labels).value().item());
  };
  small.begin_step();
  Tape pass;
  pass.backward(softmax_cross_entropy(pass, tiny.forward(pass, Var(few)), labels));
  for (const Parameter& p : small.parameters()) {
    CAPTURE(p.name);
    const double length = norm(p.grad);
    const auto step = static_cast<float>(1e-2 / length);
    axpy(step, p.grad, p.value);
    const double up = loss();
    axpy(-2 * step, p.grad, p.value);
    const double down = loss();
    axpy(step, p.grad, p.value);
    CHECK((up - down) / 2e-2 == doctest::Approx(length).epsilon(0.02));
  }
  CHECK_THROWS_AS(SmallCnn(small, {.classes = 3, .image_size = 3}), InputError);
  ParameterStore other;
  CHECK_THROWS_AS(SmallCnn(other, {.classes = 0}), InputError);
}

TEST_CASE("ResNet: every parameter becomes final once, bottlenecks too") {
  Context context(on_test_device());
  for (const char* arch : {"resnet20", "resnet50"}) {
    CAPTURE(arch);
    ParameterStore store;
    ResNet model(store, {.arch = arch, .classes = 4});
    store.finalize(1);
    for (Parameter& p : store.parameters()) fill(p.grad, std::numeric_limits<float>::quiet_NaN());
    Tape tape;
    const Var x(random_tensor({2, 3, 20, 17}, 3));
    const Var loss = softmax_cross_entropy(tape, model.forward(tape, x), labels_mod(2, 4));
    std::map<Parameter*, int> finals, frees;
    tape.backward(
        loss,
        [&](Parameter& p) {
          ++finals[&p];
          CHECK(all_finite(p.grad));
        },
        [&](Parameter& p) {
          ++frees[&p];
          CHECK(finals[&p] == 1);
        });
    for (Parameter& p : store.parameters()) {
      CHECK(finals[&p] == 1);
      CHECK(frees[&p] == 1);
      CHECK(p.pending == 0);
      CHECK(p.readers == 0);
    }
    CHECK(all_finite(store.grads()));
  }
  ParameterStore store;
  CHECK_THROWS_AS(ResNet(store, {.arch = "resnet19"}), InputError);
  CHECK_THROWS_AS(ResNet(store, {.classes = 0}), InputError);
}
