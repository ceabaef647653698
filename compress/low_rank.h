// The two steps of PowerSGD in which all ranks must come to the same bits: both add in a fixed
// order, whatever the machine and the number of threads. Factors lie with one column of the
// mathematics in a row of memory.
//
//   orthogonalize(p, r, n);                // p (r, n), q (r, m)
//   multiply_factors(p, q, out, n, m, r);  // (n, m)
#pragma once

#include <cstdint>

namespace heddle {

// Makes the rows of x (r, n) f32, contiguous, orthonormal by Gram-Schmidt, each twice, with sums in
// double. A row that depends on the ones before it becomes zero or a direction of its rounding
// errors, orthogonal to the others.
void orthogonalize(float* x, int64_t r, int64_t n);

// out (rows, columns) = sum over i of p (r, rows)[i]^T q (r, columns)[i].
void multiply_factors(const float* p, const float* q, float* out, int64_t rows, int64_t columns,
                      int64_t r);

}  // namespace heddle
