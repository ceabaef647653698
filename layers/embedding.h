// Embedding: a row of a matrix for each token. The gradient is dense in the flat buffer, but only
// the rows of tokens that occurred differ from zero; Parameter::touched_rows carries that to the
// clearing and, where the update rule leaves a weight without gradient alone, to the update.
//
//   Var x = embedding(tape, window.inputs, *encoder);   // (T, B) -> (T, B, E)
#pragma once

#include <cstdint>

#include "core/tape.h"

namespace heddle {

// tokens i32 on the host, any shape, each in [0, V); weight (V, E) -> (tokens' shape, E), f32 or
// bf16. A token's gradients are added in the order of their places, so the sum is the same on every
// device and for every thread count. Throws InputError for a token that is not in the vocabulary.
Var embedding(Tape& tape, const Tensor& tokens, Parameter& weight, DType dtype = DType::f32);

#define HEDDLE_EMBEDDING                                                               \
  void embedding_forward(const Tensor& tokens, const Tensor& weight, const Tensor& y); \
  void embedding_backward(const Tensor& dy, const Tensor& rows, const Tensor& starts,  \
                          const Tensor& places, const Tensor& dweight);                \
  void clear_rows(const Tensor& rows, const Tensor& x);
namespace cpu {
HEDDLE_EMBEDDING
}
#ifdef HEDDLE_CUDA
namespace cuda {
HEDDLE_EMBEDDING
}
#endif
#undef HEDDLE_EMBEDDING

}  // namespace heddle
