// The steps of PowerSGD in which all ranks must compute the same bits: they add in a fixed order,
// whatever the machine and the number of threads. Each column of a factor is stored as a row.
// Tensors are f32 and contiguous; the functions of cuda add in a different order from those of cpu,
// the same in every call. Arguments are not checked. Internal to compress and its tests.
//
//   cpu::orthogonalize({p});           // p (r, n)
//   cpu::multiply_factors(p, q, out);  // out = p^T q
//   cpu::next_factor(q, ranks, next);
#pragma once

#include <vector>

#include "core/tensor.h"

namespace heddle {

// orthogonalize: makes the rows of each factor (r, n) orthonormal by Gram-Schmidt, each twice, with
//   sums in double. A row that depends on earlier ones becomes zero or a direction of its rounding
//   errors, orthogonal to the others.
// multiply_factors: out (rows * columns) = sum over i of p (r, rows)[i]^T q (r, columns)[i].
// next_factor: writes the factor that the next step begins with: next (r, columns) = the mean over
//   ranks of q, whose sum is `sum`, each row scaled by a power of two so that its |x| add up to
//   between 1 and 2: the next step needs only a direction, and the product of two large factors
//   could overflow. A row whose sum is zero found nothing in its direction; it stays as it was, to
//   be tried again.
namespace cpu {
void orthogonalize(const std::vector<Tensor>& factors);
void multiply_factors(const Tensor& p, const Tensor& q, const Tensor& out);
void next_factor(const Tensor& sum, int ranks, const Tensor& next);
}  // namespace cpu

namespace cuda {
void orthogonalize(const std::vector<Tensor>& factors);
void multiply_factors(const Tensor& p, const Tensor& q, const Tensor& out);
void next_factor(const Tensor& sum, int ranks, const Tensor& next);
}  // namespace cuda

}  // namespace heddle
