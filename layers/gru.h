// Gated recurrent unit (Cho et al., 2014), as torch.nn.GRU computes it: gates r, z, n, two biases,
// and the reset gate after the recurrent product.
//
//   r, z = sigmoid(x_t W_ih' + b_ih + h_{t-1} W_hh' + b_hh)
//   n = tanh(x_t W_in' + b_in + r (h_{t-1} W_hn' + b_hn)),   h_t = (1 - z) n + z h_{t-1}
//
// A layer is one node of the tape, and computed as lstm_layer() is (layers/lstm.h).
//
//   Tensor state = rnn.zero_state(batch);
//   Var y = rnn.forward(tape, x, state);   // (T, B, I) -> (T, B, H); state: for the next window
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "layers/recurrent.h"

namespace heddle {

// Applies one layer with weights (3H, I), (3H, H) and biases (3H). x (T, B, I) f32 or bf16; h f32
// (B, H), the state before the first step, which the state after the last step (a view) replaces ->
// (T, B, H) of x's type. Throws InputError for shapes that do not fit.
Var gru_layer(Tape& tape, const Var& x, const RecurrentWeights& weights, Tensor& h);

class Gru {
 public:
  // Parameters name.weight_ih_l0, name.weight_hh_l0, name.bias_ih_l0, name.bias_hh_l0, then l1 and
  // so on, uniform in ±1/sqrt(H). `dropout`: on the outputs of all layers but the last. Throws
  // InputError for sizes that are not positive.
  Gru(ParameterStore& store, const std::string& name, int64_t input, int64_t hidden,
      int64_t layers = 1, float dropout = 0);

  // Returns zeros, the hidden states of all layers, f32 (layers, B, H), on the parameters' device.
  // Values only: no gradient flows through a state from one window to the one before.
  Tensor zero_state(int64_t batch) const;
  // x (T, B, I) -> (T, B, H). Replaces `state`. Throws InputError for shapes that do not fit.
  Var forward(Tape& tape, const Var& x, Tensor& state) const;

 private:
  int64_t hidden_;
  float dropout_;
  std::vector<RecurrentWeights> weights_;  // by layer
};

}  // namespace heddle
