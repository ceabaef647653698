#include "compress/codecs/low_rank.h"

#include <algorithm>
#include <cmath>

#include "core/parallel.h"

namespace heddle {
namespace {

template <class T>
double dot(const T* a, const T* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

}  // namespace

template <class T>
void orthogonalize(T* x, int64_t r, int64_t n) {
  for (int64_t j = 0; j < r; ++j) {
    T* row = x + j * n;
    for (int round = 0; round < 2; ++round) {
      for (int64_t k = 0; k < j; ++k) {
        const T* other = x + k * n;
        const double share = dot(row, other, n);
        for (int64_t i = 0; i < n; ++i) row[i] = static_cast<T>(row[i] - share * other[i]);
      }
      const double norm = std::sqrt(dot(row, row, n));
      const double least = round == 0 ? 0 : 0.5;  // less of a unit row: it had no direction left
      const double factor = norm > least ? 1 / norm : 0;
      for (int64_t i = 0; i < n; ++i) row[i] = static_cast<T>(row[i] * factor);
    }
  }
}

template <class T>
void multiply_factors(const T* p, const T* q, T* out, int64_t rows, int64_t columns, int64_t r) {
  parallel_for(rows, std::max<int64_t>(1, 8192 / columns), [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      T* row = out + i * columns;
      std::fill_n(row, columns, T{0});
      for (int64_t k = 0; k < r; ++k) {
        const T factor = p[k * rows + i];
        const T* other = q + k * columns;
#pragma omp simd
        for (int64_t j = 0; j < columns; ++j) row[j] += factor * other[j];
      }
    }
  });
}

template <class T>
void next_factor(const T* sum, int ranks, int64_t r, int64_t columns, T* next) {
  const auto share = static_cast<T>(1.0 / ranks);
  for (int64_t k = 0; k < r; ++k) {
    const T* row = sum + k * columns;
    double size = 0;
    for (int64_t j = 0; j < columns; ++j) size += std::abs(row[j]);
    if (size == 0) continue;
    const double power = std::ldexp(1, -std::ilogb(share * size));  // one of float could overflow
    for (int64_t j = 0; j < columns; ++j) next[k * columns + j] = T(share * row[j] * power);
  }
}

template void orthogonalize(float*, int64_t, int64_t);
template void orthogonalize(double*, int64_t, int64_t);
template void multiply_factors(const float*, const float*, float*, int64_t, int64_t, int64_t);
template void multiply_factors(const double*, const double*, double*, int64_t, int64_t, int64_t);
template void next_factor(const float*, int, int64_t, int64_t, float*);
template void next_factor(const double*, int, int64_t, int64_t, double*);

namespace cpu {

void orthogonalize(const std::vector<Tensor>& factors) {
  for (const Tensor& x : factors)
    heddle::orthogonalize(x.data<float>(), x.shape()[0], x.shape()[1]);
}

void multiply_factors(const Tensor& p, const Tensor& q, const Tensor& out) {
  heddle::multiply_factors(p.data<float>(), q.data<float>(), out.data<float>(), p.shape()[1],
                           q.shape()[1], p.shape()[0]);
}

void next_factor(const Tensor& sum, int ranks, const Tensor& next) {
  heddle::next_factor(sum.data<float>(), ranks, sum.shape()[0], sum.shape()[1], next.data<float>());
}

}  // namespace cpu

}  // namespace heddle
