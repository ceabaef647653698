#include "compress/low_rank.h"

#include <algorithm>
#include <cmath>

#include "core/parallel.h"

namespace heddle {
namespace {

double dot(const float* a, const float* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

}  // namespace

void orthogonalize(float* x, int64_t r, int64_t n) {
  for (int64_t j = 0; j < r; ++j) {
    float* row = x + j * n;
    for (int round = 0; round < 2; ++round) {
      for (int64_t k = 0; k < j; ++k) {
        const float* other = x + k * n;
        const double share = dot(row, other, n);
        for (int64_t i = 0; i < n; ++i) row[i] = static_cast<float>(row[i] - share * other[i]);
      }
      const double norm = std::sqrt(dot(row, row, n));
      const double least = round == 0 ? 0 : 0.5;  // less of a unit row: it had no direction left
      const double factor = norm > least ? 1 / norm : 0;
      for (int64_t i = 0; i < n; ++i) row[i] = static_cast<float>(row[i] * factor);
    }
  }
}

void multiply_factors(const float* p, const float* q, float* out, int64_t rows, int64_t columns,
                      int64_t r) {
  parallel_for(rows, std::max<int64_t>(1, 8192 / columns), [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float* row = out + i * columns;
      std::fill_n(row, columns, 0.0f);
      for (int64_t k = 0; k < r; ++k) {
        const float factor = p[k * rows + i];
        const float* other = q + k * columns;
#pragma omp simd
        for (int64_t j = 0; j < columns; ++j) row[j] += factor * other[j];
      }
    }
  });
}

}  // namespace heddle
