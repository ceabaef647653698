// Elementwise layers: ReLU, addition, dropout, and the flattening of maps.
#pragma once

#include "core/tape.h"

namespace heddle {

// max(x, 0), any shape.
Var relu(Tape& tape, const Var& x);

// a + b of equal shape, type and layout.
Var add(Tape& tape, const Var& a, const Var& b);

// While training, each element is zeroed with probability p and the others are scaled by 1/(1-p)
// (Srivastava et al., 2014, inverted form). Keyed by (seed, step, operation, index in the global
// batch), so independent of threads and of how the batch is split over learners.
Var dropout(Tape& tape, const Var& x, float p);

// (N, C, H, W) -> (N, C*H*W) in logical order.
Var flatten(Tape& tape, const Var& x);

#define HEDDLE_ACTIVATION                                                                       \
  void relu_forward(const Tensor& x, const Tensor& y);                                          \
  void relu_backward(const Tensor& y, const Tensor& dy, const Tensor& dx);                      \
  void dropout_apply(const Tensor& x, const Tensor& y, float p, uint64_t seed, uint64_t stream, \
                     int64_t first);
namespace cpu {
HEDDLE_ACTIVATION
}
#ifdef HEDDLE_CUDA
namespace cuda {
HEDDLE_ACTIVATION
}
#endif
#undef HEDDLE_ACTIVATION

}  // namespace heddle
