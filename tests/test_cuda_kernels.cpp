// CUDA's kernels against the CPU's, both on host memory: the code for the GPU runs under
// tests/cuda_emulation.h. Vendor libraries and races can only be tested on a GPU (./run
// gpu-check).
#include "tests/cuda_emulation.h"
// clang-format off
#include "core/elementwise.cu"
#include "layers/batchnorm_cuda.cu"
#include "layers/embedding_cuda.cu"
#include "layers/loss_cuda.cu"
#include "layers/pooling_cuda.cu"
#include "layers/rows.cu"
#include "layers/shortcut_cuda.cu"
#include "layers/stem_cuda.cu"
// clang-format on

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "core/context.h"
#include "core/elementwise.h"
#include "core/kernels.h"
#include "tests/device.h"
#include "tests/gradcheck.h"

using namespace heddle;

namespace {

Tensor like(const Tensor& x) {
  const Tensor out = Tensor::empty_like(x);
  std::memset(out.raw(), 0xff, out.bytes());  // NaN, whatever the type
  return out;
}

// Returns random values in the layout that CUDA uses.
Tensor nhwc(const Shape& shape, uint64_t seed, DType dtype, float scale = 1.0f) {
  return random_tensor(shape, seed, Layout::nhwc, scale, dtype);
}

double distance(const Tensor& a, const Tensor& b) {
  return relative_distance(a.to_vector(), b.to_vector());
}

double rounding(DType dtype) { return dtype == DType::f32 ? 2e-6 : 8e-3; }

// Batches that give one part or many, with channels that do or do not fill packs.
const Shape kMaps[] = {{2, 5, 3, 4},   {3, 16, 5, 5},    {2, 64, 9, 7},  {1, 8, 1, 7},
                       {4, 3, 40, 33}, {2, 136, 21, 10}, {2, 16, 64, 40}};

struct Pair {
  Tensor cpu, gpu;
  explicit Pair(const Tensor& x) : cpu(like(x)), gpu(like(x)) {}
};

}  // namespace

TEST_CASE("CUDA kernels: layouts, rows and reductions as on the CPU") {
  Context context;
  for (const auto& [rows, columns] : {std::pair{1, 7}, {3000, 1}, {2000, 70}, {517, 33}, {0, 5}}) {
    const Shape shape{rows, columns};  // clang 14 captures no structured bindings
    CAPTURE(to_string(shape));
    const Tensor x = random_tensor({rows, columns}, 1);
    for (float beta : {0.0f, 0.5f}) {
      const Tensor a = random_tensor({columns}, 2), b = a.clone();
      cpu::sum_rows(x, a, beta);
      emulated::sum_rows(x, b, beta);
      for (int64_t i = 0; i < columns; ++i)
        CHECK(b.data<float>()[i] == doctest::Approx(a.data<float>()[i]).epsilon(1e-4));
    }
    CHECK(emulated::squared_norm(x) == doctest::Approx(cpu::squared_norm(x)));
  }
  const Tensor many = random_tensor({150000}, 3);
  CHECK(emulated::sum(many) == doctest::Approx(cpu::sum(many)).epsilon(1e-9));
  CHECK(emulated::all_finite(many));
  many.data<float>()[149999] = std::numeric_limits<float>::infinity();
  CHECK_FALSE(emulated::all_finite(many));

  const Tensor plain = random_tensor({3, 5, 4, 2}, 4);
  const Tensor last = converted(plain, DType::f32, Layout::nhwc), back = plain.clone();
  const Tensor found = like(last), half = Tensor::empty({3, 5, 4, 2}, DType::bf16, Layout::nhwc);
  emulated::reorder(plain, found, 0.0f);
  CHECK(found.to_vector() == plain.to_vector());
  emulated::reorder(plain, half, 0.0f);
  CHECK(half.to_vector() == converted(plain, DType::bf16, Layout::plain).to_vector());
  emulated::reorder(last, back, 2.0f);
  for (int64_t i = 0; i < plain.size(); ++i)
    CHECK(back.data<float>()[i] == doctest::Approx(3 * plain.data<float>()[i]));
  fill(back, std::numeric_limits<float>::quiet_NaN());
  emulated::reorder(last, back, 0.0f);
  CHECK(back.to_vector() == plain.to_vector());
}

TEST_CASE("CUDA kernels: batch norm as on the CPU, in every form") {
  Context context;
  for (const Shape& shape : kMaps)
    for (DType dtype : {DType::f32, DType::bf16}) {
      INFO(concat(to_string(shape), " ", dtype_name(dtype)));
      const Shape c = {shape[1]};
      const Tensor x = nhwc(shape, 1, dtype, 2.0f), z = nhwc(shape, 2, dtype);
      add_constant(x, dtype == DType::f32 ? 30.0f : 4.0f);  // a mean far from zero
      const Tensor weight = random_tensor(c, 3), bias = random_tensor(c, 4);
      Pair mean(weight), variance(weight), of_invstd(weight), of_scale(weight), of_shift(weight);
      const auto affine = [&](Tensor Pair::*side) {
        return BatchNormAffine{mean.*side, variance.*side,  weight,         bias,
                               1e-5f,      of_invstd.*side, of_scale.*side, of_shift.*side};
      };
      cpu::batchnorm_statistics(x, affine(&Pair::cpu));
      emulated::batchnorm_statistics(x, affine(&Pair::gpu));
      CHECK(distance(mean.gpu, mean.cpu) < 1e-6);
      // The CPU adds pixels one by one where channels do not fill a vector.
      const double bound = dtype == DType::f32 ? 1e-5 : 2e-4;
      CHECK(distance(variance.gpu, variance.cpu) < bound);
      CHECK(distance(of_invstd.gpu, of_invstd.cpu) < bound);
      CHECK(distance(of_scale.gpu, of_scale.cpu) < bound);
      CHECK(distance(of_shift.gpu, of_shift.cpu) < bound);
      const Tensor &invstd = of_invstd.cpu, &scale = of_scale.cpu, &shift = of_shift.cpu;
      const Tensor batches = Tensor::zeros({}, DType::i64), average = like(weight),
                   spread = like(weight);
      const BatchNormRunning training = {mean.cpu, variance.cpu, 0.1f, 1, average, spread, batches};
      for (int form = 0; form < 8; ++form) {
        const bool relu = (form & 1) != 0, add = (form & 2) != 0, trains = (form & 4) != 0;
        INFO(concat("relu ", relu, " add ", add, " trains ", trains));
        Pair y(x);
        const Tensor residual = add ? z : Tensor{};
        cpu::batchnorm_apply(x, scale, shift, residual, relu, y.cpu);
        const Tensor kept = emulated::batchnorm_apply(x, scale, shift, residual, relu, y.gpu,
                                                      trains ? &training : nullptr);
        CHECK(distance(y.gpu, y.cpu) < rounding(dtype));
        const bool full = shape[1] % (dtype == DType::f32 ? 4 : 8) == 0;
        CHECK(kept.defined() == (relu && add));
        if (kept.defined())
          CHECK(kept.bytes() == y.gpu.size() / (!full ? 1 : dtype == DType::f32 ? 4 : 8));
        const Tensor dy = nhwc(shape, 5, dtype);
        const Tensor all = Tensor::empty({dy.size() + 1}, dtype);
        const Tensor other = all.slice(1, all.size());  // values that are loaded one by one
        std::memcpy(other.raw(), nhwc(shape, 6, dtype).raw(), dy.bytes());
        for (bool two : {false, true})
          for (float beta : {0.0f, 1.0f}) {
            Pair dz(x), dx(x), dweight(weight), dbias(weight);
            auto run = [&](auto backward, Tensor Pair::*side) {
              const Tensor none;
              (dweight.*side).copy_from(weight);
              (dbias.*side).copy_from(bias);
              backward({.x = x,
                        .kept = !add || !relu        ? none
                                : side == &Pair::cpu ? y.gpu
                                                     : kept,
                        .mean = mean.cpu,
                        .invstd = invstd,
                        .scale = scale,
                        .shift = shift,
                        .dy = dy,
                        .dy2 = two ? other : none,
                        .dz = add ? dz.*side : none,
                        .dx = dx.*side,
                        .dweight = dweight.*side,
                        .dbias = dbias.*side,
                        .beta_weight = beta,
                        .beta_bias = beta,
                        .relu = relu});
            };
            run([](const BatchNormBackward& a) { cpu::batchnorm_backward(a); }, &Pair::cpu);
            run([](const BatchNormBackward& a) { emulated::batchnorm_backward(a); }, &Pair::gpu);
            CHECK(distance(dx.gpu, dx.cpu) < 10 * rounding(dtype));
            if (add) CHECK(distance(dz.gpu, dz.cpu) < rounding(dtype));
            CHECK(distance(dweight.gpu, dweight.cpu) < 1e-4);
            CHECK(distance(dbias.gpu, dbias.cpu) < 1e-4);
          }
      }
    }
}

TEST_CASE("CUDA kernels: running statistics use finite values only") {
  Context context;
  for (float bad :
       {0.0f, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const Tensor mean = random_tensor({300}, 1), variance = random_tensor({300}, 2);
    variance.data<float>()[299] += bad;
    Pair running_mean(mean), running_var(mean), batches(Tensor::zeros({}, DType::i64));
    const Tensor x = nhwc({2, 300, 3, 3}, 5, DType::f32);
    for (auto side : {&Pair::cpu, &Pair::gpu}) {
      (running_mean.*side).copy_from(random_tensor({300}, 3));
      (running_var.*side).copy_from(random_tensor({300}, 4));
      *(batches.*side).data<int64_t>() = 7;
      const BatchNormRunning a = {
          mean, variance, 0.1f, 1.5f, running_mean.*side, running_var.*side, batches.*side};
      const Tensor y = like(x);
      side == &Pair::cpu ? cpu::batchnorm_apply(x, mean, mean, {}, false, y, &a)
                         : emulated::batchnorm_apply(x, mean, mean, {}, false, y, &a);
      CHECK(*(batches.*side).data<int64_t>() == (bad == 0.0f ? 8 : 7));
    }
    CHECK(distance(running_mean.gpu, running_mean.cpu) < 1e-6);
    CHECK(distance(running_var.gpu, running_var.cpu) < 1e-6);
  }
}

namespace {

// Returns a convolution's output (N, O, P, Q), by its definition.
std::vector<double> convolution(const Tensor& x, const Tensor& w, const Shape& y, int64_t stride,
                                int64_t padding) {
  const std::vector<float> in = x.to_vector(), weight = w.to_vector();
  std::vector<double> out;
  for (int64_t n = 0; n < y[0]; ++n)
    for (int64_t o = 0; o < y[1]; ++o)
      for (int64_t p = 0; p < y[2]; ++p)
        for (int64_t q = 0; q < y[3]; ++q) {
          double sum = 0;
          for (int64_t c = 0; c < x.shape()[1]; ++c)
            for (int64_t k = 0; k < w.shape()[2]; ++k)
              for (int64_t l = 0; l < w.shape()[3]; ++l) {
                const int64_t h = p * stride + k - padding, v = q * stride + l - padding;
                if (h < 0 || v < 0 || h >= x.shape()[2] || v >= x.shape()[3]) continue;
                sum +=
                    to_double(in[to_size(
                        ((n * x.shape()[1] + c) * x.shape()[2] + h) * x.shape()[3] + v)]) *
                    weight[to_size(((o * x.shape()[1] + c) * w.shape()[2] + k) * w.shape()[3] + l)];
              }
          out.push_back(sum);
        }
  return out;
}

}  // namespace

TEST_CASE("CUDA kernels: a first convolution over squares of pixels") {
  Context context;
  struct Form {
    Shape x, w;
    int64_t padding;
  };
  for (const Form& f : {Form{{2, 3, 11, 9}, {5, 3, 7, 7}, 3},
                        {{1, 4, 8, 8}, {2, 4, 3, 3}, 1},
                        {{2, 1, 6, 7}, {3, 1, 2, 2}, 0},
                        {{1, 2, 5, 6}, {2, 2, 5, 3}, 2}})
    for (Layout layout : {Layout::plain, Layout::nhwc}) {
      CAPTURE(to_string(f.x));
      const Tensor x = converted(random_tensor(f.x, 1), DType::bf16, layout);
      const Tensor w = converted(converted(random_tensor(f.w, 2), DType::bf16, Layout::plain),
                                 DType::f32, Layout::plain);
      const Conv2dOptions o = {.stride = 2, .padding = f.padding, .groups = 1};
      REQUIRE(emulated::folds(x, o));
      const Shape y = conv2d_shape(f.x, f.w, o, "convolution");
      const Tensor map = emulated::fold_map(x, emulated::folded_map_shape(y, f.w), f.padding);
      const Tensor weight = emulated::fold_weight(w);
      const std::vector<double> found = convolution(map, weight, y, 1, 0),
                                wanted = convolution(x, w, y, 2, f.padding);
      for (size_t i = 0; i < wanted.size(); ++i) CHECK(found[i] == doctest::Approx(wanted[i]));
      const Tensor dw = w.clone(), fresh = like(w);
      fill(fresh, std::numeric_limits<float>::quiet_NaN());
      emulated::unfold_gradient(weight, dw, 1.0f);
      emulated::unfold_gradient(weight, fresh, 0.0f);
      for (int64_t i = 0; i < w.size(); ++i) {
        CHECK(dw.data<float>()[i] == 2 * w.data<float>()[i]);
        CHECK(fresh.data<float>()[i] == w.data<float>()[i]);
      }
    }
  const Conv2dOptions dense = {.stride = 1, .padding = 1, .groups = 1};
  CHECK_FALSE(emulated::folds(Tensor::zeros({1, 3, 8, 8}, DType::bf16), dense));
}

TEST_CASE("CUDA kernels: pooling as on the CPU") {
  Context context;
  for (const Shape& shape :
       {Shape{2, 16, 9, 7}, Shape{3, 5, 6, 8}, Shape{1, 24, 7, 7}, Shape{2, 8, 15, 15}})
    for (Layout layout : {Layout::plain, Layout::nhwc})
      for (DType dtype : {DType::f32, DType::bf16})
        for (PoolKind kind : {PoolKind::max, PoolKind::average})
          for (const PoolWindow& k : {PoolWindow{2, 2, 2, 0},
                                      {3, 3, 2, 1},
                                      {3, 3, 1, 1},
                                      {2, 2, 3, 1},
                                      {shape[2], shape[3], 1, 0}}) {
            if (dtype == DType::bf16 && !bf16_on_cpu()) continue;
            INFO(concat(to_string(shape), " ", layout_name(layout), " ", dtype_name(dtype),
                        " kind ", static_cast<int>(kind), " kernel ", k.kernel_h, " stride ",
                        k.stride));
            const Tensor x = random_tensor(shape, 1, layout, 1.0f, dtype);
            const Tensor y = Tensor::empty(
                {shape[0], shape[1], (shape[2] + 2 * k.padding - k.kernel_h) / k.stride + 1,
                 (shape[3] + 2 * k.padding - k.kernel_w) / k.stride + 1},
                dtype, layout);
            Pair out(y), dx(x);
            const Tensor dy = random_tensor(y.shape(), 2, layout, 1.0f, dtype);
            const Tensor w = cpu::pool_forward(kind, x, out.cpu, k);
            cpu::pool_backward(kind, dy, w, dx.cpu, k);
            const Tensor chosen = emulated::pool_forward(kind, x, out.gpu, k);
            emulated::pool_backward(kind, dy, chosen, dx.gpu, k);
            CHECK(distance(out.gpu, out.cpu) < (kind == PoolKind::max ? 1e-9 : rounding(dtype)));
            CHECK(distance(dx.gpu, dx.cpu) < rounding(dtype));
          }
}

TEST_CASE("CUDA kernels: cross-entropy as on the CPU, extremes too") {
  Context context;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (int64_t classes : {1, 10, 255, 1000})
    for (float smoothing : {0.0f, 0.1f}) {
      CAPTURE(classes);
      const Tensor z = random_tensor({4, classes}, 1, Layout::plain, 8.0f);
      const Tensor labels = Tensor::empty({4}, DType::i32);
      for (int32_t i = 0; i < 4; ++i)
        labels.data<int32_t>()[i] = static_cast<int32_t>((i * 37) % classes);
      Pair sums(Tensor::empty({4, 2})), d(z);
      Pair mean(Tensor::empty({}));
      cpu::softmax_cross_entropy_forward(z, labels, smoothing, sums.cpu, mean.cpu);
      emulated::softmax_cross_entropy_forward(z, labels, smoothing, sums.gpu, mean.gpu);
      CHECK(mean.gpu.item() == doctest::Approx(mean.cpu.item()).epsilon(1e-6));
      CHECK(distance(sums.gpu, sums.cpu) < 1e-6);
      const Tensor dmean = Tensor::from({1.2f}, {});
      cpu::softmax_cross_entropy_backward(z, labels, sums.cpu, smoothing, dmean, d.cpu);
      emulated::softmax_cross_entropy_backward(z, labels, sums.cpu, smoothing, dmean, d.gpu);
      if (classes > 1) CHECK(distance(d.gpu, d.cpu) < 1e-6);
    }
  auto loss = [&](const std::vector<float>& logits, int32_t label) {
    const Tensor labels = Tensor::empty({1}, DType::i32);
    *labels.data<int32_t>() = label;
    const Tensor z = Tensor::from(logits, {1, std::ssize(logits)});
    const Tensor mean = Tensor::empty({});
    emulated::softmax_cross_entropy_forward(z, labels, 0.0f, Tensor::empty({1, 2}), mean);
    return mean.item();
  };
  for (const int64_t n : {1, 255, 256, 1000}) {
    const Tensor losses = random_tensor({n}, 4);
    Pair mean(Tensor::empty({}));
    cpu::mean_of(losses, mean.cpu);
    emulated::mean_of(losses, mean.gpu);
    CHECK(mean.gpu.item() == doctest::Approx(mean.cpu.item()).epsilon(1e-6));
  }
  CHECK(loss({1e4f, 0, 0}, 0) == 0.0);
  CHECK(loss({3e38f, -3e38f}, 0) == 0.0);
  CHECK(loss({0, -kInfinity}, 0) == 0.0);
  CHECK(loss({0, -kInfinity}, 1) == kInfinity);
  CHECK(std::isnan(loss({0, NAN, 1}, 0)));
  CHECK(std::isnan(loss({NAN, 0, 1}, 1)));
  CHECK(std::isnan(loss({0, kInfinity}, 0)));
}

TEST_CASE("CUDA kernels: softmax and layer normalisation as on the CPU") {
  Context context;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const Shape& shape : {Shape{1, 1}, Shape{7, 5}, Shape{12, 300}}) {
      const Tensor x = random_tensor(shape, 1, Layout::plain, 3.0f), dy = random_tensor(shape, 2);
      for (const int64_t causal : {int64_t{0}, shape[1] == 5 ? int64_t{5} : int64_t{0}}) {
        const Pair y(converted(x, dtype, Layout::plain)), dx(y.cpu);
        cpu::softmax_forward(x, 0.5f, causal, y.cpu);
        emulated::softmax_forward(x, 0.5f, causal, y.gpu);
        CHECK(distance(y.gpu, y.cpu) < rounding(dtype));
        cpu::softmax_backward(y.cpu, dy, 0.5f, dx.cpu);
        emulated::softmax_backward(y.cpu, dy, 0.5f, dx.gpu);
        if (shape[1] > 1) CHECK(distance(dx.gpu, dx.cpu) < 4 * rounding(dtype));
      }
      const Tensor in = converted(x, dtype, Layout::plain), d = converted(dy, dtype, Layout::plain);
      const Tensor weight = random_tensor({shape[1]}, 3), bias = random_tensor({shape[1]}, 4);
      const Pair y(in), statistics(Tensor::zeros({shape[0], 2})), products(x), dx(in);
      cpu::layernorm_forward(in, weight, bias, 1e-5f, statistics.cpu, y.cpu);
      emulated::layernorm_forward(in, weight, bias, 1e-5f, statistics.gpu, y.gpu);
      CHECK(distance(y.gpu, y.cpu) < 4 * rounding(dtype));
      CHECK(distance(statistics.gpu, statistics.cpu) < 1e-5);
      cpu::layernorm_backward(in, statistics.cpu, weight, d, products.cpu, dx.cpu);
      emulated::layernorm_backward(in, statistics.cpu, weight, d, products.gpu, dx.gpu);
      if (shape[1] == 1) continue;
      CHECK(distance(products.gpu, products.cpu) < 1e-6);
      CHECK(distance(dx.gpu, dx.cpu) < 8 * rounding(dtype));
    }
}

TEST_CASE("CUDA kernels: an embedding's gradient has the CPU's bits") {
  Context context;
  for (DType dtype : {DType::f32, DType::bf16})
    for (const auto& sizes : {std::pair<int64_t, int64_t>{0, 7},
                              {1, 7},
                              {2, 7},
                              {31, 7},
                              {32, 300},
                              {33, 7},
                              {97, 300},
                              {300, 1},
                              {300, 7},
                              {1025, 7},
                              {1025, 5000},
                              {40000, 30000}}) {
      const int64_t places = sizes.first, vocabulary = sizes.second;
      CAPTURE(places);
      CAPTURE(vocabulary);
      ParameterStore store;
      Parameter& a = store.add("a", {vocabulary, 5}, constant_init(0.0f));
      Parameter& b = store.add("b", {vocabulary, 5}, constant_init(0.0f));
      store.finalize(1);
      for (uint64_t step = 0; step < 3; ++step) {
        if (step != 1) store.begin_step();  // the second adds to the first
        const Tensor tokens = Tensor::empty({places}, DType::i32);
        const Philox rng(step, 3);
        for (int64_t i = 0; i < places; ++i)
          tokens.data<int32_t>()[i] = static_cast<int32_t>(
              rng.below(static_cast<uint64_t>(i), static_cast<uint64_t>(vocabulary)));
        const Tensor dy = random_tensor({places, 5}, 9 + step, Layout::plain, 1.0f, dtype);
        cpu::embedding_backward(dy, tokens, a);
        emulated::embedding_backward(dy, tokens, b);
        CHECK(a.grad.to_vector() == b.grad.to_vector());
      }
    }
}

TEST_CASE("CUDA kernels: the padded shortcut as on the CPU") {
  Context context;
  for (DType dtype : {DType::f32, DType::bf16})
    for (const Shape& shape : {Shape{2, 16, 6, 8}, Shape{1, 3, 5, 7}}) {
      const Tensor x = nhwc(shape, 1, dtype);
      const Tensor y =
          nhwc({shape[0], 2 * shape[1] + shape[1] % 2, (shape[2] + 1) / 2, (shape[3] + 1) / 2}, 2,
               dtype);
      Pair out(y), dx(x);
      cpu::subsample_forward(x, out.cpu);
      emulated::subsample_forward(x, out.gpu);
      CHECK(out.gpu.to_vector() == out.cpu.to_vector());
      cpu::subsample_backward(y, dx.cpu);
      emulated::subsample_backward(y, dx.gpu);
      CHECK(dx.gpu.to_vector() == dx.cpu.to_vector());
    }
}
