// Elementwise kernels, shared between CPU and CUDA, and reductions, which differ: the CPU adds
// fixed chunks in order, CUDA has one block per chunk.
#include "core/elementwise.h"

#include <cmath>

#include "core/shared_kernel.h"
#ifdef HEDDLE_GPU
#include <vector>

#include "core/block_reduce.cuh"
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
  HEDDLE_HD void operator()(int64_t i) const { out[i] = T(to_float(a[i]) + to_float(b[i])); }
};

template <class T>
struct Scale {
  T* x;
  float factor;
  HEDDLE_HD void operator()(int64_t i) const { x[i] = T(to_float(x[i]) * factor); }
};

template <class From, class To>
struct Cast {
  const From* src;
  To* dst;
  HEDDLE_HD void operator()(int64_t i) const { dst[i] = To(to_float(src[i])); }
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
    x[r * columns + c] = T(to_float(x[r * columns + c]) + row[c]);
  }
};

#ifdef HEDDLE_GPU
// dst (N, columns, rows) = src (N, rows, columns) + beta * dst.
template <class From, class To>
struct Transpose {
  const From* src;
  To* dst;
  int64_t rows, columns;
  float beta;
  HEDDLE_HD void operator()(int64_t i) const {
    const int64_t r = i % rows, c = i / rows % columns, n = i / rows / columns;
    const float value = to_float(src[(n * rows + r) * columns + c]);
    dst[i] = To(beta == 0.0f ? value : beta * to_float(dst[i]) + value);
  }
};
#endif

struct Identity {
  HEDDLE_HD double operator()(float v) const { return v; }
};

struct Square {
  HEDDLE_HD double operator()(float v) const { return to_double(v) * v; }
};

struct NotFinite {
  HEDDLE_HD double operator()(float v) const { return v - v == 0.0f ? 0.0 : 1.0; }
};

#ifdef HEDDLE_GPU
constexpr int kThreads = 256;

// Adds map(x[i]) over chunk b in block b: in order within a thread, then as a tree over threads.
template <class Map>
__global__ void reduce_chunks(const float* x, int64_t n, int64_t chunk, double* partial, Map map) {
  __shared__ double scratch[kThreads];
  const int64_t begin = blockIdx.x * chunk, end = begin + chunk < n ? begin + chunk : n;
  double s = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) s += map(x[i]);
  s = block_reduce(s, Plus(), scratch);
  if (threadIdx.x == 0) partial[blockIdx.x] = s;
}

template <class Map>
double reduce(const Tensor& tensor, Map map) {
  const float* x = tensor.data<float>();
  const int64_t n = tensor.size();
  if (n == 0) return 0;
  constexpr int64_t kChunk = 65536;
  const int64_t chunks = ceil_div(n, kChunk);
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

// Adds, in block (i, k), part k of the rows of strip i of the columns: each thread every kSlices-th
// row, then the slices in order. The sums of part k go to row k of out.
constexpr int kStrip = 32, kSlices = 16;

template <class T>
__global__ void sum_rows_kernel(const T* x, float* out, int64_t rows, int64_t columns, int64_t part,
                                float beta) {
  __shared__ float scratch[kSlices][kStrip];
  const int64_t c = blockIdx.x * to_int64(kStrip) + threadIdx.x;
  const int64_t begin = blockIdx.y * part, end = begin + part < rows ? begin + part : rows;
  float s = 0;
  if (c < columns)
    for (int64_t r = begin + threadIdx.y; r < end; r += kSlices) s += to_float(x[r * columns + c]);
  s = sum_column(s, scratch);
  if (threadIdx.y > 0 || c >= columns) return;
  float* to = out + blockIdx.y * columns + c;
  *to = accumulate(beta, *to, s);
}

struct Parts {
  int64_t rows, columns, parts;
};

template <class T>
void sum_parts(const T* x, float* out, const Parts& p, float beta) {
  const auto strips = static_cast<unsigned>(ceil_div(p.columns, kStrip));
  launch("sum_rows", sum_rows_kernel<T>, dim3(strips, static_cast<unsigned>(p.parts)),
         dim3(kStrip, kSlices), x, out, p.rows, p.columns, ceil_div(p.rows, p.parts), beta);
}
#else
template <class Map>
double reduce(const Tensor& tensor, Map map) {
  return parallel_reduce(tensor.size(), 0.0,
                         [x = tensor.data<float>(), map](int64_t begin, int64_t end) {
                           const float* from = x;  // a capture in the loop costs GCC gathers
                           const Map each = map;
                           double s = 0;
#pragma omp simd reduction(+ : s)
                           for (int64_t i = begin; i < end; ++i) s += each(from[i]);
                           return s;
                         });
}
#endif

}  // namespace

void fill(const Tensor& x, float value) {
  with_type(x, [&]<class T>() { for_each(x.size(), Fill<T>{x.data<T>(), T(value)}); });
}

void add(const Tensor& a, const Tensor& b, const Tensor& out) {
  with_type(a, [&]<class T>() {
    for_each(a.size(), Add<T>{a.data<T>(), b.data<T>(), out.data<T>()});
  });
}

void scale(const Tensor& x, float factor) {
  with_type(x, [&]<class T>() { for_each(x.size(), Scale<T>{x.data<T>(), factor}); });
}

void cast(const Tensor& src, const Tensor& dst) {
  with_types(src, dst, [&]<class From, class To>() {
    for_each(src.size(), Cast<From, To>{src.data<From>(), dst.data<To>()});
  });
}

void axpy(float alpha, const Tensor& x, const Tensor& y) {
  for_each(x.size(), Axpy{alpha, x.data<float>(), y.data<float>()});
}

void repeat_row(const Tensor& row, const Tensor& out) {
  const int64_t rows = out.shape()[0], columns = out.shape()[1];
  for_each_in_grid(rows, columns, RepeatRow{row.data<float>(), out.data<float>(), columns});
}

void add_row(const Tensor& row, const Tensor& x) {
  const int64_t rows = x.shape()[0], columns = x.shape()[1];
  with_type(x, [&]<class T>() {
    for_each_in_grid(rows, columns, AddRow<T>{row.data<float>(), x.data<T>(), columns});
  });
}

double sum(const Tensor& x) { return reduce(x, Identity{}); }
double squared_norm(const Tensor& x) { return reduce(x, Square{}); }
bool all_finite(const Tensor& x) { return reduce(x, NotFinite{}) == 0.0; }

#ifdef HEDDLE_GPU
void sum_rows(const Tensor& x, const Tensor& out, float beta) {
  const int64_t rows = x.shape()[0], columns = x.shape()[1];
  if (columns == 0) return;
  // Long columns are cut into as many parts as keep a GPU busy; the parts' sums are added last.
  const int64_t strips = ceil_div(columns, kStrip);
  const int64_t parts = std::clamp<int64_t>(rows / 256, 1, std::max<int64_t>(1, 512 / strips));
  with_type(x, [&]<class T>() {
    if (parts == 1) return sum_parts(x.data<T>(), out.data<float>(), {rows, columns, 1}, beta);
    const Tensor partial = Tensor::empty({parts, columns});
    sum_parts(x.data<T>(), partial.data<float>(), {rows, columns, parts}, 0.0f);
    sum_parts(partial.data<float>(), out.data<float>(), {parts, columns, 1}, beta);
  });
}

void reorder(const Tensor& src, const Tensor& dst, float beta) {
  const int64_t channels = src.shape()[1], pixels = src.shape()[2] * src.shape()[3];
  const bool from_nhwc = src.layout() == Layout::nhwc;
  const int64_t rows = from_nhwc ? pixels : channels, columns = from_nhwc ? channels : pixels;
  with_types(src, dst, [&]<class From, class To>() {
    for_each(src.size(),
             Transpose<From, To>{src.data<From>(), dst.data<To>(), rows, columns, beta});
  });
}
#else
void sum_rows(const Tensor& x, const Tensor& out, float beta) {
  const int64_t rows = x.shape()[0], columns = x.shape()[1];
  float* sums = out.data<float>();
  with_type(x, [&]<class T>() {
    parallel_for(columns, 64, [=, from = x.data<T>()](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) sums[c] = beta == 0.0f ? 0.0f : beta * sums[c];
      for (int64_t r = 0; r < rows; ++r) {
        const T* row = from + r * columns;
#pragma omp simd
        for (int64_t c = begin; c < end; ++c) sums[c] += to_float(row[c]);
      }
    });
  });
}
#endif

}  // namespace heddle::HEDDLE_BACKEND
