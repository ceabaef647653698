// Frozen parameters: every layer's gradients with any of its parameters frozen, and where the
// backward pass ends.
#include <doctest/doctest.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "core/kernels.h"
#include "layers/activation.h"
#include "layers/attention.h"
#include "layers/batchnorm.h"
#include "layers/conv2d.h"
#include "layers/embedding.h"
#include "layers/gru.h"
#include "layers/layernorm.h"
#include "layers/linear.h"
#include "layers/loss.h"
#include "layers/lstm.h"
#include "layers/resnet.h"
#include "layers/sparse.h"
#include "tests/device.h"
#include "tests/gradcheck.h"

using namespace heddle;

namespace {

// A layer with a trained parameter before it, so that there is always something to train, and its
// input needs a gradient.
struct Subject {
  const char* name;
  std::vector<std::string> parameters;
  Shape input;
  std::function<GradCheck::Network(ParameterStore&)> build;
};

// Returns numbers from 0.5 to 1.5 in the shape of x.
Tensor positive_like(const Tensor& x) {
  const Tensor out = random_tensor(x.shape(), 21, Layout::plain, 0.5f);
  add_constant(out, 1);
  return out;
}

std::vector<Subject> subjects() {
  return {
      {"linear",
       {"x.weight", "x.bias"},
       {3, 4},
       [](ParameterStore& store) -> GradCheck::Network {
         return [layer = Linear(store, "x", 4, 5)](Tape& t, const std::vector<Var>& in) {
           return layer.forward(t, in[0]);
         };
       }},
      {"conv2d",
       {"x.weight", "x.bias"},
       {2, 3, 4, 4},
       [](ParameterStore& store) -> GradCheck::Network {
         return [layer = Conv2d(store, "x", {.in = 3, .out = 4, .bias = true})](
                    Tape& t, const std::vector<Var>& in) { return layer.forward(t, in[0]); };
       }},
      {"transposed convolution",
       {"x.weight", "x.bias"},
       {2, 4, 3, 3},
       [](ParameterStore& store) -> GradCheck::Network {
         return [layer = Conv2d(store, "x", {.in = 4, .out = 4, .bias = true})](
                    Tape& t, const std::vector<Var>& in) {
           return conv_transpose2d(t, in[0], *layer.weight, layer.bias, layer.options);
         };
       }},
      {"batch norm",
       {"x.weight", "x.bias"},
       {3, 4, 2, 3},
       [](ParameterStore& store) -> GradCheck::Network {
         return [layer = BatchNorm2d(store, "x", 4)](Tape& t, const std::vector<Var>& in) {
           return batchnorm2d(t, in[0], layer);
         };
       }},
      {"batch norm with everything",
       {"x.weight", "x.bias"},
       {3, 4, 2, 3},
       [](ParameterStore& store) -> GradCheck::Network {
         return [layer = BatchNorm2d(store, "x", 4)](Tape& t, const std::vector<Var>& in) {
           return batchnorm2d(t, in[0], layer, {.relu = true, .residual = in.data()});
         };
       }},
      {"batch norm with relu",
       {"x.weight", "x.bias"},
       {3, 4, 2, 3},
       [](ParameterStore& store) -> GradCheck::Network {
         return [layer = BatchNorm2d(store, "x", 4)](Tape& t, const std::vector<Var>& in) {
           return batchnorm2d(t, in[0], layer, {.relu = true});
         };
       }},
      {"batch norm with a shortcut of another kind",
       {"x.weight", "x.bias"},
       {3, 4, 2, 3},
       [](ParameterStore& store) -> GradCheck::Network {
         return [layer = BatchNorm2d(store, "x", 4)](Tape& t, const std::vector<Var>& in) {
           const Var skip = sigmoid(t, in[0]);
           return batchnorm2d(t, in[0], layer, {.residual = &skip});
         };
       }},
      {"lstm",
       {"x.weight_ih_l0", "x.weight_hh_l0", "x.bias_ih_l0", "x.bias_hh_l0"},
       {3, 2, 4},
       [](ParameterStore& store) -> GradCheck::Network {
         return [layer = Lstm(store, "x", 4, 5)](Tape& t, const std::vector<Var>& in) {
           LstmState state = layer.zero_state(2);
           return layer.forward(t, in[0], state);
         };
       }},
      {"gru",
       {"x.weight_ih_l0", "x.weight_hh_l0", "x.bias_ih_l0", "x.bias_hh_l0"},
       {3, 2, 4},
       [](ParameterStore& store) -> GradCheck::Network {
         return [layer = Gru(store, "x", 4, 5)](Tape& t, const std::vector<Var>& in) {
           Tensor state = layer.zero_state(2);
           return layer.forward(t, in[0], state);
         };
       }},
      {"layer normalisation",
       {"x.weight", "x.bias"},
       {3, 4},
       [](ParameterStore& store) -> GradCheck::Network {
         return [layer = LayerNorm(store, "x", 4)](Tape& t, const std::vector<Var>& in) {
           return layer.forward(t, in[0]);
         };
       }},
      {"attention",
       {"x.in_proj_weight", "x.in_proj_bias", "x.out_proj.weight", "x.out_proj.bias"},
       {3, 2, 4},
       [](ParameterStore& store) -> GradCheck::Network {
         return [layer = MultiHeadAttention(store, "x", 4, 2)](
                    Tape& t, const std::vector<Var>& in) { return layer.forward(t, in[0]); };
       }},
      {"bias",
       {"x.bias"},
       {3, 4},
       [](ParameterStore& store) -> GradCheck::Network {
         Parameter& bias = store.add("x.bias", {4}, uniform_init(1));
         return [&bias](Tape& t, const std::vector<Var>& in) { return add_bias(t, in[0], bias); };
       }},
  };
}

}  // namespace

TEST_CASE("frozen parameters: gradients of everything else, in every layer") {
  Context context(on_test_device());
  for (const Subject& subject : subjects()) {
    const size_t count = subject.parameters.size();
    for (unsigned subset = 1; subset < 1U << count; ++subset) {
      std::set<std::string> frozen;
      for (size_t i = 0; i < count; ++i)
        if ((subset >> i & 1U) != 0) frozen.insert(subject.parameters[i]);
      INFO(subject.name << ", frozen: " << frozen.size() << " of " << count << ", " << subset);
      ParameterStore store;
      store.freeze([&](const std::string& name) { return frozen.contains(name); });
      const GradCheck::Network layer = subject.build(store);
      Parameter& first = store.add("first", subject.input, uniform_init(1));
      store.finalize(4);
      REQUIRE(store.frozen().size() == frozen.size());
      REQUIRE(store.parameters().size() == count - frozen.size() + 1);
      for (const Parameter& p : store.frozen()) CHECK_FALSE(p.grad.defined());
      // Values and statistics as after training.
      for (const auto& [name, x] : store.named_tensors())
        if (x.dtype() == DType::f32 &&
            (frozen.contains(name) || name.find("running") < name.size()))
          x.copy_from(positive_like(x));
      const std::vector<float> before = store.frozen_values().to_vector();
      // Maps have the layout of the device; the numbers of `first` are added to them in memory
      // order.
      const Layout layout = subject.input.rank() == 4 ? map_layouts().front() : Layout::plain;
      const auto as_input = [&](const Tensor& x) {
        return Tensor::view_as(x, subject.input, layout);
      };
      GradCheck(store, {random_tensor(subject.input, 3, layout)},
                [&](Tape& t, const std::vector<Var>& in) {
                  Var y(Tensor::empty_like(in[0].value()), true);
                  heddle::add(in[0].value(), as_input(first.value), y.value());
                  t.record("first", y, {&first}, [&, x = in[0]](BackwardPass& pass) {
                    const Tensor dy = std::move(pass.dy).sum();
                    if (first.next_beta() == 0.0f)
                      as_input(first.grad).copy_from(dy);
                    else
                      add_to(dy, as_input(first.grad));
                    pass.contributed(first);
                    x.add_grad(dy.clone());
                  });
                  return layer(t, {y});
                },
                {.max_skipped = 0.2, .first_step = 0.0625})  // kinks of ReLU
          .run();
      CHECK(store.frozen_values().to_vector() == before);
    }
  }
}

TEST_CASE("frozen parameters: an embedding has no gradient at all") {
  Context context(on_test_device());
  ParameterStore store;
  store.freeze([](const std::string& name) { return name != "head.weight"; });
  Parameter& table = store.add("table", {7, 4}, uniform_init(1));
  const Linear head(store, "head", 4, 3, false);
  store.finalize(1);
  Tape tape;
  const Var x = embedding(tape, here(random_integers({5}, 2, 7)), table, DType::f32);
  CHECK_FALSE(x.needs_grad());
  CHECK(tape.size() == 0);
  const Var y = head.forward(tape, x);
  CHECK(y.needs_grad());
  std::vector<std::string> finals, freed;
  tape.backward(
      softmax_cross_entropy(tape, y, random_integers({5}, 4, 3)),
      [&](Parameter& p) { finals.push_back(p.name); },
      [&](Parameter& p) { freed.push_back(p.name); });
  CHECK(finals == std::vector<std::string>{"head.weight"});
  CHECK(freed == finals);
  CHECK(table.pending == 0);
  CHECK(table.readers == 0);
}

TEST_CASE("frozen parameters: a residual network's frozen beginning is not recorded") {
  Context context(on_test_device());
  const auto nodes = [](const char* trained, std::vector<float>* statistics) {
    ParameterStore store;
    store.freeze([&](const std::string& name) { return !name.starts_with(trained); });
    const ResNet model(store, {.arch = "resnet20", .classes = 3});
    store.finalize(1);
    Tape tape;
    const Var loss = softmax_cross_entropy(
        tape, model.forward(tape, Var(random_tensor({2, 3, 8, 8}, 3))), random_integers({2}, 4, 3));
    const size_t size = tape.size();
    size_t finals = 0;
    tape.backward(loss, [&](Parameter&) { ++finals; });
    CHECK(finals == store.parameters().size());
    for (const auto& [name, x] : store.named_tensors())
      if (name.ends_with("running_mean") || name.ends_with("running_var"))
        for (const float value : x.to_vector()) statistics->push_back(value);
    return size;
  };
  std::vector<float> all, last, head;
  const size_t everything = nodes("", &all), stage = nodes("layer3", &last),
               fc = nodes("fc", &head);
  CHECK(fc == 2);  // the linear layer and the loss
  CHECK(stage > fc);
  CHECK(stage < everything / 2);
  // A frozen batch norm keeps its running statistics: means of 0, variances of 1.
  size_t changed = 0;
  for (const float value : all) changed += value != 0 && value != 1 ? 1 : 0;
  CHECK(changed > all.size() * 9 / 10);
  for (const float value : head) CHECK((value == 0 || value == 1));
  // Statistics that cannot change are not averaged over learners: a mean may round.
  ParameterStore store;
  store.freeze([](const std::string& name) { return name.starts_with("fixed"); });
  const BatchNorm2d fixed(store, "fixed", 3), other(store, "other", 3);
  CHECK(store.buffers().size() == 3);
  CHECK(store.buffers().front().name == "other.running_mean");
}

TEST_CASE("frozen parameters: a layer whose output ignores a trained parameter is an error") {
  Context context(on_test_device());
  ParameterStore store;
  Parameter& p = store.add("p", {2}, constant_init(1));
  store.finalize(1);
  Tape tape;
  CHECK_THROWS_AS(tape.record("layer", Var(p.value, false), {&p}, [](BackwardPass&) {}), Error);
  CHECK(p.pending == 0);
}

TEST_CASE("frozen parameters: initial values do not depend on what is frozen; all is too much") {
  Context context(on_test_device());
  const auto values = [](const std::string& frozen) {
    ParameterStore store;
    store.freeze([&](const std::string& name) { return name.starts_with(frozen); });
    const Linear a(store, "a", 3, 4), b(store, "b", 4, 2);
    store.finalize(9);
    std::vector<std::vector<float>> out;
    for (const auto& [name, x] : store.named_tensors()) out.push_back(x.to_vector());
    CHECK(store.find("a.weight")->frozen == (frozen == "a"));
    CHECK(store.find("b.bias")->frozen == (frozen == "b"));
    return out;
  };
  CHECK(values("a") == values("nothing"));
  CHECK(values("b") == values("nothing"));
  ParameterStore store;
  store.freeze([](const std::string&) { return true; });
  const Linear a(store, "a", 3, 4);
  CHECK_THROWS_WITH_AS(store.finalize(1), doctest::Contains("every parameter is frozen"),
                       InputError);
}
