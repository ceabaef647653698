// PowerSGD's steps, shared between CPU and CUDA: each factor or row is computed by a team, which is
// one thread on the CPU and one block of threads on CUDA. Sums are in double.
#include "compress/codecs/low_rank.h"

#include <algorithm>
#include <cmath>

#include "core/block_reduce.cuh"
#include "core/shared_kernel.h"

namespace heddle::HEDDLE_BACKEND {
namespace {

#ifdef HEDDLE_GPU
#define HEDDLE_TEAM __device__
constexpr int kTeam = 256;

struct Team {
  double (&scratch)[kTeam];
  HEDDLE_TEAM int64_t first() const { return threadIdx.x; }
  HEDDLE_TEAM double sum(double mine) const { return block_reduce(mine, Plus(), scratch); }
};

template <class Work>
__global__ void team_kernel(Work work) {
  __shared__ double scratch[kTeam];
  work(blockIdx.x, Team{scratch});
}

template <class Work>
void for_each_team(int64_t count, Work work) {
  launch("low rank", team_kernel<Work>, static_cast<unsigned>(count), kTeam, work);
}
#else
#define HEDDLE_TEAM
constexpr int kTeam = 1;

struct Team {
  static int64_t first() { return 0; }
  static double sum(double mine) { return mine; }
};

template <class Work>
void for_each_team(int64_t count, Work work) {
  for (int64_t i = 0; i < count; ++i) work(i, Team());
}
#endif

// Each member of a team adds every kTeam-th element.
HEDDLE_TEAM double dot(Team team, const float* a, const float* b, int64_t n) {
  double sum = 0;
  for (int64_t i = team.first(); i < n; i += kTeam) sum += static_cast<double>(a[i]) * b[i];
  return team.sum(sum);
}

struct Factor {
  float* x;  // (r, n)
  int64_t r, n;
};

struct Orthogonalize {
  const Factor* factors;
  HEDDLE_TEAM void operator()(int64_t which, Team team) const {
    const Factor f = factors[which];
    for (int64_t j = 0; j < f.r; ++j) {
      float* row = f.x + j * f.n;
      for (int round = 0; round < 2; ++round) {
        for (int64_t k = 0; k < j; ++k) {
          const float* other = f.x + k * f.n;
          const double share = dot(team, row, other, f.n);
          for (int64_t i = team.first(); i < f.n; i += kTeam)
            row[i] = static_cast<float>(row[i] - share * other[i]);
        }
        const double norm = sqrt(dot(team, row, row, f.n));
        const double least = round == 0 ? 0 : 0.5;  // of a unit row; less is rounding error
        const double factor = norm > least ? 1 / norm : 0;
        for (int64_t i = team.first(); i < f.n; i += kTeam)
          row[i] = static_cast<float>(row[i] * factor);
      }
    }
  }
};

struct NextFactor {
  const float* sum;
  float share;
  int64_t columns;
  float* next;
  HEDDLE_TEAM void operator()(int64_t which, Team team) const {
    const int64_t begin = which * columns;
    double mine = 0;
    for (int64_t i = team.first(); i < columns; i += kTeam) mine += fabs(sum[begin + i]);
    const double size = team.sum(mine);
    if (size == 0) return;
    const double power = ldexp(1.0, -ilogb(share * size));  // a float could overflow
    for (int64_t i = team.first(); i < columns; i += kTeam)
      next[begin + i] = static_cast<float>(share * sum[begin + i] * power);
  }
};

#ifdef HEDDLE_GPU
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

void multiply(const float* p, const float* q, float* out, int64_t rows, int64_t columns,
              int64_t r) {
  for_each_in_grid(rows, columns, Product{p, q, out, rows, columns, r});
}
#else
// Row by row, adding in the same order: a loop over columns vectorises.
void multiply(const float* p, const float* q, float* out, int64_t rows, int64_t columns,
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
#endif

}  // namespace

void orthogonalize(const std::vector<Tensor>& factors) {
  if (factors.empty()) return;
  std::vector<Factor> rows;
  rows.reserve(factors.size());
  for (const Tensor& x : factors) rows.push_back({x.data<float>(), x.shape()[0], x.shape()[1]});
  const Tensor table = upload(factors.front().device(), rows);
  for_each_team(std::ssize(rows), Orthogonalize{static_cast<const Factor*>(table.raw())});
}

void multiply_factors(const Tensor& p, const Tensor& q, const Tensor& out) {
  multiply(p.data<float>(), q.data<float>(), out.data<float>(), p.shape()[1], q.shape()[1],
           p.shape()[0]);
}

void next_factor(const Tensor& sum, int ranks, const Tensor& next) {
  for_each_team(sum.shape()[0], NextFactor{sum.data<float>(), static_cast<float>(1.0 / ranks),
                                           sum.shape()[1], next.data<float>()});
}

}  // namespace heddle::HEDDLE_BACKEND
