// Long short-term memory (Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al.
// 2000) as torch.nn.LSTM computes it: gates i, f, g, o, two biases.
//
//   i, f, o = sigmoid(x_t W_ih' + b_ih + h_{t-1} W_hh' + b_hh),  g = tanh(same)
//   c_t = f * c_{t-1} + i * g,   h_t = o * tanh(c_t)
//
// One GEMM computes the input products of all time steps, and one GEMM per weight its gradient;
// only h_{t-1} W_hh' is computed step by step. A layer is one node of the tape: its gradients are
// final, and their exchange begins, while the layer below still runs backward.
//
//   LstmState state = rnn.zero_state(batch);
//   Var y = rnn.forward(tape, x, state);   // (T, B, I) -> (T, B, H); state: for the next window
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "layers/recurrent.h"

namespace heddle {

using LstmWeights = RecurrentWeights;  // of four gates

// Hidden and cell state of every layer, f32 (layers, B, H). Values only: no gradient flows through
// a state from one window to the one before (truncated backpropagation through time).
struct LstmState {
  Tensor h, c;
};

// Applies one layer. x (T, B, I) f32 or bf16; h, c f32 (B, H), the state before the first step,
// which the state after the last step (a view) replaces -> (T, B, H) of x's type. Throws InputError
// for shapes that do not fit.
Var lstm_layer(Tape& tape, const Var& x, const LstmWeights& weights, Tensor& h, Tensor& c);

struct LstmOptions {
  int64_t layers = 1;
  float dropout = 0;  // on the outputs of all layers but the last, as torch.nn.LSTM
  float init = 0;     // parameters uniform in ±init; 0: ±1/sqrt(H), as PyTorch
};

class Lstm {
 public:
  // Parameters name.weight_ih_l0, name.weight_hh_l0, name.bias_ih_l0, name.bias_hh_l0, then l1 and
  // so on.
  Lstm(ParameterStore& store, const std::string& name, int64_t input, int64_t hidden,
       const LstmOptions& options = {});

  LstmState zero_state(int64_t batch) const;  // on the parameters' device
  // x (T, B, I) -> (T, B, H). Replaces `state`. Throws InputError for shapes that do not fit.
  Var forward(Tape& tape, const Var& x, LstmState& state) const;

 private:
  LstmOptions options_;
  int64_t hidden_;
  std::vector<LstmWeights> weights_;  // by layer
};

}  // namespace heddle
