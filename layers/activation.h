// Elementwise layers: ReLU and dropout.
#pragma once

#include "core/tape.h"

namespace heddle {

// max(x, 0), any shape.
Var relu(Tape& tape, const Var& x);

// While training, each element is zeroed with probability p and the others are scaled by 1/(1-p)
// (Srivastava et al., 2014, inverted form). Keyed by (seed, step, operation, sample in the global
// batch, index within the sample), so independent of threads and of how the batch is split over
// learners. `batch_axis` is the axis that counts samples: 0, or 1 for (T, B, ...).
Var dropout(Tape& tape, const Var& x, float p, int batch_axis = 0);

}  // namespace heddle
