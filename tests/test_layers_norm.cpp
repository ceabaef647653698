// Batch normalisation: against its formula, gradients of all fused forms, running statistics.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/kernels.h"
#include "layers/activation.h"
#include "layers/batchnorm.h"
#include "tests/device.h"
#include "tests/gradcheck.h"

using namespace heddle;

namespace {

struct NormCase {
  int64_t n, channels, height, width;
  Layout layout;
};

constexpr NormCase kCases[] = {
    {3, 5, 3, 2, Layout::plain}, {2, 16, 3, 3, Layout::plain}, {3, 5, 2, 3, Layout::nhwc},
    {2, 16, 3, 2, Layout::nhwc}, {3, 32, 2, 3, Layout::c16},   {4, 16, 1, 1, Layout::c16},
};

bool is_offered(Layout layout) {
  const std::vector<Layout> all = map_layouts();
  return std::find(all.begin(), all.end(), layout) != all.end();
}

struct NormFixture {
  ParameterStore store;
  BatchNorm2d norm;
  explicit NormFixture(int64_t channels) : norm(store, "bn", channels) {
    store.finalize(1);
    randomize(store, 9, 0.5f);
  }
};

std::vector<float> reference(const std::vector<float>& x, const Shape& s, const BatchNorm2d& norm,
                             const std::vector<float>& residual, bool relu) {
  std::vector<float> y(x.size());
  const int64_t pixels = s[2] * s[3], count = s[0] * pixels;
  const std::vector<float> weight = norm.weight->value.to_vector(),
                           bias = norm.bias->value.to_vector();
  for (int64_t c = 0; c < s[1]; ++c) {
    auto at = [&](int64_t i) { return (i / pixels * s[1] + c) * pixels + i % pixels; };
    double mean = 0, variance = 0;
    for (int64_t i = 0; i < count; ++i) mean += double{x[at(i)]} / static_cast<double>(count);
    for (int64_t i = 0; i < count; ++i)
      variance += (x[at(i)] - mean) * (x[at(i)] - mean) / static_cast<double>(count);
    for (int64_t i = 0; i < count; ++i) {
      double v = weight[c] * (x[at(i)] - mean) / std::sqrt(variance + double{norm.eps}) + bias[c];
      if (!residual.empty()) v += residual[at(i)];
      y[at(i)] = static_cast<float>(relu && v < 0 ? 0 : v);
    }
  }
  return y;
}

}  // namespace

TEST_CASE("batchnorm2d: formula and gradients in every layout and fusion") {
  Context context(on_test_device());
  for (const NormCase& k : kCases) {
    if (!is_offered(k.layout)) continue;
    for (bool relu : {false, true})
      for (bool residual : {false, true}) {
        INFO(concat(k.n, "x", k.channels, "x", k.height, "x", k.width, " ", layout_name(k.layout),
                    " relu ", relu, " residual ", residual));
        NormFixture f(k.channels);
        const Shape shape = {k.n, k.channels, k.height, k.width};
        const Tensor x = random_tensor(shape, 3, k.layout, 2.0f);
        const Tensor z = random_tensor(shape, 4, k.layout);
        std::vector<Tensor> inputs = {x};
        if (residual) inputs.push_back(z);
        const GradCheck::Network network = [&](Tape& t, const std::vector<Var>& in) {
          return batchnorm2d(t, in[0], f.norm,
                             {.relu = relu, .residual = residual ? &in[1] : nullptr});
        };
        CHECK(relative_distance(forward_value(network, inputs).to_vector(),
                                reference(x.to_vector(), shape, f.norm,
                                          residual ? z.to_vector() : std::vector<float>{}, relu)) <
              1e-6);
        // Measured: none of 1384 samples is skipped, differences up to 3.3e-4.
        GradCheck(f.store, inputs, network,
                  {.samples = 16, .max_skipped = relu ? 0.1 : 0.0, .first_step = 0.0625})
            .run();
      }
  }
}

TEST_CASE("batchnorm2d: a residual that needs no gradient, and one that is the input itself") {
  Context context(on_test_device());
  for (Layout layout : map_layouts()) {
    INFO(concat(layout_name(layout)));
    NormFixture f(16);
    const Tensor x = random_tensor({2, 16, 3, 3}, 3, layout, 2.0f);
    const Var constant(random_tensor({2, 16, 3, 3}, 4, layout));
    GradCheck(f.store, {x},
              [&](Tape& t, const std::vector<Var>& in) {
                return batchnorm2d(t, in[0], f.norm, {.relu = true, .residual = &constant});
              },
              {.samples = 12, .max_skipped = 0.1, .first_step = 0.0625})
        .run();
    CHECK_FALSE(constant.grad().defined());
    GradCheck(f.store, {x},
              [&](Tape& t, const std::vector<Var>& in) {
                return batchnorm2d(t, in[0], f.norm, {.relu = true, .residual = &in[0]});
              },
              {.samples = 12, .max_skipped = 0.1, .first_step = 0.0625})
        .run();
  }
}

TEST_CASE("batchnorm2d: large maps in several runs per channel keep their accuracy") {
  Context context(on_test_device());
  for (Layout layout : map_layouts()) {
    INFO(concat(layout_name(layout)));
    NormFixture f(16);
    const Shape shape = {2, 16, 72, 61};  // 4392 pixels: a full run and a partial one
    const Tensor x = random_tensor(shape, 3, layout);
    add_constant(x, 50.0f);  // mean far from zero
    Tape tape;
    const Var leaf(x, true);
    const Var y = batchnorm2d(tape, leaf, f.norm);
    CHECK(relative_distance(y.value().to_vector(),
                            reference(x.to_vector(), shape, f.norm, {}, false)) < 1e-5);
    const Tensor r = random_tensor(shape, 5, layout);
    f.store.begin_step();
    tape.backward(project(tape, y, r));
    // dx is orthogonal to the constant and to x within each channel.
    const std::vector<float> dx = leaf.grad().to_vector(), xs = x.to_vector();
    for (int64_t c = 0; c < 16; ++c) {
      double sum = 0, dot = 0, norm = 0;
      for (int64_t n = 0; n < 2; ++n)
        for (int64_t p = 0; p < 72 * 61; ++p) {
          const size_t i = (n * 16 + c) * 72 * 61 + p;
          sum += dx[i];
          dot += dx[i] * (xs[i] - 50.0);
          norm += double{dx[i]} * dx[i];
        }
      CHECK(std::abs(sum) < 1e-3 * std::sqrt(norm));
      CHECK(std::abs(dot) < 1e-3 * std::sqrt(norm));
    }
  }
}

TEST_CASE("batchnorm2d: running statistics, evaluation, and batches that are not finite") {
  Context context(on_test_device());
  NormFixture f(3);
  const std::vector<float> values = {1, 2, 3, 4, 5, 9, 0, 0, 0, 8, -1, 1};
  auto map_of = [](const std::vector<float>& from) {
    return converted(here(Tensor::from(from, {2, 3, 1, 2})), DType::f32, map_layouts().front());
  };
  const Tensor x = map_of(values);
  {
    Tape tape;
    batchnorm2d(tape, Var(x), f.norm);
  }
  // Channel 0 holds 1, 2, 0, 0: mean 0.75, unbiased variance 11/12.
  CHECK(f.norm.running_mean->value.to_vector()[0] == doctest::Approx(0.1 * 0.75));
  CHECK(f.norm.running_var->value.to_vector()[0] == doctest::Approx(0.9 + 0.1 * 11.0 / 12.0));
  CHECK(f.norm.batches->value.to_vector()[0] == 1);
  const std::vector<float> mean = f.norm.running_mean->value.to_vector(),
                           variance = f.norm.running_var->value.to_vector();

  for (float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 1e38f}) {
    CAPTURE(bad);
    std::vector<float> broken = values;
    broken[3] = bad;  // 1e38: the variance overflows
    Tape tape;
    const Var y = batchnorm2d(tape, Var(map_of(broken)), f.norm, {.relu = true});
    CHECK(f.norm.running_mean->value.to_vector() == mean);
    CHECK(f.norm.running_var->value.to_vector() == variance);
    CHECK(f.norm.batches->value.to_vector()[0] == 1);
    if (bad != 1e38f) CHECK(std::isnan(y.value().to_vector()[3]));  // ReLU hides no NaN
  }

  Tape evaluation({.training = false});
  const std::vector<float> y = batchnorm2d(evaluation, Var(x), f.norm).value().to_vector();
  CHECK(evaluation.size() == 0);
  const double w = f.norm.weight->value.to_vector()[1], b = f.norm.bias->value.to_vector()[1];
  CHECK(y[2] == doctest::Approx(w * (3 - mean[1]) / std::sqrt(variance[1] + 1e-5) + b));
  CHECK(f.norm.running_mean->value.to_vector() == mean);
  const Tensor none = Tensor::zeros({0, 3, 2, 2}, DType::f32, map_layouts().front());
  CHECK(batchnorm2d(evaluation, Var(none), f.norm).shape() == Shape{0, 3, 2, 2});
}

TEST_CASE("batchnorm2d: wrong inputs are refused") {
  Context context(on_test_device());
  NormFixture f(3);
  Tape tape;
  auto run = [&](const Tensor& x, const Var* residual = nullptr) {
    batchnorm2d(tape, Var(x), f.norm, {.residual = residual});
  };
  CHECK_THROWS_AS(run(Tensor::zeros({2, 4, 2, 2})), InputError);
  CHECK_THROWS_AS(run(Tensor::zeros({2, 3})), InputError);
  CHECK_THROWS_AS(run(Tensor::zeros({1, 3, 1, 1})), InputError);
  CHECK_THROWS_AS(run(Tensor::zeros({0, 3, 2, 2})), InputError);
  CHECK_THROWS_AS(run(Tensor::zeros({2, 3, 2, 2}, DType::i32)), InputError);
  const Var other(Tensor::zeros({2, 3, 2, 2}, DType::f32, Layout::nhwc));
  CHECK_THROWS_AS(run(Tensor::zeros({2, 3, 2, 2}), &other), InputError);
}

TEST_CASE("batchnorm2d: bf16 agrees with fp32 within its rounding") {
  Context context(on_test_device());
  for (Layout layout : map_layouts())
    for (bool relu : {false, true})
      for (bool residual : {false, true}) {
        INFO(concat(layout_name(layout), " relu ", relu, " residual ", residual));
        NormFixture f(32);
        const GradCheck::Network network = [&](Tape& t, const std::vector<Var>& in) {
          return batchnorm2d(t, in[0], f.norm,
                             {.relu = relu, .residual = residual ? &in[1] : nullptr});
        };
        const Shape shape = {4, 32, 3, 3};
        std::vector<Tensor> half = {random_tensor(shape, 3, layout, 2.0f, DType::bf16)};
        if (residual) half.push_back(random_tensor(shape, 4, layout, 1.0f, DType::bf16));
        std::vector<Tensor> full;
        for (const Tensor& t : half) full.push_back(converted(t, DType::f32, layout));
        GradCheck in_half(f.store, half, network), in_full(f.store, full, network);
        const auto a = in_half.analytic(DyMode::shared);
        auto b = in_full.analytic(DyMode::shared);
        // dz and dx are rounded once each (2^-9), r itself once, and so is the noise that the
        // checker adds to dx: a few 2^-9 of norm. Parameter sums average their roundings.
        for (size_t i = 0; i < a.size(); ++i) {
          CAPTURE(i);
          CHECK(relative_distance(a[i], b[i]) < 1e-2);
        }
      }
}
