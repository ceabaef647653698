// Elementwise and reduction kernels, gemm, layouts.
#include "core/kernels.h"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "core/context.h"
#include "core/gemm.h"
#include "core/parallel.h"
#include "core/random.h"
#include "tests/device.h"

using namespace heddle;

namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

Tensor numbers(const Shape& shape, uint64_t seed, Layout layout = Layout::plain) {
  const Tensor out = Tensor::empty_on(Device{}, shape, DType::f32, layout);
  const Philox rng(seed, stream_id(Stream::sample));
  for (int64_t i = 0; i < out.size(); ++i) out.data<float>()[i] = rng.normal(i);
  return out;
}

}  // namespace

TEST_CASE("parallel_for: every index once, for all sizes, grains and thread counts") {
  for (int threads : {1, 2, 3, 7}) {
    Context context({.threads = threads});
    for (int64_t grain : {1, 5, 64, 1000})
      for (int64_t n : {0, 1, 63, 64, 65, 1000, 4097}) {
        std::vector<int> seen(n, 0);
        parallel_for(n, grain, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) ++seen[i];
        });
        for (int s : seen) REQUIRE(s == 1);
      }
  }
}

TEST_CASE("reductions: the same bits for every number of threads") {
  Context context({.threads = 1});
  for (int64_t n : {0, 1, 16384, 16385, 200001}) {
    CAPTURE(n);
    const Tensor x = numbers({n}, 3);
    const double expected_sum = sum(x), expected_norm = squared_norm(x);
    double slow = 0;
    for (int64_t i = 0; i < n; ++i) slow += x.data<float>()[i];
    CHECK(expected_sum == doctest::Approx(slow).epsilon(1e-10));
    for (int threads : {2, 3, 8}) {
      Context more({.threads = threads});
      CHECK(sum(x) == expected_sum);
      CHECK(squared_norm(x) == expected_norm);
    }
    CHECK(all_finite(x));
    if (n == 0) continue;
    for (float bad :
         {kNaN, std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
      const Tensor y = x.clone();
      y.data<float>()[n - 1] = bad;
      CHECK_FALSE(all_finite(y));
    }
  }
}

TEST_CASE("elementwise kernels: values, both types, and refusals") {
  Context context;
  const Tensor a = Tensor::from({1, -2, 3}), b = Tensor::from({10, 20, 30});
  const Tensor out = Tensor::empty({3});
  add(a, b, out);
  CHECK(out.to_vector() == std::vector<float>{11, 18, 33});
  add_to(a, b);
  CHECK(b.to_vector() == std::vector<float>{11, 18, 33});
  axpy(2, a, b);
  CHECK(b.to_vector() == std::vector<float>{13, 14, 39});
  scale(b, -1);
  CHECK(b.to_vector() == std::vector<float>{-13, -14, -39});
  fill(b, 0.5f);
  CHECK(b.to_vector() == std::vector<float>{0.5f, 0.5f, 0.5f});
  const Tensor half = converted(a, DType::bf16, Layout::plain);
  add_to(half, half);
  CHECK(half.to_vector() == std::vector<float>{2, -4, 6});
  const Tensor rows = Tensor::from({1, 2, 3, 4, 5, 6}, {3, 2});
  const Tensor columns = Tensor::from({kNaN, kNaN});
  sum_rows(rows, columns, 0);
  CHECK(columns.to_vector() == std::vector<float>{9, 12});
  sum_rows(rows, columns, 1);
  CHECK(columns.to_vector() == std::vector<float>{18, 24});
  CHECK_THROWS_AS(add(a, Tensor::zeros({4}), out), InputError);
  CHECK_THROWS_AS(add(a, half, out), InputError);
  CHECK_THROWS_AS(fill(Tensor::zeros({2}, DType::i32), 1), InputError);
  CHECK_THROWS_AS(axpy(1, half, half), InputError);
  CHECK_THROWS_AS(sum_rows(rows, Tensor::zeros({3}), 0), InputError);
  CHECK_THROWS_AS(convert(a, Tensor::zeros({4})), InputError);
}

TEST_CASE("gemm: against the definition in all transposes; beta 0 overwrites NaN") {
  Context context;
  for (auto [m, n, k] : {std::array<int64_t, 3>{1, 1, 1},
                         {3, 5, 7},
                         {17, 4, 33},
                         {2, 3, 0},
                         {0, 3, 2},
                         {64, 10, 20},
                         {2048, 3, 5}})
    for (bool ta : {false, true})
      for (bool tb : {false, true})
        for (float beta : {0.0f, 1.0f, -0.5f}) {
          const Shape sizes{m, n, k};  // clang 14 captures no structured bindings
          CAPTURE(to_string(sizes));
          const Tensor a = numbers(ta ? Shape{k, m} : Shape{m, k}, 1);
          const Tensor b = numbers(tb ? Shape{n, k} : Shape{k, n}, 2);
          const Tensor c = numbers({m, n}, 3);
          const std::vector<float> before = c.to_vector();
          if (beta == 0.0f) fill(c, kNaN);
          gemm(a, b, c, {.transpose_a = ta, .transpose_b = tb, .alpha = 2.0f, .beta = beta});
          for (int64_t i = 0; i < m; ++i)
            for (int64_t j = 0; j < n; ++j) {
              double expected = beta == 0.0f ? 0.0 : beta * before[i * n + j];
              for (int64_t l = 0; l < k; ++l)
                expected += 2.0 * a.data<float>()[ta ? l * m + i : i * k + l] *
                            b.data<float>()[tb ? j * k + l : l * n + j];
              REQUIRE(std::abs(c.data<float>()[i * n + j] - expected) < 1e-4);
            }
        }
  const Tensor a = numbers({2, 3}, 1);
  CHECK_THROWS_AS(gemm(a, a, a), InputError);
  CHECK_THROWS_AS(gemm(a, numbers({3, 2}, 1), numbers({2, 3}, 1)), InputError);
}

TEST_CASE("repeat_row: many short rows, few long ones, none") {
  Context context({.threads = 3});
  for (const Shape& shape : {Shape{300, 5}, Shape{2, 20000}, Shape{1, 4096}, Shape{0, 9000}}) {
    const Tensor row = numbers({shape[1]}, 1), out = Tensor::empty(shape);
    fill(out, kNaN);
    repeat_row(row, out);
    for (int64_t r = 0; r < shape[0]; ++r)
      CHECK(out.slice(r, r + 1).to_vector() == row.to_vector());
  }
}

TEST_CASE("gemm_with_bias: the product with the bias in each row") {
  Context context;
  for (bool transpose : {false, true}) {
    const Tensor a = numbers({3, 4}, 1), b = numbers(transpose ? Shape{5, 4} : Shape{4, 5}, 2);
    const Tensor bias = numbers({5}, 3), expected = numbers({3, 5}, 4), c = numbers({3, 5}, 5);
    repeat_row(bias, expected);
    gemm(a, b, expected, {.transpose_b = transpose, .beta = 1.0f});
    gemm_with_bias(a, b, transpose, bias, c);
    CHECK(c.to_vector() == expected.to_vector());
    const Tensor none = numbers({3, 5}, 6);
    gemm_with_bias(numbers({3, 0}, 1), numbers(transpose ? Shape{5, 0} : Shape{0, 5}, 1), transpose,
                   bias, none);
    CHECK(none.to_vector()[7] == bias.to_vector()[2]);
    CHECK_THROWS_AS(gemm_with_bias(a, b, !transpose, bias, c), InputError);
    CHECK_THROWS_AS(gemm_with_bias(a, b, transpose, numbers({4}, 1), c), InputError);
    CHECK_THROWS_AS(gemm_with_bias(a, b, transpose, bias, numbers({5, 3}, 1)), InputError);
  }
}

TEST_CASE("gemm: bf16 operands, and packed matrices in both types") {
  Context context;
  const bool bf16 = bf16_here();
  for (auto [m, n, k] : {std::array<int64_t, 3>{1, 1, 1}, {3, 5, 7}, {20, 70, 33}, {32, 64, 128}})
    for (bool ta : {false, true})
      for (bool tb : {false, true})
        for (float beta : {0.0f, 1.0f}) {
          const Shape sizes{m, n, k};
          CAPTURE(to_string(sizes));
          CAPTURE(ta);
          CAPTURE(tb);
          CAPTURE(beta);
          const Tensor a = numbers(ta ? Shape{k, m} : Shape{m, k}, 1);
          const Tensor b = numbers(tb ? Shape{n, k} : Shape{k, n}, 2);
          const Tensor start = numbers({m, n}, 3);
          auto fresh = [&] {
            const Tensor c = start.clone();
            if (beta == 0.0f) fill(c, kNaN);
            return c;
          };
          auto compare = [&](const Tensor& found, const Tensor& expected, float bound) {
            const std::vector<float> x = found.to_vector(), y = expected.to_vector();
            for (size_t i = 0; i < x.size(); ++i) REQUIRE(std::abs(x[i] - y[i]) <= bound);
          };
          auto half = [](const Tensor& x) { return converted(x, DType::bf16, Layout::plain); };
          auto full = [](const Tensor& x) { return converted(x, DType::f32, Layout::plain); };
          const GemmOptions options = {.transpose_a = ta, .transpose_b = tb, .beta = beta};
          const Tensor expected = fresh(), rounded = fresh();
          gemm(a, b, expected, options);
          gemm(full(half(a)), full(half(b)), rounded, options);  // products of bf16 are exact
          if (bf16) {
            const Tensor c = fresh();
            gemm(half(a), half(b), c, options);
            compare(c, rounded, 1e-4f);
            const Tensor short_c = half(fresh());
            gemm(half(a), half(b), short_c, options);
            compare(short_c, rounded, 0.2f);
          }
          if (ta) continue;
          const Tensor packed = fresh(), packed_half = fresh();
          PackedMatrix(b, tb, m, DType::f32, beta).multiply(a, packed);
          compare(packed, expected, 1e-4f);
          if (!bf16) continue;
          PackedMatrix(b, tb, m, DType::bf16, beta).multiply(half(a), packed_half);
          compare(packed_half, rounded, 1e-4f);
        }
  const Tensor a = numbers({2, 3}, 1), half = converted(a, DType::bf16, Layout::plain);
  const Tensor c = numbers({2, 2}, 1);
  CHECK_THROWS_AS(gemm(a, half, c, {.transpose_b = true}), InputError);
  CHECK_THROWS_AS(gemm(half, half, c, {.transpose_b = true, .alpha = 2}), InputError);
  CHECK_THROWS_AS(gemm(a, a, converted(c, DType::bf16, Layout::plain), {.transpose_b = true}),
                  InputError);
  const PackedMatrix packed(a, true, 2, DType::f32, 0);
  CHECK_THROWS_AS(packed.multiply(half, c), InputError);
  CHECK_THROWS_AS(packed.multiply(numbers({3, 3}, 1), c), InputError);
}

TEST_CASE("convert: a round trip through every layout and type keeps the values") {
  Context context;
  for (const Shape& shape : {Shape{2, 16, 3, 5}, Shape{1, 48, 1, 1}, Shape{3, 32, 2, 2}}) {
    const Tensor x = numbers(shape, 5);
    const std::vector<float> values = x.to_vector();
    for (Layout first : {Layout::plain, Layout::nhwc, Layout::c16})
      for (Layout second : {Layout::plain, Layout::nhwc, Layout::c16}) {
        const Tensor there = converted(converted(x, DType::f32, first), DType::f32, second);
        CHECK(there.layout() == second);
        CHECK(there.to_vector() == values);
        const Tensor half = converted(there, DType::bf16, first);
        CHECK(converted(half, DType::f32, second).to_vector() ==
              converted(x, DType::bf16, Layout::plain).to_vector());
      }
    // Position of one element by the definition of the layouts.
    const int64_t h = shape[2], w = shape[3], channels = shape[1];
    const Tensor nhwc = converted(x, DType::f32, Layout::nhwc),
                 c16 = converted(x, DType::f32, Layout::c16);
    const int64_t c = channels - 1, i = h - 1, j = w - 1;
    const float expected = x.data<float>()[(c * h + i) * w + j];
    CHECK(nhwc.data<float>()[(i * w + j) * channels + c] == expected);
    CHECK(c16.data<float>()[((c / 16 * h + i) * w + j) * 16 + c % 16] == expected);
  }
}
