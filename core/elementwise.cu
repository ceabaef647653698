// Elementwise kernels, shared between CPU and CUDA. Reductions differ: fixed chunks added in order
// on the CPU, one block per chunk on CUDA.
#include "core/elementwise.h"

#include <cmath>

#include "core/shared_kernel.h"
#ifdef __CUDACC__
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

struct Identity {
  HEDDLE_HD double operator()(float v) const { return v; }
};

struct Square {
  HEDDLE_HD double operator()(float v) const { return static_cast<double>(v) * v; }
};

struct NotFinite {
  HEDDLE_HD double operator()(float v) const { return v - v == 0.0f ? 0.0 : 1.0; }
};

#ifdef __CUDACC__
constexpr int kThreads = 256;

// Block b adds map(x[i]) over chunk b: in order within a thread, then as a tree over threads.
template <class Map>
__global__ void reduce_chunks(const float* x, int64_t n, int64_t chunk, double* partial, Map map) {
  __shared__ double sums[kThreads];
  const int64_t begin = blockIdx.x * chunk, end = begin + chunk < n ? begin + chunk : n;
  double s = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) s += map(x[i]);
  sums[threadIdx.x] = s;
  for (int half = kThreads / 2; half > 0; half /= 2) {
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
  reduce_chunks<<<static_cast<unsigned>(chunks), kThreads, 0, cuda_stream()>>>(x, n, kChunk, sums,
                                                                               map);
  std::vector<double> host(chunks);
  check_cuda(cudaMemcpyAsync(host.data(), sums, chunks * sizeof(double), cudaMemcpyDeviceToHost,
                             cuda_stream()),
             "reduce");
  check_cuda(cudaStreamSynchronize(cuda_stream()), "reduce");
  double total = 0;
  for (double s : host) total += s;
  return total;
}

// One thread per column; used for bias gradients, whose rows are few.
template <class T>
__global__ void sum_rows_kernel(const T* x, float* out, int64_t rows, int64_t columns, float beta) {
  const int64_t c = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (c >= columns) return;
  float s = 0;
  for (int64_t r = 0; r < rows; ++r) s += static_cast<float>(x[r * columns + c]);
  out[c] = (beta == 0.0f ? 0.0f : beta * out[c]) + s;
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

double sum(const float* x, int64_t n) { return reduce(x, n, Identity{}); }
double squared_norm(const float* x, int64_t n) { return reduce(x, n, Square{}); }
bool all_finite(const float* x, int64_t n) { return reduce(x, n, NotFinite{}) == 0.0; }

template <class T>
void sum_rows(const T* x, float* out, int64_t rows, int64_t columns, float beta) {
#ifdef __CUDACC__
  const unsigned blocks = static_cast<unsigned>((columns + kThreads - 1) / kThreads);
  sum_rows_kernel<<<blocks, kThreads, 0, cuda_stream()>>>(x, out, rows, columns, beta);
  check_cuda(cudaGetLastError(), "sum_rows");
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

#define HEDDLE_INSTANTIATE(T)                            \
  template void fill<T>(T*, int64_t, float);             \
  template void add<T>(const T*, const T*, T*, int64_t); \
  template void scale<T>(T*, int64_t, float);            \
  template void sum_rows<T>(const T*, float*, int64_t, int64_t, float);
HEDDLE_INSTANTIATE(float)
HEDDLE_INSTANTIATE(bfloat16)
#undef HEDDLE_INSTANTIATE
template void cast<float, bfloat16>(const float*, bfloat16*, int64_t);
template void cast<bfloat16, float>(const bfloat16*, float*, int64_t);

}  // namespace heddle::HEDDLE_BACKEND
