// LSTM and the language model.
#include <doctest/doctest.h>

#include <cmath>

#include "core/kernels.h"
#include "core/math.h"
#include "layers/embedding.h"
#include "layers/loss.h"
#include "layers/lstm_lm.h"
#include "tests/device.h"
#include "tests/gradcheck.h"

using namespace heddle;

namespace {

using Network = GradCheck::Network;

Tensor some_tokens(const Shape& shape, int32_t vocabulary, int32_t seed = 0) {
  const Tensor out = Tensor::empty_on(Device{}, shape, DType::i32);
  for (int64_t i = 0; i < out.size(); ++i)
    out.data<int32_t>()[i] = static_cast<int32_t>((i * 7 + i / 5 + seed) % vocabulary);
  return out;
}

void randomize_state(LstmState& state, uint64_t seed) {
  state.h = random_tensor(state.h.shape(), seed, Layout::plain, 0.8f);
  state.c = random_tensor(state.c.shape(), seed + 1, Layout::plain, 0.8f);
}

std::vector<float> gradient_of(const Parameter& p) { return p.grad.to_vector(); }

}  // namespace

TEST_CASE("exp, sigmoid and tanh: within three ulp, extremes, NaN") {
  double worst_exp = 0, worst_tanh = 0, worst_sigmoid = 0;
  for (double x = -87; x < 88; x += 0.00037) {
    const auto v = static_cast<float>(x);
    auto ulps = [](float found, double expected) {
      const auto near = static_cast<float>(std::fabs(expected));
      return std::fabs(found - expected) / (std::nextafter(near, 2 * near) - near);
    };
    worst_exp = std::max(worst_exp, ulps(exp_of(v), std::exp(double{v})));
    worst_sigmoid = std::max(worst_sigmoid, ulps(sigmoid_of(v), 1 / (1 + std::exp(-double{v}))));
    if (v != 0.0f) worst_tanh = std::max(worst_tanh, ulps(tanh_of(v), std::tanh(double{v})));
  }
  CHECK(worst_exp < 1.5);
  CHECK(worst_sigmoid < 3);
  CHECK(worst_tanh < 3);
  const float infinity = std::numeric_limits<float>::infinity(), nan = NAN;
  CHECK(exp_of(-infinity) == 0.0f);
  CHECK(exp_of(-200.0f) == 0.0f);
  CHECK(exp_of(0.0f) == 1.0f);
  CHECK(exp_of(infinity) == infinity);
  CHECK(exp_of(100.0f) == infinity);
  CHECK(sigmoid_of(-infinity) == 0.0f);
  CHECK(sigmoid_of(infinity) == 1.0f);
  CHECK(tanh_of(-infinity) == -1.0f);
  CHECK(tanh_of(infinity) == 1.0f);
  CHECK(tanh_of(0.0f) == 0.0f);
  for (float v : {exp_of(nan), sigmoid_of(nan), tanh_of(nan)}) CHECK(std::isnan(v));
}

TEST_CASE("lstm: gradients, one and two layers, odd sizes") {
  Context context(on_test_device());
  struct Case {
    int64_t steps, batch, input, hidden, layers;
  };
  for (const Case& s : {Case{1, 1, 1, 1, 1}, Case{4, 2, 3, 5, 1}, Case{3, 3, 16, 16, 2},
                        Case{4, 2, 5, 3, 1}, Case{3, 2, 4, 7, 2}}) {
    CAPTURE(s.steps);
    CAPTURE(s.layers);
    ParameterStore store;
    const Lstm rnn(store, "rnn", s.input, s.hidden, {.layers = s.layers});
    store.finalize(1);
    randomize(store, 2, 0.6f);
    LstmState start = rnn.zero_state(s.batch);
    randomize_state(start, 3);
    const Network network = [&](Tape& t, const std::vector<Var>& in) {
      LstmState state = start;
      return rnn.forward(t, in[0], state);
    };
    const Tensor x = random_tensor({s.steps, s.batch, s.input}, 4);
    GradCheck(store, {x}, network, {.samples = 64}).run();
    CHECK(forward_value(network, {x}).shape() == Shape{s.steps, s.batch, s.hidden});

    if (!bf16_here()) continue;
    const Tensor half = converted(x, DType::bf16, Layout::plain);
    const auto a = GradCheck(store, {half}, network).analytic(DyMode::shared);
    const auto b = GradCheck(store, {converted(half, DType::f32, Layout::plain)}, network)
                       .analytic(DyMode::shared);
    for (size_t i = 0; i < a.size(); ++i) CHECK(relative_distance(a[i], b[i]) < 3e-2);
  }
}

TEST_CASE("lstm: outputs and states match the definition, gates in PyTorch's order") {
  Context context(on_test_device());
  constexpr int64_t kSteps = 4, kBatch = 2, kIn = 3, kHidden = 5;
  ParameterStore store;
  const Lstm rnn(store, "rnn", kIn, kHidden);
  store.finalize(1);
  randomize(store, 2, 0.6f);
  const Tensor x = random_tensor({kSteps, kBatch, kIn}, 4);
  LstmState start = rnn.zero_state(kBatch), state;
  randomize_state(start, 3);
  state = start;
  Tape tape({.training = false});
  const std::vector<float> y = rnn.forward(tape, Var(x), state).value().to_vector();
  const std::vector<float> h0 = start.h.to_vector(), c0 = start.c.to_vector(),
                           h1 = state.h.to_vector(), c1 = state.c.to_vector();
  auto weight = [&](const char* name) {
    return store.find(concat("rnn.", name, "_l0"))->value.to_vector();
  };
  const std::vector<float> ih = weight("weight_ih"), hh = weight("weight_hh"),
                           bi = weight("bias_ih"), bh = weight("bias_hh"), in = x.to_vector();
  for (int64_t b = 0; b < kBatch; ++b) {
    const int64_t at = b * kHidden;
    double h[kHidden], c[kHidden], gates[4 * kHidden];
    for (int64_t j = 0; j < kHidden; ++j) {
      h[j] = h0[at + j];
      c[j] = c0[at + j];
    }
    for (int64_t t = 0; t < kSteps; ++t) {
      for (int64_t g = 0; g < 4 * kHidden; ++g) {
        gates[g] = double{bi[g]} + bh[g];
        for (int64_t k = 0; k < kIn; ++k)
          gates[g] += double{ih[g * kIn + k]} * in[(t * kBatch + b) * kIn + k];
        for (int64_t k = 0; k < kHidden; ++k) gates[g] += double{hh[g * kHidden + k]} * h[k];
      }
      auto gate = [&](int64_t which, int64_t j) {
        return 1 / (1 + std::exp(-gates[which * kHidden + j]));
      };
      for (int64_t j = 0; j < kHidden; ++j) {
        c[j] = gate(1, j) * c[j] + gate(0, j) * std::tanh(gates[2 * kHidden + j]);
        h[j] = gate(3, j) * std::tanh(c[j]);
        CHECK(y[(t * kBatch + b) * kHidden + j] == doctest::Approx(h[j]).epsilon(1e-5));
      }
    }
    for (int64_t j = 0; j < kHidden; ++j) {
      CHECK(h1[at + j] == doctest::Approx(h[j]).epsilon(1e-5));
      CHECK(c1[at + j] == doctest::Approx(c[j]).epsilon(1e-5));
    }
  }
}

TEST_CASE("lstm: windows change no value; states are replaced, inputs are not") {
  Context context(on_test_device());
  ParameterStore store;
  const Lstm rnn(store, "rnn", 6, 10, {.layers = 2});
  store.finalize(1);
  const Tensor x = random_tensor({7, 3, 6}, 4);
  auto run = [&](const std::vector<int64_t>& cuts) {
    LstmState state = rnn.zero_state(3);
    randomize_state(state, 9);
    std::vector<float> out;
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      Tape tape({.training = false});
      const Var y = rnn.forward(tape, Var(x.slice(cuts[i], cuts[i + 1])), state);
      for (float v : y.value().to_vector()) out.push_back(v);
    }
    for (const Tensor& t : {state.h, state.c})
      for (float v : t.to_vector()) out.push_back(v);
    return out;
  };
  const std::vector<float> whole = run({0, 7});
  for (const auto& cuts : {std::vector<int64_t>{0, 3, 7}, {0, 1, 2, 6, 7}}) {
    const std::vector<float> parts = run(cuts);
    REQUIRE(parts.size() == whole.size());
    CHECK(relative_distance(parts, whole) < 1e-6);
  }
  // The last output is the last layer's hidden state, and the state passed in is unchanged.
  LstmState state = rnn.zero_state(3);
  const LstmState before = state;
  Tape tape;
  const Var y = rnn.forward(tape, Var(x), state);
  CHECK(y.value().slice(6, 7).to_vector() == state.h.slice(1, 2).to_vector());
  for (float v : before.h.to_vector()) CHECK(v == 0.0f);
}

TEST_CASE("lstm: gradients of the upper layer are final while the lower one still runs backward") {
  Context context(on_test_device());
  ParameterStore store;
  const Lstm rnn(store, "rnn", 4, 6, {.layers = 2});
  store.finalize(1);
  LstmState state = rnn.zero_state(2);
  Tape tape;
  const Var y = rnn.forward(tape, Var(random_tensor({3, 2, 4}, 1), true), state);
  std::vector<std::string> order;
  const Var loss = project(tape, y, random_tensor(y.shape(), 2));
  tape.backward(
      loss, [&](Parameter& p) { order.push_back(p.name); },
      [&](Parameter& p) { order.push_back("free " + p.name); });
  REQUIRE(order.size() == 16);
  for (size_t i = 0; i < 8; ++i) CHECK(order[i].ends_with("_l1"));
  for (size_t i = 8; i < 16; ++i) CHECK(order[i].ends_with("_l0"));
}

TEST_CASE("lstm: invalid shapes and values are refused") {
  Context context(on_test_device());
  ParameterStore store;
  const Lstm rnn(store, "rnn", 4, 6);
  store.finalize(1);
  LstmState state = rnn.zero_state(2);
  Tape tape;
  auto refused = [&](const Shape& shape) {
    CHECK_THROWS_AS(rnn.forward(tape, Var(Tensor::zeros(shape)), state), InputError);
  };
  refused({3, 2, 5});
  refused({3, 1, 4});
  refused({0, 2, 4});
  refused({3, 2});
  ParameterStore other;
  RecurrentWeights w = add_recurrent_weights(other, "w", 0, 24, 4, 6, 1);
  Parameter& small = other.add("small", {18}, constant_init(1));
  other.finalize(1);
  Tensor h = Tensor::zeros({2, 6}), c = h.clone();
  w.bias_ih = w.bias_hh = &small;  // both of another size, which would fit each other
  CHECK_THROWS_AS(lstm_layer(tape, Var(Tensor::zeros({3, 2, 4})), w, h, c), InputError);
  CHECK_THROWS_AS(Lstm(other, "a", 0, 6), InputError);
  CHECK_THROWS_AS(Lstm(other, "b", 4, 6, {.layers = 0}), InputError);
}

TEST_CASE("language model: gradients of all parameters, tied and untied") {
  Context context(on_test_device());
  for (bool tied : {false, true}) {
    CAPTURE(tied);
    ParameterStore store;
    const LstmLm model(
        store,
        {.vocabulary = 11, .emsize = 8, .nhid = 8, .nlayers = 2, .dropout = 0, .tied = tied});
    store.finalize(1);
    randomize(store, 5, 0.3f);
    const Tensor tokens = some_tokens({4, 3}, 11);
    LstmState start = model.zero_state(3);
    randomize_state(start, 3);
    const Network network = [&](Tape& t, const std::vector<Var>&) {
      LstmState state = start;
      return model.forward(t, tokens, state);
    };
    GradCheck(store, {}, network, {.samples = 48}).run();
    CHECK((store.find("decoder.weight") == nullptr) == tied);
    CHECK(model.named_tensors().back().first == (tied ? "decoder.weight" : "decoder.bias"));
    CHECK(store.find("rnn.weight_hh_l0")->uses_per_sample == 4);
  }
}

TEST_CASE("language model: positions of dropout, keyed by the sample in the global batch") {
  Context context(on_test_device());
  for (const int64_t layers : {1, 3}) {
    ParameterStore store;
    const Lstm rnn(store, "rnn", 4, 6, {.layers = layers, .dropout = 0.5f});
    store.finalize(1);
    LstmState state = rnn.zero_state(2);
    Tape tape({.step = 0});
    rnn.forward(tape, Var(random_tensor({3, 2, 4}, 1)), state);
    CHECK(tape.next_random_op() == layers - 1);
  }
  ParameterStore store;
  const LstmLm model(store,
                     {.vocabulary = 11, .emsize = 8, .nhid = 12, .nlayers = 2, .dropout = 0.5f});
  store.finalize(1);
  randomize(store, 5, 0.3f);
  const Tensor tokens = some_tokens({3, 4}, 11);
  auto run = [&](int64_t begin, int64_t end) {  // logits by sample, then time
    const Tensor part = Tensor::empty_on(Device{}, {3, end - begin}, DType::i32);
    for (int64_t t = 0; t < 3; ++t)
      for (int64_t b = begin; b < end; ++b)
        part.data<int32_t>()[t * (end - begin) + b - begin] = tokens.data<int32_t>()[t * 4 + b];
    LstmState state = model.zero_state(end - begin);
    Tape tape({.seed = 5, .step = 3, .first_sample = begin});
    const std::vector<float> y = model.forward(tape, part, state).value().to_vector();
    CHECK(tape.next_random_op() == 3);
    std::vector<float> out;
    for (int64_t b = 0; b < end - begin; ++b)
      for (int64_t t = 0; t < 3; ++t)
        for (int64_t c = 0; c < 11; ++c) out.push_back(y[(t * (end - begin) + b) * 11 + c]);
    return out;
  };
  std::vector<float> parts = run(0, 1);
  const std::vector<float> rest = run(1, 4);
  parts.insert(parts.end(), rest.begin(), rest.end());
  CHECK(relative_distance(parts, run(0, 4)) < 1e-6);
}

TEST_CASE("language model: initial values of the example, or Zaremba's") {
  Context context(on_test_device());
  for (const float init : {0.0f, 0.05f}) {
    CAPTURE(init);
    ParameterStore store;
    const LstmLm model(store, {.vocabulary = 50, .emsize = 16, .nhid = 16, .init = init});
    store.finalize(1);
    for (const Parameter& p : store.parameters()) {
      CAPTURE(p.name);
      float largest = 0;
      for (float v : p.value.to_vector()) largest = std::max(largest, std::abs(v));
      float bound = init > 0 ? init : p.name.starts_with("rnn") ? 0.25f : 0.1f;
      if (init == 0 && p.name == "decoder.bias") bound = 0;
      CHECK(largest <= bound);
      CHECK(largest >= 0.9f * bound);
    }
  }
}

TEST_CASE("tied weights: reported once, after the last use, with the sum") {
  Context context(on_test_device());
  ParameterStore store, apart;
  const LstmLmOptions options = {
      .vocabulary = 7, .emsize = 6, .nhid = 6, .nlayers = 1, .dropout = 0};
  LstmLmOptions shared = options;
  shared.tied = true;
  const LstmLm tied(store, shared), untied(apart, options);
  store.finalize(1);
  apart.finalize(2);
  for (Parameter& p : apart.parameters()) {
    const Parameter* same = store.find(p.name == "decoder.weight" ? "encoder.weight" : p.name);
    p.value.copy_from(same->value);
  }
  const Tensor tokens = some_tokens({3, 2}, 7), targets = some_tokens({3, 2}, 7, 3);
  auto run = [&](const LstmLm& model, std::vector<std::string>* order) {
    LstmState state = model.zero_state(2);
    Tape tape;
    const Var loss = softmax_cross_entropy(tape, model.forward(tape, tokens, state), targets);
    tape.backward(loss, [&](Parameter& p) {
      if (order != nullptr) order->push_back(p.name);
    });
  };
  std::vector<std::string> order;
  run(tied, &order);
  run(untied, nullptr);
  CHECK(std::count(order.begin(), order.end(), "encoder.weight") == 1);
  CHECK(order.back() == "encoder.weight");
  std::vector<float> sum = gradient_of(*apart.find("encoder.weight"));
  const std::vector<float> decoder = gradient_of(*apart.find("decoder.weight"));
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += decoder[i];
  CHECK(relative_distance(gradient_of(*store.find("encoder.weight")), sum) < 1e-6);
  CHECK_THROWS_AS(LstmLm(apart, {.vocabulary = 7, .emsize = 5, .nhid = 6, .tied = true}),
                  InputError);
  CHECK_THROWS_AS(LstmLm(apart, {.vocabulary = 1}), InputError);
}

TEST_CASE("language model: learns a repeating text in fp32 and bf16, the same in every run") {
  Context context(on_test_device());
  auto train = [](DType dtype) {
    ParameterStore store;
    const LstmLm model(
        store, {.vocabulary = 12, .emsize = 16, .nhid = 32, .dropout = 0.1f, .dtype = dtype});
    store.finalize(4);
    std::vector<float> losses;
    LstmState state = model.zero_state(4);
    for (uint64_t step = 0; step < 300; ++step) {
      Tape tape({.seed = 1, .step = step});
      const auto at = static_cast<int32_t>(step * 8);
      const Tensor tokens = Tensor::empty_on(Device{}, {8, 4}, DType::i32);
      const Tensor targets = Tensor::empty_on(Device{}, {8, 4}, DType::i32);
      for (int32_t i = 0; i < 32; ++i) {
        const int32_t t = at + i / 4, b = i % 4;
        tokens.data<int32_t>()[i] = (t + b) % 12;
        targets.data<int32_t>()[i] = (t + 1 + b) % 12;
      }
      const Var loss = softmax_cross_entropy(tape, model.forward(tape, tokens, state), targets);
      losses.push_back(loss.value().item());
      store.begin_step();
      tape.backward(loss);
      axpy(-3.0f, store.grads(), store.values());
    }
    return losses;
  };
  const std::vector<float> first = train(DType::f32);
  CHECK(first.front() == doctest::Approx(std::log(12.0)).epsilon(0.05));
  CHECK(first.back() < 0.5f * first.front());
  CHECK(train(DType::f32) == first);
  if (!bf16_here()) return;
  const std::vector<float> half = train(DType::bf16);
  CHECK(half.back() < 0.5f * half.front());
  CHECK(train(DType::bf16) == half);
}
