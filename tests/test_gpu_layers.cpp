// Layers with weights and without maps on two devices, compared (tests/compare.h).
#include <doctest/doctest.h>

#include <cmath>

#include "layers/activation.h"
#include "layers/attention.h"
#include "layers/conv2d.h"
#include "layers/gru.h"
#include "layers/layernorm.h"
#include "layers/linear.h"
#include "layers/loss.h"
#include "layers/lstm.h"
#include "tests/compare.h"
#include "tests/device.h"
#include "tests/gradcheck.h"

using namespace heddle;

TEST_CASE("compare: linear and LSTM") {
  for (DType dtype : library_types()) {
    for (const Shape& shape : {Shape{1, 3}, Shape{7, 2, 65}})
      compare("linear", to_string(shape), dtype, [&] {
        ParameterStore store;
        const Linear layer(store, "fc", shape[shape.rank() - 1], 33);
        store.finalize(1);
        return run_layer(store, random_tensor(shape, 6, Layout::plain, 1.0f, dtype),
                         [&](Tape& tape, const Var& v) { return layer.forward(tape, v); });
      });
    compare("lstm", "(5, 3, 17)", dtype, [&] {
      ParameterStore store;
      const Lstm lstm(store, "rnn", 17, 20, {.layers = 2});
      store.finalize(1);
      return run_layer(store, random_tensor({5, 3, 17}, 6, Layout::plain, 1.0f, dtype),
                       [&](Tape& tape, const Var& v) {
                         LstmState state = lstm.zero_state(3);
                         return lstm.forward(tape, v, state);
                       });
    });
  }
}

TEST_CASE("compare: operands on two devices are refused, targets are copied") {
  Context context(subject());
  if (!on_gpu()) return;
  ParameterStore store;
  const Linear linear_layer(store, "fc", 8, 3);
  const Conv2d conv(store, "conv", {.in = 3, .out = 4, .kernel = 3});
  store.finalize(1);
  Tape tape;
  const Var row(Tensor::empty_on(Device{}, {2, 8})), map(Tensor::empty_on(Device{}, {2, 3, 5, 5}));
  CHECK_THROWS_AS(linear_layer.forward(tape, row), InputError);
  CHECK_THROWS_AS(conv.forward(tape, map), InputError);
  const Var logits(here(Tensor::zeros({4})));
  CHECK_THROWS_AS(mse_loss(tape, logits, Var(Tensor::empty_on(Device{}, {4}))), InputError);
  const Tensor ones = Tensor::from({1, 1, 1, 1}).to(Device{});
  CHECK(bce_with_logits(tape, logits, ones).value().item() == doctest::Approx(std::log(2.0)));
}

TEST_CASE("compare: GRU, layer normalisation, attention") {
  const auto x = [](DType dtype) {
    return random_tensor({5, 3, 24}, 6, Layout::plain, 1.0f, dtype);
  };
  for (DType dtype : library_types()) {
    compare("gru", "(5, 3, 24)", dtype, [&] {
      ParameterStore store;
      const Gru gru(store, "rnn", 24, 20, 2);
      store.finalize(1);
      return run_layer(store, x(dtype), [&](Tape& tape, const Var& v) {
        Tensor state = gru.zero_state(3);
        return gru.forward(tape, v, state);
      });
    });
    compare("layer norm", "(5, 3, 24)", dtype, [&] {
      ParameterStore store;
      const LayerNorm norm(store, "norm", 24);
      store.finalize(1);
      randomize(store, 3, 0.5f);
      return run_layer(store, x(dtype),
                       [&](Tape& tape, const Var& v) { return norm.forward(tape, v); });
    });
    for (const bool causal : {false, true}) {
      const std::string what = concat("(5, 3, 24)", causal ? ", causal" : "");
      compare("attention", what, dtype, [&] {
        ParameterStore store;
        store.add("unused", {1}, constant_init(0));
        store.finalize(1);
        Results out = run_layer(store, x(dtype), [&](Tape& tape, const Var& v) {
          return self_attention(tape, v, 4, causal);
        });
        out.pop_back();
        return out;
      });
    }
  }
}

// Two windows in one step: the second continues from a state, and adds to the gradients. Tuned, a
// GPU may use cuDNN's LSTM. A tape with counters says that steps are recorded. `frozen`: part of
// the names of weights that are not trained.
static void compare_windows(int64_t hidden, DType dtype, bool tune, bool recorded,
                            const std::string& frozen = "") {
  const auto job = [&] {
    ParameterStore store;
    if (!frozen.empty())
      store.freeze([&](const std::string& name) { return name.find(frozen) != std::string::npos; });
    const Lstm lstm(store, "rnn", 17, hidden, {.layers = 2});
    store.finalize(1);
    LstmState state{random_tensor({2, 3, hidden}, 8), random_tensor({2, 3, hidden}, 9)};
    TapeOptions options;
    if (recorded) options.counters = Tensor::empty_on(Context::current().device(), {2}, DType::i64);
    Results out = run_layer(
        store, random_tensor({5, 3, 17}, 6, Layout::plain, 1.0f, dtype),
        [&](Tape& tape, const Var& v) {
          const Var first = lstm.forward(tape, v, state);
          return add(tape, first, lstm.forward(tape, v, state));
        },
        options);
    out.push_back(state.h.to_vector());
    out.push_back(state.c.to_vector());
    return out;
  };
  compare("lstm",
          concat("(5, 3, 17), ", hidden, " units, two windows", tune ? ", tuned" : "",
                 recorded ? ", recorded" : "", frozen.empty() ? "" : ", frozen ", frozen),
          dtype, job, subject(tune));
#ifdef HEDDLE_SIMULATED_GPU
  if (!tune || !subject().device.is_cuda()) return;
  // Its cuDNN refuses 13 units and takes longer than ours with 11 forward, with 9 backward. With
  // 10, 12 and 14 only a persistent algorithm is fast, which with 14 cannot be recorded; others are
  // not tried in steps that are not. Sums in another order show which one ran. A step that is
  // traced and explained makes the same choice, and the trials do not appear in it.
  const auto run = [&](bool tuned) {
    Context context(subject(tuned));
    context.trace().start(true);
    context.trace().explain(true);
    const Results out = job();
    bool noted = false;
    for (const Note& note : context.trace().take_notes()) {
      CHECK(!note.subject.starts_with("trial"));
      noted |= note.subject.starts_with("rnn");
    }
    CHECK(noted);
    const std::string events = context.trace().events();
    CHECK(events.find("trial") == std::string::npos);
    CHECK(events.find("rnn.weight_ih_l1") != std::string::npos);
    return out;
  };
  // Ours is used with frozen weights, for which cuDNN would compute gradients.
  const bool cudnn =
      frozen.empty() && (hidden == 20 || (recorded && (hidden == 10 || hidden == 12)));
  CHECK((run(true) != run(false)) == (cudnn && dtype == DType::f32));
#endif
}

TEST_CASE("compare: an LSTM's windows, tuned or not") {
  for (DType dtype : library_types())
    for (int64_t hidden : {20, 14, 13, 12, 11, 10, 9}) {
      compare_windows(hidden, dtype, false, false);
      compare_windows(hidden, dtype, true, false);
      compare_windows(hidden, dtype, true, true);
    }
  for (const char* frozen : {"weight_ih", "weight_hh", "bias_ih", "bias_hh"})
    compare_windows(20, DType::f32, true, true, frozen);
}
