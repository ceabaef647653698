// Tolerances for the same operation on two devices: ||a - b|| / ||b|| of the worst of its
// results. Sums of fp32 differ in order; bf16 rounds results to 2^-9, and gradients of several
// layers accumulate such errors. 0 marks code that is shared by both.
#pragma once

#include <string>

#include "core/error.h"
#include "core/tensor.h"

namespace heddle {

struct Tolerance {
  const char* operation;
  double f32, bf16;
};

inline double tolerance(const std::string& operation, DType dtype) {
  static constexpr Tolerance kTable[] = {
      {"elementwise", 0, 0},
      {"reductions", 1e-5, 1e-5},
      {"gemm", 2e-6, 4e-3},
      {"convolution", 1e-5, 1e-2},
      {"transposed convolution", 1e-5, 1e-2},
      {"leaky relu", 2e-6, 4e-3},
      {"sigmoid", 2e-6, 4e-3},
      {"tanh", 2e-6, 4e-3},
      {"gelu", 2e-6, 4e-3},
      {"softmax", 4e-6, 8e-3},
      {"concat", 0, 0},
      {"losses of pairs", 2e-6, 2e-6},
      {"batch norm", 2e-5, 1e-2},
      {"pooling", 1e-6, 8e-3},
      {"linear", 5e-6, 1e-2},
      {"embedding", 1e-6, 1e-6},
      {"dropout", 0, 0},
      {"augmentation", 0, 0},
      {"lstm", 2e-5, 2e-2},
      {"gru", 2e-5, 2e-2},
      {"layer norm", 1e-5, 2e-2},
      {"attention", 1e-5, 2e-2},
      {"cross-entropy", 2e-6, 2e-6},
      {"update", 2e-6, 2e-6},
      {"exchange", 0, 0},
      {"exchange of factors", 1e-5, 1e-5},
      {"learners", 1e-5, 1e-5},
      {"peers", 1e-5, 1e-5},
      {"resnet step", 1e-3, 1.5e-1},
      {"language model step", 1e-4, 5e-2},
  };
  for (const Tolerance& t : kTable)
    if (t.operation == operation) return dtype == DType::f32 ? t.f32 : t.bf16;
  throw Error("no tolerance for " + operation);
}

}  // namespace heddle
