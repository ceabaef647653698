// Convolution: against a direct sum in every layout, and its gradients.
#include <doctest/doctest.h>

#include <cmath>

#include "core/kernels.h"
#include "layers/conv2d.h"
#include "layers/conv2d_plan.h"
#include "layers/linear.h"
#include "layers/loss.h"
#include "tests/device.h"
#include "tests/gradcheck.h"

using namespace heddle;

namespace {

struct ConvCase {
  int64_t in, out, kernel, stride, padding, groups, height, width;
  bool bias;
};

std::ostream& operator<<(std::ostream& out, const ConvCase& c) {
  return out << c.in << "->" << c.out << " k" << c.kernel << " s" << c.stride << " p" << c.padding
             << " g" << c.groups << " " << c.height << "x" << c.width << (c.bias ? " bias" : "");
}

constexpr ConvCase kCases[] = {
    {5, 7, 3, 1, 1, 1, 6, 5, true},      {5, 6, 3, 2, 1, 1, 7, 6, false},
    {6, 4, 1, 2, 0, 1, 5, 6, false},     {3, 5, 1, 1, 0, 1, 4, 4, true},
    {2, 3, 5, 1, 2, 1, 7, 6, true},      {3, 4, 7, 2, 3, 1, 9, 10, false},
    {3, 16, 7, 2, 3, 1, 12, 11, false},  {6, 4, 3, 1, 1, 2, 5, 6, true},
    {5, 5, 3, 1, 1, 5, 6, 5, false},     {4, 4, 3, 2, 1, 4, 6, 6, true},
    {3, 4, 3, 1, 0, 1, 5, 5, false},     {4, 3, 3, 3, 2, 1, 8, 7, false},
    {3, 16, 3, 1, 1, 1, 6, 5, false},    {16, 16, 3, 1, 1, 1, 6, 5, true},
    {16, 32, 3, 2, 1, 1, 7, 6, false},   {32, 32, 3, 1, 1, 1, 8, 7, true},
    {32, 48, 3, 1, 1, 1, 9, 5, false},   {16, 32, 1, 2, 0, 1, 6, 6, false},
    {48, 16, 1, 1, 0, 1, 4, 5, true},    {32, 32, 3, 1, 1, 2, 5, 5, false},
    {32, 32, 3, 1, 1, 32, 5, 6, true},   {16, 5, 3, 1, 1, 1, 5, 5, true},
    {32, 32, 3, 1, 1, 1, 1, 1, false},   {16, 6, 3, 1, 1, 2, 5, 5, false},
    {80, 80, 3, 1, 1, 1, 20, 18, false}, {3, 32, 4, 2, 1, 1, 9, 10, false},
};

// y in double from values in logical order; plain (N, O, P, Q).
std::vector<float> direct(const std::vector<float>& x, const Shape& s, const std::vector<float>& w,
                          const std::vector<float>& bias, const Shape& ws, const Shape& ys,
                          const Conv2dOptions& o) {
  std::vector<float> y;
  const int64_t per_group = ws[0] / o.groups;
  for (int64_t n = 0; n < ys[0]; ++n)
    for (int64_t k = 0; k < ys[1]; ++k)
      for (int64_t p = 0; p < ys[2]; ++p)
        for (int64_t q = 0; q < ys[3]; ++q) {
          double sum = bias.empty() ? 0.0 : bias[k];
          for (int64_t c = 0; c < ws[1]; ++c)
            for (int64_t i = 0; i < ws[2]; ++i)
              for (int64_t j = 0; j < ws[3]; ++j) {
                const int64_t h = p * o.stride + i - o.padding, v = q * o.stride + j - o.padding;
                if (h < 0 || v < 0 || h >= s[2] || v >= s[3]) continue;
                const int64_t channel = k / per_group * ws[1] + c;
                sum += double{x[((n * s[1] + channel) * s[2] + h) * s[3] + v]} *
                       w[((k * ws[1] + c) * ws[2] + i) * ws[3] + j];
              }
          y.push_back(static_cast<float>(sum));
        }
  return y;
}

struct ConvFixture {
  ParameterStore store;
  Conv2d conv;
  explicit ConvFixture(const ConvCase& c)
      : conv(store, "conv",
             {.in = c.in,
              .out = c.out,
              .kernel = c.kernel,
              .stride = c.stride,
              .padding = c.padding,
              .groups = c.groups,
              .bias = c.bias}) {
    store.finalize(3);
    randomize(store, 5, 1.0f);
  }
  Var forward(Tape& tape, const Var& x) { return conv.forward(tape, x); }
};

bool fits(const ConvCase& c, Layout layout) { return layout != Layout::c16 || c.in % 16 == 0; }

// Rounds to bfloat16 and back, so that both precisions start from the same numbers.
void round_to_half(const Tensor& x) { convert(converted(x, DType::bf16, x.layout()), x); }

}  // namespace

TEST_CASE("conv2d: equals the direct sum, and gradients, in every layout") {
  Context context(on_test_device());
  for (const ConvCase& c : kCases)
    for (Layout layout : input_layouts()) {
      if (!fits(c, layout)) continue;
      CAPTURE(c);
      INFO(concat(layout_name(layout)));
      ConvFixture f(c);
      const Tensor x = random_tensor({2, c.in, c.height, c.width}, 11, layout);
      const GradCheck::Network network = [&](Tape& t, const std::vector<Var>& in) {
        return f.forward(t, in[0]);
      };
      const Tensor y = forward_value(network, {x});
      const Shape shape = conv2d_shape(x.shape(), f.conv.weight->shape(), f.conv.options, "conv");
      REQUIRE(y.shape() == shape);
      const std::vector<float> expected =
          direct(x.to_vector(), x.shape(), f.conv.weight->value.to_vector(),
                 c.bias ? f.conv.bias->value.to_vector() : std::vector<float>{},
                 f.conv.weight->shape(), shape, f.conv.options);
      // fp32 sums of up to 720 products; Winograd F(4x4, 3x3) loses about one digit.
      CHECK(relative_distance(y.to_vector(), expected) < 1e-5);
      CHECK(f.conv.weight->uses_per_sample == static_cast<double>(shape[2] * shape[3]));
      GradCheck(f.store, {x},
                [&](Tape& t, const std::vector<Var>& in) { return f.forward(t, in[0]); },
                {.samples = 10})
          .run();
    }
}

TEST_CASE("conv2d: bf16 agrees with fp32 within its rounding") {
  Context context(on_test_device());
  if (!bf16_here()) return;
  for (const ConvCase& c : kCases)
    for (Layout layout : map_layouts()) {
      if (layout == Layout::plain) continue;
      if (!fits(c, layout)) continue;
      CAPTURE(c);
      INFO(concat(layout_name(layout)));
      ConvFixture f(c);
      round_to_half(f.conv.weight->value);
      auto network = [&](Tape& t, const std::vector<Var>& in) {
        const Var y = f.forward(t, in[0]);
        CHECK(y.value().dtype() == in[0].value().dtype());
        return y;
      };
      const Tensor half =
          random_tensor({2, c.in, c.height, c.width}, 11, layout, 1.0f, DType::bf16);
      const Tensor full = converted(half, DType::f32, layout);
      const std::vector<float> y = forward_value(network, {full}).to_vector();
      const std::vector<float> y_half = forward_value(network, {half}).to_vector();
      // One rounding to 8 bits, two with a bias: at most 2^-9 relative each.
      CHECK(relative_distance(y_half, y) < 4e-3);
      // dx is rounded once, and once with the noise of the checker; dw is summed in fp32, except
      // for r, which the fp32 pass has unrounded (2^-9 again).
      const auto a = GradCheck(f.store, {half}, network).analytic(DyMode::shared),
                 b = GradCheck(f.store, {full}, network).analytic(DyMode::shared);
      for (size_t i = 0; i < a.size(); ++i) {
        CAPTURE(i);
        CHECK(relative_distance(a[i], b[i]) < 1e-2);
      }
    }
}

TEST_CASE("conv2d: mismatched shapes are refused, and both named") {
  Context context(on_test_device());
  ParameterStore store;
  Conv2d conv(store, "stem", {.in = 4, .out = 8, .kernel = 3, .groups = 2});
  store.finalize(1);
  Tape tape;
  auto refusal = [&](const Shape& shape) -> std::string {
    try {
      conv.forward(tape, Var(Tensor::zeros(shape)));
    } catch (const InputError& error) {
      return error.what();
    }
    return {};
  };
  CHECK(refusal({1, 3, 8, 8}).find("(1, 3, 8, 8) does not fit weight (8, 2, 3, 3)") !=
        std::string::npos);
  CHECK(refusal({1, 4, 2, 8}).find("smaller than the kernel") != std::string::npos);
  CHECK(refusal({1, 4, 0, 0}).find("smaller than the kernel") != std::string::npos);
  CHECK(refusal({4, 8, 8}).find("four axes") != std::string::npos);
  CHECK(conv.forward(tape, Var(Tensor::zeros({0, 4, 8, 8}))).shape() == Shape{0, 8, 6, 6});
  Conv2d::Options bad = {.in = 5, .out = 4, .groups = 2};
  ParameterStore other;
  CHECK_THROWS_AS(Conv2d(other, "bad", bad), InputError);
  bad = {.in = 4, .out = 6, .groups = 4};
  CHECK_THROWS_AS(Conv2d(other, "bad", bad), InputError);
}

TEST_CASE("conv2d: weights are drawn with the fan of torchvision, groups or not") {
  Context context;
  for (const int64_t groups : {1, 32}) {
    ParameterStore store;
    const Conv2d::Options options = {
        .in = 64, .out = 64, .kernel = 3, .groups = groups, .fan_out = true};
    const Conv2d conv(store, "conv", options);
    store.finalize(1);
    const double deviation = norm(conv.weight->value) / std::sqrt(conv.weight->size());
    CHECK(deviation == doctest::Approx(std::sqrt(2.0 / (64 * 9))).epsilon(0.1));
  }
}

TEST_CASE("conv2d: a bias of another size is refused, a batch without images is none") {
  Context context(on_test_device());
  ParameterStore store;
  CHECK_THROWS_AS(Conv2d(store, "none", {.in = 3, .out = 4, .kernel = 0}), InputError);
  Parameter& up = store.add("up", {3, 8, 1, 3}, constant_init(1));  // (I, O, K, L)
  Parameter& square = store.add("square", {16, 16, 3, 3}, constant_init(1));
  Parameter& bias = store.add("bias", {3}, constant_init(1));
  store.finalize(1);
  Tape tape;
  const Layout layout = input_layouts().back();
  const auto input = [&](const Shape& shape) {
    return Var(converted(Tensor::zeros(shape), DType::f32, layout), true);
  };
  CHECK_THROWS_AS(conv_transpose2d(tape, Var(Tensor::zeros({1, 3, 1, 4})), up, &bias, {}),
                  InputError);
  CHECK_THROWS_AS(conv2d(tape, input({1, 16, 8, 8}), square, &bias, {.padding = 1}), InputError);
  for (Layout each : input_layouts()) {
    const Tensor none = Tensor::empty({0, 16, 8, 8}, DType::f32, each);
    CHECK(conv2d(tape, Var(none), square, nullptr, {.padding = 1}).shape() == none.shape());
  }
}

TEST_CASE("conv2d: no reference kernels of oneDNN where it has others") {
  Context context;
  struct Maps {
    Shape x, w;
    Conv2dOptions o;
  };
  for (const Maps& m : {Maps{{2, 3, 32, 32}, {16, 3, 3, 3}, {.padding = 1}},
                        {{2, 3, 32, 32}, {64, 3, 4, 4}, {.stride = 2, .padding = 1}},
                        {{2, 64, 28, 28}, {64, 64, 3, 3}, {.padding = 2}},
                        {{2, 64, 28, 28}, {64, 1, 5, 5}, {.padding = 2, .groups = 64}},
                        {{2, 128, 14, 14}, {128, 128, 3, 3}, {.padding = 1}}})
    for (const Layout layout : {Layout::plain, Layout::nhwc, Layout::c16})
      for (const ConvPass pass :
           {ConvPass::forward, ConvPass::backward_input, ConvPass::backward_weight}) {
        if (layout == Layout::c16 && m.x[1] % 16 != 0) continue;
        const Tensor x = Tensor::empty_on(Device{}, m.x, DType::f32, layout);
        const ConvLayouts layouts = cpu::conv2d_layouts(x, m.w[0], m.o);
        const Shape shape = conv2d_shape(m.x, m.w, m.o, "conv");
        const Tensor y = Tensor::empty_on(Device{}, shape, DType::f32, layouts.output);
        CAPTURE(to_string(m.w));
        CAPTURE(layout_name(layouts.output));
        const Tensor in = Tensor::empty_on(Device{}, m.x, DType::f32, layouts.input);
        CHECK(!cpu::choose_conv_plan(pass, in, m.w, y, m.o).reference);
      }
}

TEST_CASE("linear: the gradient of a map has the map's layout") {
  Context context(on_test_device());
  ParameterStore store;
  Parameter& weight = store.add("w", {5, 16}, uniform_init(1));
  store.finalize(1);
  for (Layout layout : input_layouts()) {
    const Var x(converted(Tensor::zeros({2, 16, 4, 16}), DType::f32, layout), true);
    store.begin_step();
    Tape tape;
    const Var y = linear(tape, x, weight, nullptr);
    tape.backward(mse_loss(tape, y, Var(Tensor::zeros(y.shape()))));
    CHECK(x.grad().layout() == layout);
  }
}

TEST_CASE(
    "transposed convolution: the adjoint of convolution, in every layout, and its gradients") {
  Context context(on_test_device());
  for (const ConvCase& c : kCases)
    for (Layout layout : input_layouts()) {
      if (layout == Layout::c16 && c.out % 16 != 0) continue;
      CAPTURE(c);
      CAPTURE(std::string(layout_name(layout)));
      const Conv2dOptions o{c.stride, c.padding, c.groups};
      ParameterStore store;
      Parameter& weight =
          store.add("weight", {c.out, c.in / c.groups, c.kernel, c.kernel}, normal_init(0.3f));
      Parameter* bias = c.bias ? &store.add("bias", {c.in}, normal_init(0.3f)) : nullptr;
      store.finalize(1);
      // A map whose size is that of a convolution's output; the result may be smaller than the
      // convolution's input where a stride leaves pixels out.
      const Shape like = conv2d_shape({2, c.in, c.height, c.width}, weight.shape(), o, "like");
      const Tensor x = random_tensor(like, 3, layout);
      if ((like[2] - 1) * c.stride - 2 * c.padding + c.kernel <= 0) continue;
      const GradCheck::Network network = [&](Tape& t, const std::vector<Var>& in) {
        return conv_transpose2d(t, in[0], weight, bias, o);
      };
      Tape tape({.training = false});
      const Var y = network(tape, {Var(x)});
      // <y, z> = <x, conv2d(z)> for any z.
      const Tensor z = random_tensor(y.shape(), 4, y.value().layout());
      const Var forward = conv2d(tape, Var(z), weight, nullptr, o);
      REQUIRE(forward.shape() == like);
      const auto inner = [](const std::vector<float>& a, const std::vector<float>& b) {
        double sum = 0;
        for (size_t i = 0; i < a.size(); ++i) sum += double{a[i]} * b[i];
        return sum;
      };
      std::vector<float> without = y.value().to_vector();
      const auto pixels = static_cast<size_t>(y.shape()[2] * y.shape()[3]);
      for (size_t i = 0; c.bias && i < without.size(); ++i)
        without[i] -= bias->value.to_vector()[i / pixels % static_cast<size_t>(c.in)];
      const auto from = x.to_vector(), to = z.to_vector();
      const double scale = std::sqrt(inner(without, without) * inner(to, to));
      CHECK(std::abs(inner(without, to) - inner(from, forward.value().to_vector())) < 1e-5 * scale);
      GradCheck(store, {x}, network, {.samples = 12}).run();
    }
  ParameterStore store;
  Parameter& weight = store.add("weight", {4, 3, 2, 2}, constant_init(1));
  store.finalize(1);
  Tape tape;
  const auto refused = [&](const Shape& shape, const Conv2dOptions& o) {
    CHECK_THROWS_AS(conv_transpose2d(tape, Var(Tensor::zeros(shape)), weight, nullptr, o),
                    InputError);
  };
  refused({1, 3, 4, 4}, {});
  refused({1, 4, 4}, {});
  refused({1, 4, 0, 4}, {});
  refused({1, 4, 1, 4}, {.padding = 1});
  refused({1, 4, 4, 4}, {.stride = 0});
  refused({1, 4, 4, 4}, {.groups = 3});
}
