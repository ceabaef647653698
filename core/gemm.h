// General matrix multiplication on both devices: oneDNN on the CPU, cuBLAS on CUDA.
#pragma once

#include "core/tensor.h"

namespace heddle {

struct GemmOptions {
  bool transpose_a = false, transpose_b = false;
  float alpha = 1.0f;  // bf16: 1 only
  float beta = 0.0f;   // 0 overwrites c, even NaN
};

// Computes c = alpha * op(a) * op(b) + beta * c.  op(a) (M, K), op(b) (K, N), c (M, N), plain. a
// and b are both f32 (then c too) or both bf16 (then c is f32 or bf16; sums are fp32). Throws
// InputError for shapes and types that do not fit.
void gemm(const Tensor& a, const Tensor& b, const Tensor& c, const GemmOptions& options = {});

// Computes c = a * op(b) + bias in each row.  bias (N) and c f32, the others as above.
void gemm_with_bias(const Tensor& a, const Tensor& b, bool transpose_b, const Tensor& bias,
                    const Tensor& c);

#ifdef HEDDLE_CUDA
namespace cuda {
// Does the same by cuBLASLt; returns false where that does not support the product.
bool gemm_with_bias(const Tensor& a, const Tensor& b, bool transpose_b, const Tensor& bias,
                    const Tensor& c);
// Does what gemm() does; where the Context may tune, by the fastest of cuBLASLt's algorithms and
// gemm(), which are timed when a product of these extents is first computed. Shapes and types are
// those of gemm() and are not always checked. Only one thread of a Context may call it. Throws
// Error where cuBLAS fails.
void fastest_gemm(const Tensor& a, const Tensor& b, const Tensor& c,
                  const GemmOptions& options = {});
}  // namespace cuda
#endif

// op(b) in the order in which products with an (M, K) matrix read it, for a matrix that many small
// products share (the recurrent weights of one pass). On CUDA the matrix itself.
class PackedMatrix {
 public:
  // b (K, N) or transposed, f32; `dtype`, f32 or bf16: the type in which products are computed, and
  // that of their a.
  PackedMatrix(const Tensor& b, bool transpose, int64_t m, DType dtype, float beta);
  // Computes c = a * op(b) + beta * c.  a (M, K) of `dtype`, c (M, N) f32.
  void multiply(const Tensor& a, const Tensor& c) const;

 private:
  int64_t m_, n_, k_;
  bool transpose_;
  DType dtype_;
  float beta_;
  Tensor data_;
};

}  // namespace heddle
