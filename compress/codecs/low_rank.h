// The steps of PowerSGD in which all ranks must come to the same bits: they add in a fixed order,
// whatever the machine and the number of threads. Factors lie with one column of the mathematics in
// a row of memory. In float, and in double for whoever wants to see what rounding does.
//
// And for tensors on either device; CUDA's sums have another order, the same at every call.
//
//   orthogonalize(p, r, n);                // p (r, n)
//   multiply_factors(p, q, out, n, m, r);  // q (r, m), out (n, m)
//   next_factor(q, ranks, r, m, next);     // next (r, m)
#pragma once

#include <cstdint>
#include <vector>

#include "core/tensor.h"

namespace heddle {

// Makes the rows of x (r, n), contiguous, orthonormal by Gram-Schmidt, each twice, with sums in
// double. A row that depends on the ones before it becomes zero or a direction of its rounding
// errors, orthogonal to the others.
template <class T>
void orthogonalize(T* x, int64_t r, int64_t n);

// out (rows, columns) = sum over i of p (r, rows)[i]^T q (r, columns)[i].
template <class T>
void multiply_factors(const T* p, const T* q, T* out, int64_t rows, int64_t columns, int64_t r);

// What the next step begins with: next (r, columns) = the mean over ranks of q, of which `sum` is
// the sum, with each row scaled by a power of two, to |x| that add up to between 1 and 2: a
// direction is all that the next step needs of it, and of a gradient near the largest numbers the
// product with both their sizes would overflow.
// A row of zeros, a direction in which there was nothing, stays what it was in next, to be tried
// again.
template <class T>
void next_factor(const T* sum, int ranks, int64_t r, int64_t columns, T* next);

// The same of f32 tensors: factors (r, n), those of many layers in one launch; p (r, rows), q (r,
// columns) and out of rows * columns; sum and next (r, columns).
#define HEDDLE_LOW_RANK                                                       \
  void orthogonalize(const std::vector<Tensor>& factors);                     \
  void multiply_factors(const Tensor& p, const Tensor& q, const Tensor& out); \
  void next_factor(const Tensor& sum, int ranks, const Tensor& next);
HEDDLE_BACKENDS(HEDDLE_LOW_RANK)
#undef HEDDLE_LOW_RANK

}  // namespace heddle
