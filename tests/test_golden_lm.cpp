// Embedding, LSTM and the language model against PyTorch: golden values of
// tests/golden/make_golden.py, and weights exchanged with it as files where it is found.
#include <doctest/doctest.h>

#include "layers/embedding.h"
#include "layers/gru.h"
#include "layers/loss.h"
#include "layers/lstm_lm.h"
#include "optim/optimizer.h"
#include "tests/golden.h"
#include "tests/interop.h"

using namespace heddle;

namespace {

struct Sizes {
  int64_t t, b, i, h;  // of each window; I and H of the LSTM
};

void append(std::vector<float>& all, const Tensor& window) {
  const std::vector<float> values = window.to_vector();
  all.insert(all.end(), values.begin(), values.end());
}

// The state is carried from window to window, and gradients are summed over windows. A state is a
// tensor, h, or an LstmState.
template <class Rnn, class State>
void check_windows(const std::string& name, const Sizes& size, const Rnn& rnn,
                   ParameterStore& store, State& state, int64_t windows) {
  const Golden golden(name);
  spoil_gradients(store);
  auto name_of = [](const Parameter& p) { return p.name.substr(std::string("rnn.").size()); };
  for (Parameter& p : store.parameters())
    p.value.copy_from(
        golden.value(name_of(p), p.shape(), p.shape().rank() > 1 ? he_scale(p.shape()) : 0.1f));
  const Tensor xs = golden.value("x", {windows * size.t, size.b, size.i});
  const Tensor dys = golden.value("dy", {windows * size.t, size.b, size.h});
  std::vector<float> y_found, dx_found;
  for (int64_t begin = 0; begin < xs.shape()[0]; begin += size.t) {
    const Var x(xs.slice(begin, begin + size.t), true);
    Tape tape;
    const Var y = rnn.forward(tape, x, state);
    backward(tape, y, dys.slice(begin, begin + size.t));
    append(y_found, y.value());
    append(dx_found, x.grad());
  }
  golden.expect("y", y_found);
  golden.expect("dx", dx_found);
  for (const Parameter& p : store.parameters()) golden.expect("d" + name_of(p), p.grad);
}

void check_lstm(const std::string& name, const Sizes& size, const LstmOptions& options,
                int64_t windows = 1) {
  ParameterStore store;
  const Lstm rnn(store, "rnn", size.i, size.h, options);
  store.finalize(0);
  const Golden golden(name);
  const Shape states{options.layers, size.b, size.h};
  LstmState state{golden.value("h0", states), golden.value("c0", states)};
  check_windows(name, size, rnn, store, state, windows);
  golden.expect("h", state.h);
  golden.expect("c", state.c);
  CHECK(golden.names().size() == 4 + store.parameters().size());
}

void check_gru(const std::string& name, const Sizes& size, int64_t layers, int64_t windows) {
  ParameterStore store;
  const Gru rnn(store, "rnn", size.i, size.h, layers);
  store.finalize(0);
  const Golden golden(name);
  Tensor state = golden.value("h0", {layers, size.b, size.h});
  check_windows(name, size, rnn, store, state, windows);
  golden.expect("h", state);
  CHECK(golden.names().size() == 3 + store.parameters().size());
}

// Trains as the word_language_model example does: plain SGD, clipping by the global norm.
void check_steps(const std::string& name, const LstmLmOptions& options) {
  const Golden golden(name);
  const int64_t t = 6, b = 4;
  const int words = static_cast<int>(options.vocabulary);
  ParameterStore store;
  const LstmLm model(store, options);
  store.finalize(0);
  set_formula_parameters(store);
  Optimizer optimizer(store, make_sgd({}), {.clip_grad_norm = 0.25});
  LstmState state = model.zero_state(b);
  std::vector<float> losses, norms;
  for (int step = 0; step < 10; ++step) {
    const Tensor tokens = formula_labels(concat("tokens:", step), t * b, words).reshape({t, b});
    const Tensor targets = formula_labels(concat("targets:", step), t * b, words).reshape({t, b});
    optimizer.begin_step(20);
    Tape tape;
    const Var loss = softmax_cross_entropy(tape, model.forward(tape, tokens, state), targets);
    losses.push_back(loss.value().item());
    tape.backward(
        loss, [&](Parameter& p) { optimizer.ready(p); },
        [&](Parameter& p) { optimizer.weights_free(p); });
    norms.push_back(static_cast<float>(optimizer.finish_step().grad_norm));
  }
  golden.expect("losses", losses);
  golden.expect("grad_norms", norms);
  golden.expect("h", state.h);
  golden.expect("c", state.c);
  for (const Parameter& p : store.parameters()) golden.expect("param:" + p.name, p.value);
  CHECK(golden.names().size() == 4 + store.parameters().size());
}

// The model that interop.py calls lm:tied or lm:untied.
struct Network {
  ParameterStore store;
  LstmLm model;

  explicit Network(bool tied)
      : model(store, {.vocabulary = 60, .emsize = tied ? 24 : 16, .nhid = 24, .tied = tied}) {
    store.finalize(5);
  }
  Tensor evaluate(const Tensor& tokens) const {
    Tape tape({.training = false});
    LstmState state = model.zero_state(tokens.shape()[1]);
    return model.forward(tape, tokens, state).value();
  }
};

void exchange(const std::string& python, bool tied) {
  CAPTURE(tied);
  const ScratchFolder scratch;
  const std::string arch = tied ? "lm:tied" : "lm:untied";
  const Tensor tokens = formula_labels("interop.tokens", 7 * 3, 60).reshape({7, 3});

  // Ours to PyTorch.
  const Network ours(tied);
  save_safetensors(scratch.weights(), ours.model.named_tensors());
  save_safetensors(scratch.logits(), {{"logits", ours.evaluate(tokens)}});
  CHECK(interop(python, "check", arch, scratch) == 0);

  // PyTorch's to us; its batch may have a different size.
  REQUIRE(interop(python, "write", arch, scratch) == 0);
  const auto file = SafetensorsFile::open(scratch.weights());
  const auto tensors = ours.model.named_tensors();
  CHECK(file.names().size() == tensors.size());
  for (const auto& [name, tensor] : tensors) tensor.copy_from(file.load(name));
  const Tensor expected = SafetensorsFile::open(scratch.logits()).load("logits");
  const int64_t batch = expected.shape()[1];
  const Tensor theirs = formula_labels("interop.tokens", 7 * batch, 60).reshape({7, batch});
  CHECK(relative_error(ours.evaluate(theirs).to_vector(), expected.to_vector()) <= kGoldenBound);
}

}  // namespace

TEST_CASE("golden: embedding of repeated tokens") {
  Context context(on_test_device());
  const Golden golden("embedding");
  ParameterStore store;
  Parameter& weight = store.add("weight", {20, 13}, constant_init(0.0f));
  store.finalize(0);
  spoil_gradients(store);
  weight.value.copy_from(golden.value("weight", {20, 13}));
  Tape tape;
  const Var y = embedding(tape, golden.labels(24, 20).reshape({6, 4}), weight);
  backward(tape, y, golden.value("dy", {6, 4, 13}));
  golden.expect("y", y.value());
  golden.expect("dweight", weight.grad);
}

TEST_CASE("golden: LSTM") {
  Context context(on_test_device());
  const Sizes odd{.t = 5, .b = 3, .i = 7, .h = 10};
  check_lstm("lstm", odd, {});
  check_lstm("lstm_2", odd, {.layers = 2});
  check_lstm("lstm_h32", {.t = 4, .b = 16, .i = 16, .h = 32}, {.layers = 2});
}

TEST_CASE("golden: LSTM over two windows, the state carried") {
  Context context(on_test_device());
  check_lstm("lstm_windows", {.t = 5, .b = 3, .i = 7, .h = 10}, {.layers = 2}, 2);
  check_gru("gru", {.t = 5, .b = 3, .i = 7, .h = 10}, 2, 2);
}

TEST_CASE("golden: ten steps of SGD on a language model") {
  Context context(on_test_device());
  LstmLmOptions options{.vocabulary = 50, .emsize = 10, .nhid = 12, .dropout = 0};
  check_steps("lm_steps", options);
  options.emsize = 12;
  options.tied = true;
  check_steps("lm_steps_tied", options);
}

TEST_CASE("PyTorch reads our language models and we read PyTorch's") {
  const std::string python = find_torch();
  if (python.empty()) {
    MESSAGE("skipped: no python3 with torch");
    return;
  }
  Context context(on_test_device());
  exchange(python, false);
  exchange(python, true);
}
