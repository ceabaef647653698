// PowerSGD's steps on CUDA. Sums are in double, each in one block of threads and in one order, so
// that all ranks come to the same bits, if none of them is on the CPU.
#include "compress/codecs/low_rank.h"

#include <cmath>

#include "core/shared_kernel.h"

namespace heddle::HEDDLE_BACKEND {
namespace {

constexpr int kSumThreads = 256;

struct Factor {
  float* x;  // (r, n)
  int64_t r, n;
};

// The sum over the threads of a block; all of them get it.
__device__ double block_sum(double value, double (&shared)[kSumThreads]) {
  const int thread = static_cast<int>(threadIdx.x);
  shared[thread] = value;
  for (int half = kSumThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (thread < half) shared[thread] += shared[thread + half];
  }
  __syncthreads();
  const double sum = shared[0];
  __syncthreads();  // before the next sum begins
  return sum;
}

__device__ double dot(const float* a, const float* b, int64_t n, double (&shared)[kSumThreads]) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < n; i += kSumThreads) sum += static_cast<double>(a[i]) * b[i];
  return block_sum(sum, shared);
}

// A block for each factor; a thread has the same elements of all its rows.
__global__ void orthogonalize_kernel(const Factor* factors) {
  __shared__ double shared[kSumThreads];
  const Factor f = factors[blockIdx.x];
  for (int64_t j = 0; j < f.r; ++j) {
    float* row = f.x + j * f.n;
    for (int round = 0; round < 2; ++round) {
      for (int64_t k = 0; k < j; ++k) {
        const float* other = f.x + k * f.n;
        const double share = dot(row, other, f.n, shared);
        for (int64_t i = threadIdx.x; i < f.n; i += kSumThreads)
          row[i] = static_cast<float>(row[i] - share * other[i]);
      }
      const double norm = sqrt(dot(row, row, f.n, shared));
      const double least = round == 0 ? 0 : 0.5;  // less of a unit row: it had no direction left
      const double factor = norm > least ? 1 / norm : 0;
      for (int64_t i = threadIdx.x; i < f.n; i += kSumThreads)
        row[i] = static_cast<float>(row[i] * factor);
    }
  }
}

struct Product {
  const float *p, *q;
  float* out;
  int64_t rows, columns, r;
  HEDDLE_HD void operator()(int64_t i, int64_t j) const {
    float sum = 0;
    for (int64_t k = 0; k < r; ++k) sum += p[k * rows + i] * q[k * columns + j];
    out[i * columns + j] = sum;
  }
};

// A block for each row.
__global__ void next_factor_kernel(const float* sum, float share, int64_t columns, float* next) {
  __shared__ double shared[kSumThreads];
  const int64_t begin = blockIdx.x * columns;
  double size = 0;
  for (int64_t i = threadIdx.x; i < columns; i += kSumThreads) size += fabs(sum[begin + i]);
  size = block_sum(size, shared);
  if (size == 0) return;
  const double power = ldexp(1.0, -ilogb(share * size));
  for (int64_t i = threadIdx.x; i < columns; i += kSumThreads)
    next[begin + i] = static_cast<float>(share * sum[begin + i] * power);
}

}  // namespace

void orthogonalize(const std::vector<Tensor>& factors) {
  if (factors.empty()) return;
  std::vector<Factor> rows;
  rows.reserve(factors.size());
  for (const Tensor& x : factors) rows.push_back({x.data<float>(), x.shape()[0], x.shape()[1]});
  const Tensor table = upload(factors.front().device(), rows);
  launch("orthogonalize", orthogonalize_kernel, static_cast<unsigned>(rows.size()), kSumThreads,
         static_cast<const Factor*>(table.raw()));
}

void multiply_factors(const Tensor& p, const Tensor& q, const Tensor& out) {
  const int64_t r = p.shape()[0], rows = p.shape()[1], columns = q.shape()[1];
  for_each_in_grid(rows, columns,
                   Product{p.data<float>(), q.data<float>(), out.data<float>(), rows, columns, r});
}

void next_factor(const Tensor& sum, int ranks, const Tensor& next) {
  launch("next factor", next_factor_kernel, static_cast<unsigned>(sum.shape()[0]), kSumThreads,
         sum.data<float>(), static_cast<float>(1.0 / ranks), sum.shape()[1], next.data<float>());
}

}  // namespace heddle::HEDDLE_BACKEND
