// Elementwise layers: ReLU and dropout.
#pragma once

#include "core/tape.h"

namespace heddle {

// max(x, 0), any shape.
Var relu(Tape& tape, const Var& x);

// While training, each element is zeroed with probability p and the others are scaled by 1/(1-p)
// (Srivastava et al., 2014, inverted form). Keyed by (seed, step, operation, sample in the global
// batch, place within the sample), so independent of threads and of how the batch is split over
// learners. `batch_axis` is the axis that counts samples: 0, or 1 for (T, B, ...).
Var dropout(Tape& tape, const Var& x, float p, int batch_axis = 0);

struct DropoutKey {
  float p;
  uint64_t seed, step;
  int operation;  // of the step
  int64_t first;  // number of the first sample in the global batch
  int batch_axis;
  Tensor counters = {};  // where defined, step and first come from here: TapeOptions::counters
};

#define HEDDLE_ACTIVATION                                                  \
  void relu_forward(const Tensor& x, const Tensor& y);                     \
  void relu_backward(const Tensor& y, const Tensor& dy, const Tensor& dx); \
  void dropout_apply(const Tensor& x, const Tensor& y, const DropoutKey& key);
HEDDLE_BACKENDS(HEDDLE_ACTIVATION)
#undef HEDDLE_ACTIVATION

}  // namespace heddle
