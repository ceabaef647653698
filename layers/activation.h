// Elementwise layers: ReLU, leaky ReLU, sigmoid, tanh, GELU, the sum of two inputs, and dropout;
// and softmax.
#pragma once

#include "core/tape.h"

namespace heddle {

// Returns max(x, 0), for any shape; f32 or bf16, NaN stays NaN.
Var relu(Tape& tape, const Var& x);
// Returns x where x > 0, else slope * x (Maas et al., 2013); shapes and types as for relu(). The
// gradient at 0 is slope. Throws InputError for a slope that is negative or NaN.
Var leaky_relu(Tape& tape, const Var& x, float slope = 0.01f);
// Returns 1 / (1 + e^-x); shapes and types as for relu().
Var sigmoid(Tape& tape, const Var& x);
// Returns tanh x; shapes and types as for relu().
Var tanh(Tape& tape, const Var& x);
// Returns x times the share of the standard normal distribution that is below x, by erf (Hendrycks
// and Gimpel, 2016); shapes and types as for relu().
Var gelu(Tape& tape, const Var& x);
// x (..., C) f32 or bf16 -> e^x / sum of e^x over the last axis, computed in f32, in plain layout.
// Throws InputError for a scalar and for no columns.
Var softmax(Tape& tape, const Var& x);
// Returns a + b of equal shape, type and layout.
Var add(Tape& tape, const Var& a, const Var& b);

// Zeroes each element with probability p and scales the others by 1/(1-p) while training, else
// returns x (Srivastava et al., 2014, inverted form). The mask is keyed by (seed, step, operation,
// sample in the global batch, index within the sample), so it does not depend on the number of
// threads or on how the batch is split over learners. `batch_axis` is the axis that counts samples:
// 0, or 1 for (T, B, ...).
// Throws InputError for a probability outside [0, 1), for an axis that x does not have, for more
// than 256 of them in a pass and, while training, for a Tape without a step.
Var dropout(Tape& tape, const Var& x, float p, int batch_axis = 0);

}  // namespace heddle
