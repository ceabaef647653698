// The product of a sparse and a dense matrix, on CPU and CUDA; on the CPU row by row, so that the
// sums of a row stay in registers.
#include "core/shared_kernel.h"
#include "core/simd.h"
#include "layers/backend.h"

namespace heddle::HEDDLE_BACKEND {
namespace {

template <class T>
struct SparseProduct {
  const int32_t *starts, *columns;
  const float* weights;
  const T* x;
  T* y;
  int64_t width;
#ifdef HEDDLE_GPU
  HEDDLE_HD void operator()(int64_t r, int64_t c) const {
    float sum = 0;
    for (int32_t i = starts[r]; i < starts[r + 1]; ++i)
      sum += weights[i] * to_float(x[columns[i] * width + c]);
    y[r * width + c] = T(sum);
  }
#else
  // Computes V vectors of row r from column `begin` on, whose sums stay in registers.
  template <int V>
  void vectors(int64_t r, int64_t begin) const {
    using L = Lanes<16>;
    L::Vec sums[V] = {};
    for (int32_t i = starts[r]; i < starts[r + 1]; ++i) {
      const T* from = x + columns[i] * width + begin;
      HEDDLE_UNROLL
      for (int v = 0; v < V; ++v) sums[v] += weights[i] * L::load(from + 16 * v);
    }
    HEDDLE_UNROLL
    for (int v = 0; v < V; ++v) L::store(y + r * width + begin + 16 * v, sums[v]);
  }
  void last(int64_t r, int64_t begin) const {
    const int64_t n = width - begin;
    float sums[16] = {};
    for (int32_t i = starts[r]; i < starts[r + 1]; ++i) {
      const float weight = weights[i];
      const T* from = x + columns[i] * width + begin;
#pragma omp simd
      for (int64_t c = 0; c < n; ++c) sums[c] += weight * to_float(from[c]);
    }
    for (int64_t c = 0; c < n; ++c) y[r * width + begin + c] = T(sums[c]);
  }
  void operator()(int64_t r) const {
    int64_t c = 0;
    for (; c + 64 <= width; c += 64) vectors<4>(r, c);
    for (; c + 16 <= width; c += 16) vectors<1>(r, c);
    if (c < width) last(r, c);
  }
#endif
};

struct Transposed {
  const float* x;
  float* y;
  float beta;
  int64_t rows, columns;  // of y
  HEDDLE_HD void operator()(int64_t r, int64_t c) const {
    const float old = beta == 0 ? 0 : beta * y[r * columns + c];
    y[r * columns + c] = old + x[c * rows + r];
  }
};

}  // namespace

void add_transposed(const Tensor& x, float beta, const Tensor& y) {
  for_each_in_grid(y.shape()[0], y.shape()[1],
                   Transposed{x.data<float>(), y.data<float>(), beta, y.shape()[0], y.shape()[1]});
}

void sparse_matmul(const SparseMatrix& a, const Tensor& x, const Tensor& y) {
  const int64_t width = x.shape()[1];
  with_type(x, [&]<class T>() {
    const SparseProduct<T> product{a.starts().data<int32_t>(),
                                   a.columns().data<int32_t>(),
                                   a.weights().data<float>(),
                                   x.data<T>(),
                                   y.data<T>(),
                                   width};
#ifdef HEDDLE_GPU
    for_each_in_grid(a.rows(), width, product);
#else
    // In equal parts of the work: rows of a graph or of words differ by a factor of thousands.
    const int32_t* starts = product.starts;
    const int64_t rows = a.rows(), parts = ceil_div(rows, 16);
    const auto before = [&](int64_t r) { return starts[r] + r; };  // entries, and results
    const auto first = [&](int64_t part) {
      int64_t low = 0, high = rows;
      while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (before(middle) < before(rows) * part / parts)
          low = middle + 1;
        else
          high = middle;
      }
      return low;
    };
    parallel_for(parts, 1, [&](int64_t begin, int64_t end) {
      for (int64_t r = first(begin); r < first(end); ++r) product(r);
    });
#endif
  });
}

}  // namespace heddle::HEDDLE_BACKEND
