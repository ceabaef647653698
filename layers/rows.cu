// Kernels that reduce each row of a matrix (softmax, layer normalisation), and the order of heads;
// shared between CPU and CUDA, where a block reduces a row as a tree.
#include <cmath>

#include "core/math.h"
#include "core/shared_kernel.h"
#include "layers/backend.h"
#ifdef HEDDLE_GPU
#include "core/block_reduce.cuh"
#define HEDDLE_ROW __device__
#else
#define HEDDLE_ROW
#endif

namespace heddle::HEDDLE_BACKEND {
namespace {

// Calls f(c) for each column of a row; sum() and largest() join the results.
#ifdef HEDDLE_GPU
constexpr int kRowThreads = 128;

struct Row {
  int64_t columns;
  float (&scratch)[kRowThreads];
  template <class F>
  __device__ float sum(F f) const {
    float s = 0;
    for (int64_t c = threadIdx.x; c < columns; c += kRowThreads) s += f(c);
    return block_reduce(s, Plus(), scratch);
  }
  template <class F>
  __device__ float largest(F f) const {
    float top = -__builtin_huge_valf();
    for (int64_t c = threadIdx.x; c < columns; c += kRowThreads) top = Larger()(top, f(c));
    return block_reduce(top, Larger(), scratch);
  }
  template <class F>
  __device__ void each(F f) const {
    for (int64_t c = threadIdx.x; c < columns; c += kRowThreads) f(c);
  }
  __device__ Row first(int64_t count) const { return {count, scratch}; }
  __device__ bool leads() const { return threadIdx.x == 0; }  // one thread of a row does
};

template <class F>
__global__ void row_kernel(int64_t columns, F f) {
  __shared__ float scratch[kRowThreads];
  f(to_int64(blockIdx.x), Row{columns, scratch});
}

template <class F>
void for_each_row(int64_t rows, int64_t columns, F f) {
  if (rows > 0) launch("rows", row_kernel<F>, static_cast<unsigned>(rows), kRowThreads, columns, f);
}
#else
struct Row {
  int64_t columns;
  template <class F>
  float sum(F f) const {
    float s = 0;
#pragma omp simd reduction(+ : s)
    for (int64_t c = 0; c < columns; ++c) s += f(c);
    return s;
  }
  template <class F>
  float largest(F f) const {
    float top = -__builtin_huge_valf();
#pragma omp simd reduction(max : top)
    for (int64_t c = 0; c < columns; ++c) top = f(c) > top ? f(c) : top;
    return top;
  }
  template <class F>
  void each(F f) const {
#pragma omp simd
    for (int64_t c = 0; c < columns; ++c) f(c);
  }
  Row first(int64_t count) const { return {count}; }
  bool leads() const { return true; }
};

template <class F>
void for_each_row(int64_t rows, int64_t columns, F f) {
  parallel_for(rows, std::max<int64_t>(1, 4096 / columns), [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) f(r, Row{columns});
  });
}
#endif

template <class T>
struct SoftmaxForward {
  const float* x;
  T* y;
  int64_t columns, causal;
  float scale;
  HEDDLE_ROW void operator()(int64_t r, const Row& row) const {
    const float* z = x + r * columns;
    T* out = y + r * columns;
    const int64_t seen = causal > 0 ? r % causal + 1 : columns;
    const float top = row.first(seen).largest([=](int64_t c) { return z[c]; }), by = scale;
    const float total = row.first(seen).sum([=](int64_t c) { return exp_of(by * (z[c] - top)); });
    row.each([=](int64_t c) { out[c] = T(c < seen ? exp_of(by * (z[c] - top)) / total : 0.0f); });
  }
};

// dx = scale * y (dy - <y, dy>)
template <class T>
struct SoftmaxBackward {
  const T* y;
  const float* dy;
  T* dx;
  int64_t columns;
  float scale;
  HEDDLE_ROW void operator()(int64_t r, const Row& row) const {
    const T* p = y + r * columns;
    const float* d = dy + r * columns;
    T* out = dx + r * columns;
    const float by = scale, mean = row.sum([=](int64_t c) { return to_float(p[c]) * d[c]; });
    row.each([=](int64_t c) { out[c] = T(by * to_float(p[c]) * (d[c] - mean)); });
  }
};

template <class T>
struct LayerNormForward {
  const T* x;
  const float *weight, *bias;
  float* statistics;
  T* y;
  int64_t columns;
  float eps;
  HEDDLE_ROW void operator()(int64_t r, const Row& row) const {
    const T* in = x + r * columns;
    T* out = y + r * columns;
    const float *w = weight, *b = bias, count = to_float(columns);
    const float mean = row.sum([=](int64_t c) { return to_float(in[c]); }) / count;
    const float variance = row.sum([=](int64_t c) {
      const float apart = to_float(in[c]) - mean;
      return apart * apart;
    }) / count;
    const float invstd = 1.0f / sqrtf(variance + eps);
    row.each([=](int64_t c) { out[c] = T((to_float(in[c]) - mean) * invstd * w[c] + b[c]); });
    if (!row.leads()) return;
    statistics[2 * r] = mean;
    statistics[2 * r + 1] = invstd;
  }
};

// With xhat = (x - mean) invstd and g = dy weight:  dx = invstd (g - mean(g) - xhat mean(g xhat)).
template <class T>
struct LayerNormBackward {
  const T* x;
  const float *statistics, *weight;
  const T* dy;
  float* products;
  T* dx;
  int64_t columns;
  HEDDLE_ROW void operator()(int64_t r, const Row& row) const {
    const T *in = x + r * columns, *d = dy + r * columns;
    T* out = dx == nullptr ? nullptr : dx + r * columns;
    float* product = products + r * columns;
    const float *w = weight, mean = statistics[2 * r], invstd = statistics[2 * r + 1];
    const float count = to_float(columns);
    const auto unit = [=](int64_t c) { return (to_float(in[c]) - mean) * invstd; };
    row.each([=](int64_t c) { product[c] = to_float(d[c]) * unit(c); });
    if (out == nullptr) return;
    const float even = row.sum([=](int64_t c) { return to_float(d[c]) * w[c]; }) / count;
    const float along = row.sum([=](int64_t c) { return to_float(d[c]) * w[c] * unit(c); }) / count;
    row.each(
        [=](int64_t c) { out[c] = T(invstd * (to_float(d[c]) * w[c] - even - unit(c) * along)); });
  }
};

template <class T>
struct PermuteHeads {
  const T* from;
  T* to;
  Heads n;
  bool merge;
  HEDDLE_HD void operator()(int64_t row, int64_t i) const {
    const int64_t h = row % n.heads, p = row / n.heads % n.parts;
    const int64_t b = row / (n.heads * n.parts) % n.batch, t = row / (n.heads * n.parts * n.batch);
    const int64_t split = ((p * n.batch + b) * n.heads + h) * n.steps + t;
    if (merge)
      to[row * n.width + i] = from[split * n.width + i];
    else
      to[split * n.width + i] = from[row * n.width + i];
  }
};

}  // namespace

void softmax_forward(const Tensor& x, float scale, int64_t causal, const Tensor& y) {
  const int64_t columns = x.shape()[1];
  with_type(y, [&]<class T>() {
    for_each_row(x.shape()[0], columns,
                 SoftmaxForward<T>{x.data<float>(), y.data<T>(), columns, causal, scale});
  });
}

void softmax_backward(const Tensor& y, const Tensor& dy, float scale, const Tensor& dx) {
  const int64_t columns = y.shape()[1];
  with_type(y, [&]<class T>() {
    for_each_row(y.shape()[0], columns,
                 SoftmaxBackward<T>{y.data<T>(), dy.data<float>(), dx.data<T>(), columns, scale});
  });
}

void layernorm_forward(const Tensor& x, const Tensor& weight, const Tensor& bias, float eps,
                       const Tensor& statistics, const Tensor& y) {
  const int64_t columns = x.shape()[1];
  with_type(x, [&]<class T>() {
    for_each_row(x.shape()[0], columns,
                 LayerNormForward<T>{x.data<T>(), weight.data<float>(), bias.data<float>(),
                                     statistics.data<float>(), y.data<T>(), columns, eps});
  });
}

void layernorm_backward(const Tensor& x, const Tensor& statistics, const Tensor& weight,
                        const Tensor& dy, const Tensor& products, const Tensor& dx) {
  const int64_t columns = x.shape()[1];
  with_type(x, [&]<class T>() {
    for_each_row(x.shape()[0], columns,
                 LayerNormBackward<T>{x.data<T>(), statistics.data<float>(), weight.data<float>(),
                                      dy.data<T>(), products.data<float>(),
                                      dx.defined() ? dx.data<T>() : nullptr, columns});
  });
}

void permute_heads(const Tensor& from, const Heads& heads, bool merge, const Tensor& to) {
  with_type(from, [&]<class T>() {
    for_each_in_grid(heads.steps * heads.batch * heads.parts * heads.heads, heads.width,
                     PermuteHeads<T>{from.data<T>(), to.data<T>(), heads, merge});
  });
}

}  // namespace heddle::HEDDLE_BACKEND
