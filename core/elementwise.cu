// Elementwise kernels, shared between CPU and CUDA. Reductions differ: fixed chunks added in order
// on the CPU, one block per chunk on CUDA.
#include "core/elementwise.h"

#include <cmath>

#include "core/shared_kernel.h"
#ifdef HEDDLE_GPU
#include <vector>

#include "core/tensor.h"
#endif

namespace heddle::HEDDLE_BACKEND {
namespace {

template <class T>
struct Fill {
  T* x;
  T value;
  HEDDLE_HD void operator()(int64_t i) const { x[i] = value; }
};

template <class T>
struct Add {
  const T* a;
  const T* b;
  T* out;
  HEDDLE_HD void operator()(int64_t i) const {
    out[i] = T(static_cast<float>(a[i]) + static_cast<float>(b[i]));
  }
};

template <class T>
struct Scale {
  T* x;
  float factor;
  HEDDLE_HD void operator()(int64_t i) const { x[i] = T(static_cast<float>(x[i]) * factor); }
};

template <class From, class To>
struct Cast {
  const From* src;
  To* dst;
  HEDDLE_HD void operator()(int64_t i) const { dst[i] = To(static_cast<float>(src[i])); }
};

struct Axpy {
  float alpha;
  const float* x;
  float* y;
  HEDDLE_HD void operator()(int64_t i) const { y[i] += alpha * x[i]; }
};

struct RepeatRow {
  const float* row;
  float* out;
  int64_t columns;
  HEDDLE_HD void operator()(int64_t r, int64_t c) const { out[r * columns + c] = row[c]; }
};

template <class T>
struct AddRow {
  const float* row;
  T* x;
  int64_t columns;
  HEDDLE_HD void operator()(int64_t r, int64_t c) const {
    x[r * columns + c] = T(static_cast<float>(x[r * columns + c]) + row[c]);
  }
};

template <class From, class To>
struct ToNhwc {
  const From* src;
  To* dst;
  int64_t channels, pixels;
  HEDDLE_HD void operator()(int64_t i) const {
    const int64_t c = i % channels, p = i / channels % pixels, n = i / channels / pixels;
    dst[i] = To(static_cast<float>(src[(n * channels + c) * pixels + p]));
  }
};

template <class From, class To>
struct FromNhwc {
  const From* src;
  To* dst;
  int64_t channels, pixels;
  float beta;
  HEDDLE_HD void operator()(int64_t i) const {
    const int64_t p = i % pixels, c = i / pixels % channels, n = i / pixels / channels;
    const float value = static_cast<float>(src[(n * pixels + p) * channels + c]);
    dst[i] = To(beta == 0.0f ? value : beta * static_cast<float>(dst[i]) + value);
  }
};

struct Identity {
  HEDDLE_HD double operator()(float v) const { return v; }
};

struct Square {
  HEDDLE_HD double operator()(float v) const { return static_cast<double>(v) * v; }
};

struct NotFinite {
  HEDDLE_HD double operator()(float v) const { return v - v == 0.0f ? 0.0 : 1.0; }
};

#ifdef HEDDLE_GPU
constexpr int kThreads = 256;

// Block b adds map(x[i]) over chunk b: in order within a thread, then as a tree over threads.
template <class Map>
__global__ void reduce_chunks(const float* x, int64_t n, int64_t chunk, double* partial, Map map) {
  __shared__ double sums[kThreads];
  const int64_t begin = blockIdx.x * chunk, end = begin + chunk < n ? begin + chunk : n;
  double s = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) s += map(x[i]);
  sums[threadIdx.x] = s;
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0) partial[blockIdx.x] = sums[0];
}

template <class Map>
double reduce(const float* x, int64_t n, Map map) {
  if (n == 0) return 0;
  constexpr int64_t kChunk = 65536;
  const int64_t chunks = (n + kChunk - 1) / kChunk;
  Tensor partial = Tensor::empty({chunks}, DType::i64);  // eight bytes per chunk, used as doubles
  double* sums = static_cast<double*>(partial.raw());
  launch("reduce", reduce_chunks<Map>, static_cast<unsigned>(chunks), kThreads, x, n, kChunk, sums,
         map);
  std::vector<double> host(chunks);
  fetch(host.data(), sums, chunks * sizeof(double));
  double total = 0;
  for (double s : host) total += s;
  return total;
}

// Block (i, k) adds the k-th part of the rows of kStrip columns: each thread every kSlices-th row,
// then the slices in order. The sums of part k go to row k of out.
constexpr int kStrip = 32, kSlices = 16;

template <class T>
__global__ void sum_rows_kernel(const T* x, float* out, int64_t rows, int64_t columns, int64_t part,
                                float beta) {
  __shared__ float sums[kSlices][kStrip];
  const int64_t c = blockIdx.x * static_cast<int64_t>(kStrip) + threadIdx.x;
  const int64_t begin = blockIdx.y * part, end = begin + part < rows ? begin + part : rows;
  float s = 0;
  if (c < columns)
    for (int64_t r = begin + threadIdx.y; r < end; r += kSlices)
      s += static_cast<float>(x[r * columns + c]);
  sums[threadIdx.y][threadIdx.x] = s;
  __syncthreads();
  if (threadIdx.y > 0 || c >= columns) return;
  for (int k = 1; k < kSlices; ++k) s += sums[k][threadIdx.x];
  float* to = out + blockIdx.y * columns + c;
  *to = (beta == 0.0f ? 0.0f : beta * *to) + s;
}

template <class T>
void sum_parts(const T* x, float* out, int64_t rows, int64_t columns, int64_t parts, float beta) {
  const auto strips = static_cast<unsigned>((columns + kStrip - 1) / kStrip);
  launch("sum_rows", sum_rows_kernel<T>, dim3(strips, static_cast<unsigned>(parts)),
         dim3(kStrip, kSlices), x, out, rows, columns, (rows + parts - 1) / parts, beta);
}
#else
template <class Map>
double reduce(const float* x, int64_t n, Map map) {
  return parallel_reduce(n, 0.0, [x, map](int64_t begin, int64_t end) {
    double s = 0;
#pragma omp simd reduction(+ : s)
    for (int64_t i = begin; i < end; ++i) s += map(x[i]);
    return s;
  });
}
#endif

}  // namespace

template <class T>
void fill(T* x, int64_t n, float value) {
  for_each(n, Fill<T>{x, T(value)});
}

template <class T>
void add(const T* a, const T* b, T* out, int64_t n) {
  for_each(n, Add<T>{a, b, out});
}

template <class T>
void scale(T* x, int64_t n, float factor) {
  for_each(n, Scale<T>{x, factor});
}

template <class From, class To>
void cast(const From* src, To* dst, int64_t n) {
  for_each(n, Cast<From, To>{src, dst});
}

void axpy(float alpha, const float* x, float* y, int64_t n) { for_each(n, Axpy{alpha, x, y}); }

void repeat_row(const float* row, float* out, int64_t rows, int64_t columns) {
  for_each_in_grid(rows, columns, RepeatRow{row, out, columns});
}

template <class T>
void add_row(const float* row, T* x, int64_t rows, int64_t columns) {
  for_each_in_grid(rows, columns, AddRow<T>{row, x, columns});
}

template <class From, class To>
void to_nhwc(const From* src, To* dst, int64_t images, int64_t channels, int64_t pixels) {
  for_each(images * channels * pixels, ToNhwc<From, To>{src, dst, channels, pixels});
}

template <class From, class To>
void from_nhwc(const From* src, To* dst, int64_t images, int64_t channels, int64_t pixels,
               float beta) {
  for_each(images * channels * pixels, FromNhwc<From, To>{src, dst, channels, pixels, beta});
}

double sum(const float* x, int64_t n) { return reduce(x, n, Identity{}); }
double squared_norm(const float* x, int64_t n) { return reduce(x, n, Square{}); }
bool all_finite(const float* x, int64_t n) { return reduce(x, n, NotFinite{}) == 0.0; }

template <class T>
void sum_rows(const T* x, float* out, int64_t rows, int64_t columns, float beta) {
#ifdef HEDDLE_GPU
  if (columns == 0) return;
  // Long columns are cut into parts, as many as keep a GPU busy, whose sums are then added.
  const int64_t strips = (columns + kStrip - 1) / kStrip;
  const int64_t parts = std::clamp<int64_t>(rows / 256, 1, std::max<int64_t>(1, 512 / strips));
  if (parts == 1) return sum_parts(x, out, rows, columns, 1, beta);
  const Tensor partial = Tensor::empty({parts, columns});
  sum_parts(x, partial.data<float>(), rows, columns, parts, 0.0f);
  sum_parts(partial.data<float>(), out, parts, columns, 1, beta);
#else
  parallel_for(columns, 64, [=](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) out[c] = beta == 0.0f ? 0.0f : beta * out[c];
    for (int64_t r = 0; r < rows; ++r) {
      const T* row = x + r * columns;
#pragma omp simd
      for (int64_t c = begin; c < end; ++c) out[c] += static_cast<float>(row[c]);
    }
  });
#endif
}

#define HEDDLE_INSTANTIATE(T)                                                                  \
  template void add_row<T>(const float*, T*, int64_t, int64_t);                                \
  template void to_nhwc<T, float>(const T*, float*, int64_t, int64_t, int64_t);                \
  template void to_nhwc<T, bfloat16>(const T*, bfloat16*, int64_t, int64_t, int64_t);          \
  template void from_nhwc<T, float>(const T*, float*, int64_t, int64_t, int64_t, float);       \
  template void from_nhwc<T, bfloat16>(const T*, bfloat16*, int64_t, int64_t, int64_t, float); \
  template void fill<T>(T*, int64_t, float);                                                   \
  template void add<T>(const T*, const T*, T*, int64_t);                                       \
  template void scale<T>(T*, int64_t, float);                                                  \
  template void sum_rows<T>(const T*, float*, int64_t, int64_t, float);
HEDDLE_INSTANTIATE(float)
HEDDLE_INSTANTIATE(bfloat16)
#undef HEDDLE_INSTANTIATE
template void cast<float, bfloat16>(const float*, bfloat16*, int64_t);
template void cast<bfloat16, float>(const bfloat16*, float*, int64_t);

}  // namespace heddle::HEDDLE_BACKEND
