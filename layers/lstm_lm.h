// The LSTM language model of Zaremba et al. (arXiv 1409.2329) and of PyTorch's word_language_model
// example, whose parameter names it has: embedding, dropout, LSTM layers with dropout between them,
// dropout, decoder.
//
//   LstmLm model(store, {.vocabulary = 10000, .emsize = 200, .nhid = 200});
//   LstmState state = model.zero_state(batch);
//   Var logits = model.forward(tape, window.inputs, state);       // (T, B) -> (T, B, V)
//   Var loss = softmax_cross_entropy(tape, logits, window.targets);  // nats, mean over T * B
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "layers/lstm.h"

namespace heddle {

struct LstmLmOptions {
  int64_t vocabulary = 0;
  int64_t emsize = 200, nhid = 200, nlayers = 2;
  float dropout = 0.2f;  // on non-recurrent connections only
  bool tied = false;     // decoder.weight is encoder.weight; needs emsize == nhid
  // Every parameter uniform in ±init (Zaremba). 0: as the word_language_model example: encoder and
  // decoder weights ±0.1, decoder bias 0, LSTM ±1/sqrt(nhid).
  float init = 0;
  DType dtype = DType::f32;  // of activations and products: f32 or bf16
};

class LstmLm {
 public:
  // Parameters encoder.weight (V, E), rnn.* (layers/lstm.h), decoder.weight (V, H; absent when
  // tied), decoder.bias (V). Throws InputError for impossible options.
  LstmLm(ParameterStore& store, const LstmLmOptions& options);

  const LstmLmOptions& options() const { return options_; }
  LstmState zero_state(int64_t batch) const { return rnn_.zero_state(batch); }
  // tokens i32 (T, B) on the host -> logits f32 (T, B, V). Replaces `state`.
  Var forward(Tape& tape, const Tensor& tokens, LstmState& state) const;

  // Returns the tensors of a weights file in PyTorch's names: if tied, encoder.weight again as
  // decoder.weight.
  std::vector<std::pair<std::string, Tensor>> named_tensors() const;

 private:
  LstmLmOptions options_;
  ParameterStore& store_;
  Parameter* encoder_;
  Lstm rnn_;
  Parameter *decoder_, *bias_;
};

}  // namespace heddle
