#include "layers/lstm_lm.h"

#include "layers/activation.h"
#include "layers/embedding.h"
#include "layers/linear.h"

namespace heddle {
namespace {

LstmLmOptions checked(const LstmLmOptions& o) {
  check(o.vocabulary > 1, "language model: expected a vocabulary of at least two, found ",
        o.vocabulary);
  check(o.emsize > 0 && o.nhid > 0 && o.nlayers > 0,
        "language model: expected positive sizes, found emsize ", o.emsize, ", nhid ", o.nhid,
        ", nlayers ", o.nlayers);
  check(!o.tied || o.emsize == o.nhid,
        "language model: tied weights need emsize equal to nhid, found ", o.emsize, " and ",
        o.nhid);
  check(o.dropout >= 0.0f && o.dropout < 1.0f, "dropout: expected a probability in [0, 1), found ",
        o.dropout);
  check(o.dtype == DType::f32 || o.dtype == DType::bf16,
        "language model: expected activations in f32 or bf16, found ", dtype_name(o.dtype));
  return o;
}

}  // namespace

LstmLm::LstmLm(ParameterStore& store, const LstmLmOptions& options)
    : options_(checked(options)),
      store_(store),
      encoder_(&store.add("encoder.weight", {options.vocabulary, options.emsize},
                          uniform_init(options.init > 0 ? options.init : 0.1f))),
      rnn_(store, "rnn", options.emsize, options.nhid,
           {.layers = options.nlayers, .dropout = options.dropout, .init = options.init}),
      decoder_(options.tied ? encoder_
                            : &store.add("decoder.weight", {options.vocabulary, options.nhid},
                                         uniform_init(options.init > 0 ? options.init : 0.1f))),
      bias_(&store.add("decoder.bias", {options.vocabulary},
                       options.init > 0 ? uniform_init(options.init) : constant_init(0.0f),
                       false)) {}

Var LstmLm::forward(Tape& tape, const Tensor& tokens, LstmState& state) const {
  dims<2>(tokens, "tokens (T, B)");
  Var x = embedding(tape, tokens, *encoder_, options_.dtype);
  x = dropout(tape, x, options_.dropout, 1);
  x = rnn_.forward(tape, x, state);
  x = dropout(tape, x, options_.dropout, 1);
  return linear(tape, x, *decoder_, bias_);
}

std::vector<std::pair<std::string, Tensor>> LstmLm::named_tensors() const {
  auto tensors = store_.named_tensors();
  if (options_.tied) tensors.emplace_back("decoder.weight", encoder_->value);
  return tensors;
}

}  // namespace heddle
