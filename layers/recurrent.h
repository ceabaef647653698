// Shared by the recurrent layers: weights as PyTorch names them, and their gradients.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "core/tape.h"

namespace heddle {

// The weights of a layer whose G gates have H units each.
struct RecurrentWeights {
  Parameter *ih, *hh;            // (G H, I), (G H, H)
  Parameter *bias_ih, *bias_hh;  // (G H)
};

// Adds name.weight_ih_l<layer> (rows, input), name.weight_hh_l<layer> (rows, hidden),
// name.bias_ih_l<layer> and name.bias_hh_l<layer> (rows), all uniform in ±bound.
RecurrentWeights add_recurrent_weights(ParameterStore& store, const std::string& name,
                                       int64_t layer, int64_t rows, int64_t input, int64_t hidden,
                                       float bound);

// Returns T, B and H of a layer with this many gates for the input (T, B, I). Throws InputError if
// input and weights do not fit.
std::array<int64_t, 3> check_recurrent(const Tensor& x, const RecurrentWeights& w, int64_t gates);

// Adds the gradients of a layer's weights: dgates (T B, G H) of the input's products, drecurrent of
// the recurrent ones, which may be the same; input (T B, I), before (T B, H), the states that each
// step began with.
void add_recurrent_gradients(const Tensor& dgates, const Tensor& drecurrent, const Tensor& input,
                             const Tensor& before, const RecurrentWeights& weights,
                             BackwardPass& pass);

// Returns entry t of (T, B, H) as (B, H).
Tensor time_step(const Tensor& buffer, int64_t t);
// Returns (T, B, H) as (T B, H).
Tensor all_steps(const Tensor& x);

}  // namespace heddle
