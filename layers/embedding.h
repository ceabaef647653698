// Embedding: a row of a matrix for each token. The gradient is dense in the flat buffer, but only
// the rows of tokens that occurred differ from zero; on the CPU Parameter::touched_rows lists
// them, so that only they are cleared and, where the update rule leaves a weight without gradient
// unchanged, updated.
//
//   Var x = embedding(tape, window.inputs, *encoder);   // (T, B) -> (T, B, E)
#pragma once

#include <cstdint>
#include <string>

#include "core/tape.h"

namespace heddle {

// tokens i32, any shape, each in [0, V); weight (V, E) -> (tokens' shape, E), f32 or bf16. A
// token's gradients are added in the order of its positions, so the sum is the same on every device
// and for every thread count. Throws InputError for a token that is not in the vocabulary,
// except on a GPU: check those before they are copied there.
Var embedding(Tape& tape, const Tensor& tokens, Parameter& weight, DType dtype = DType::f32);

}  // namespace heddle
