// Multi-head self-attention (Vaswani et al., 2017), as torch.nn.MultiheadAttention computes it:
// each position gets a mean of the values of all positions, or of those up to itself, weighted by
// softmax(q k' / sqrt(D / heads)).
//
//   x (T, B, D) --in--> q, k, v (T, B, D) each --per head and sample--> (T, B, D) --out--> y
//
// Queries, keys, values and weights of all heads are kept for backward: T * T weights for each head
// and sample. The products are made one after the other, two for each head and sample (four in
// backward), which suits few heads and samples. There is no padding mask, no attention to
// another sequence, and no dropout of the weights; put dropout() after the layer.
#pragma once

#include <string>

#include "layers/linear.h"

namespace heddle {

// qkv (T, B, 3 D) f32 or bf16, queries, keys and values one after the other, each divided into
// `heads` -> (T, B, D) of the same type. `causal`: a position sees itself and those before it.
// Throws InputError for sizes that do not fit.
Var self_attention(Tape& tape, const Var& qkv, int64_t heads, bool causal = false);

class MultiHeadAttention {
 public:
  // Parameters name.in_proj_weight (3D, D), name.in_proj_bias (3D), name.out_proj.weight (D, D) and
  // name.out_proj.bias (D), initialised as PyTorch does. `width`: D. Throws InputError unless it is
  // a multiple of `heads`.
  MultiHeadAttention(ParameterStore& store, const std::string& name, int64_t width, int64_t heads);
  // x (T, B, D) f32 or bf16 -> (T, B, D) f32: linear() returns f32, in which the attention is then
  // computed. Throws InputError for another D.
  Var forward(Tape& tape, const Var& x, bool causal = false) const;

  int64_t heads;
  Parameter *in_weight, *in_bias, *out_weight, *out_bias;
};

}  // namespace heddle
