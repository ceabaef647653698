// General matrix multiplication on both devices: oneDNN on the CPU, cuBLAS on CUDA.
#pragma once

#include "core/tensor.h"

namespace heddle {

struct GemmOptions {
  bool transpose_a = false, transpose_b = false;
  float alpha = 1.0f;
  float beta = 0.0f;  // 0 overwrites c, whatever it held
};

// c = alpha * op(a) * op(b) + beta * c.  op(a) (M, K), op(b) (K, N), c (M, N); f32, plain.
void gemm(const Tensor& a, const Tensor& b, const Tensor& c, const GemmOptions& options = {});

}  // namespace heddle
