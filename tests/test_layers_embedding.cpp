// Embedding.
#include <doctest/doctest.h>

#include "core/kernels.h"
#include "layers/embedding.h"
#include "tests/device.h"
#include "tests/gradcheck.h"

using namespace heddle;

namespace {

Tensor tokens_of(const std::vector<int32_t>& values, const Shape& shape) {
  const Tensor out = Tensor::empty_on(Device{}, shape, DType::i32);
  std::copy(values.begin(), values.end(), out.data<int32_t>());
  return out;
}

}  // namespace

TEST_CASE("embedding: values, gradients of repeated tokens, rows that are cleared") {
  Context context(on_test_device());
  ParameterStore store;
  Parameter& weight = store.add("w", {9, 5}, uniform_init(1.0f));
  store.finalize(3);
  const Tensor tokens = tokens_of({4, 0, 4, 8, 4, 2}, {2, 3});
  const GradCheck::Network network = [&](Tape& t, const std::vector<Var>&) {
    return embedding(t, tokens, weight);
  };
  GradCheck(store, {}, network, {.samples = 45}).run();
  const Tensor y = forward_value(network, {});
  CHECK(y.shape() == Shape{2, 3, 5});
  CHECK(y.to_vector()[3 * 5 + 2] == weight.value.to_vector()[8 * 5 + 2]);

  // Other tokens in the next step: it clears the last step's rows, only those known as touched.
  auto step = [&](const std::vector<int32_t>& row, bool begin) {
    if (begin) store.begin_step();
    Tape tape;
    const Var out = embedding(tape, tokens_of(row, {std::ssize(row)}), weight);
    const Tensor ones = Tensor::zeros(out.shape());
    fill(ones, 1.0f);
    tape.backward(project(tape, out, ones));
  };
  // Rows are known only on the CPU; a GPU clears all of them.
  auto rows = [&](const std::vector<int32_t>& expected) {
    if (!context.device().is_cuda()) CHECK(weight.touched_rows == expected);
  };
  auto expect = [&](const std::vector<float>& counts) {
    const std::vector<float> g = weight.grad.to_vector();
    for (size_t i = 0; i < g.size(); ++i) CHECK(g[i] == counts[i / 5]);
  };
  step({1, 1, 7}, true);
  rows({1, 7});
  expect({0, 2, 0, 0, 0, 0, 0, 1, 0});
  step({3}, true);
  rows({3});
  expect({0, 0, 0, 1, 0, 0, 0, 0, 0});
  step({0}, false);  // accumulates
  rows({0, 3});
  expect({1, 0, 0, 1, 0, 0, 0, 0, 0});
  store.begin_step();
  CHECK(weight.next_beta() == 0.0f);  // a dense contribution
  fill(weight.grad, 1.0f);
  CHECK_FALSE(weight.touched_rows.has_value());
  step({2}, false);
  CHECK_FALSE(weight.touched_rows.has_value());
  expect({1, 1, 2, 1, 1, 1, 1, 1, 1});
  step({5}, true);
  expect({0, 0, 0, 0, 0, 1, 0, 0, 0});
  CHECK(weight.next_beta() == 1.0f);  // dense after rows, in one step
  CHECK_FALSE(weight.touched_rows.has_value());
  step({}, true);
  rows({});
  expect(std::vector<float>(9, 0.0f));

  // Summed in the order of tokens: 1e8 - 1e8 + 1 is 1; with the 1 added earlier, 0.
  store.begin_step();
  Tape ordered;
  const Var same = embedding(ordered, tokens_of({6, 6, 6}, {3}), weight);
  ordered.backward(
      project(ordered, same,
              here(Tensor::from({1e8f, 0, 0, 0, 0, -1e8f, 0, 0, 0, 0, 1, 0, 0, 0, 0}, {3, 5}))));
  CHECK(weight.grad.to_vector()[6 * 5] == 1.0f);

  Tape tape;
  ParameterStore odd;
  Parameter &vector = odd.add("vector", {9}, uniform_init(1)),
            &none = odd.add("none", {0, 5}, uniform_init(1));
  odd.finalize(1);
  CHECK_THROWS_AS(embedding(tape, tokens_of({1}, {1}), vector), InputError);
  CHECK_THROWS_AS(embedding(tape, tokens_of({}, {0}), none), InputError);
  CHECK_THROWS_AS(embedding(tape, tokens_of({9}, {1}), weight), InputError);
  CHECK_THROWS_AS(embedding(tape, tokens_of({-1}, {1}), weight), InputError);
  CHECK_THROWS_AS(embedding(tape, Tensor::zeros({1}), weight), InputError);
}
