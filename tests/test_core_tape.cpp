// The tape's promises (final gradients, free weights, accumulation) and the parameters' memory.
#include "core/tape.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "core/context.h"
#include "core/kernels.h"

using namespace heddle;

namespace {

// y = x + p, of one element each: the smallest use of a parameter. Backward appends to
// `events`.
Var shift(Tape& tape, const Var& x, Parameter& p, std::vector<std::string>* events = nullptr) {
  const Tensor out = Tensor::empty_like(x.value());
  add(x.value(), p.value, out);
  Var y(out, true);
  tape.record("shift", y, {&p}, [x, &p, events](BackwardPass& pass) {
    const Tensor dy = std::move(pass.dy).sum();
    const float beta = p.next_beta();
    p.grad.data<float>()[0] = (beta == 0 ? 0 : beta * p.grad.data<float>()[0]) + dy.item();
    pass.contributed(p);
    if (events != nullptr) events->push_back("input of " + p.name);
    x.add_grad(dy);
  });
  return y;
}

struct Fixture {
  Context context;
  ParameterStore store;
  Parameter& a = store.add("a", {1}, constant_init(1));
  Parameter& b = store.add("b", {1}, constant_init(2));
  Var x{Tensor::from({1}), true};
  std::vector<std::string> events;

  Fixture() {
    store.finalize(1);
    for (Parameter& p : store.parameters()) fill(p.grad, std::numeric_limits<float>::quiet_NaN());
  }
  void backward(Tape& tape, const Var& loss) {
    tape.backward(
        loss, [&](Parameter& p) { events.push_back("final " + p.name); },
        [&](Parameter& p) { events.push_back("free " + p.name); });
  }
  void check_settled() {
    for (Parameter& p : store.parameters()) {
      CHECK(p.pending == 0);
      CHECK(p.readers == 0);
    }
  }
};

using Events = std::vector<std::string>;

}  // namespace

TEST_CASE("tape: a gradient is final before the input's is computed, weights are free after") {
  Fixture f;
  Tape tape;
  f.backward(tape, shift(tape, shift(tape, f.x, f.a, &f.events), f.b, &f.events));
  CHECK(f.events == Events{"final b", "input of b", "free b", "final a", "input of a", "free a"});
  CHECK(f.a.grad.item() == 1);
  CHECK(f.x.grad().item() == 1);
  CHECK(tape.size() == 0);
  f.check_settled();
}

TEST_CASE("tape: a Var without a tensor has neither value nor gradient") {
  const Var none;
  CHECK_FALSE(none.value().defined());
  CHECK_FALSE(none.grad().defined());
  CHECK(none.shape() == Shape{});
  CHECK_FALSE(none.needs_grad());
  Fixture f;
  Tape tape;
  shift(tape, f.x, f.a);
  CHECK_THROWS_AS(tape.backward(none), InputError);
  CHECK_FALSE(f.x.grad().defined());
}

TEST_CASE("tape: tied weights are reported once, after their last use, with the sum") {
  Fixture f;
  Tape tape;
  // a, b, a: in backward the first use of a comes last.
  f.backward(tape, shift(tape, shift(tape, shift(tape, f.x, f.a), f.b), f.a));
  CHECK(f.events == Events{"final b", "free b", "final a", "free a"});
  CHECK(f.a.grad.item() == 2);
  CHECK(f.b.grad.item() == 1);
  f.check_settled();
}

TEST_CASE("tape: parameters of a branch without gradient become final, unwritten") {
  Fixture f;
  Tape tape;
  const Var dead = shift(tape, f.x, f.b);
  f.backward(tape, shift(tape, f.x, f.a));
  (void)dead;
  CHECK(f.events == Events{"final a", "free a", "final b", "free b"});
  CHECK(f.a.written);
  CHECK_FALSE(f.b.written);  // readers of the gradient must treat it as zero
  f.check_settled();
}

TEST_CASE("tape: a second pass adds, begin_step resets, also between forward and backward") {
  Fixture f;
  for (int pass = 1; pass <= 3; ++pass) {
    Tape tape;
    tape.backward(shift(tape, f.x, f.a));
    CHECK(f.a.grad.item() == static_cast<float>(pass));
  }
  Tape tape;
  const Var loss = shift(tape, f.x, f.a);
  f.store.begin_step();
  f.backward(tape, loss);
  CHECK(f.a.grad.item() == 1);
  CHECK(f.events == Events{"final a", "free a"});
  CHECK_THROWS_WITH(
      tape.backward(loss),
      "backward: the tape is empty: nothing that is trained was recorded, or backward "
      "has been called already");
  Tape first, second;
  const Var other = shift(first, f.x, f.a);
  (void)shift(second, f.x, f.a);
  CHECK_THROWS_WITH(second.backward(other), "backward: the loss was not computed on this tape");
}

TEST_CASE("tape: scale reaches the gradients; two tapes share a parameter") {
  Fixture f;
  Tape one, two;
  const Var first = shift(one, f.x, f.a), second = shift(two, f.x, f.a);
  one.backward(
      first, [&](Parameter&) { f.events.push_back("too early"); }, {}, 0.25f);
  CHECK(f.events.empty());
  f.backward(two, second);
  CHECK(f.events == Events{"final a", "free a"});
  CHECK(f.a.grad.item() == 1.25f);
}

TEST_CASE("tape: a dropped tape, a throwing closure or callback leaves no counts") {
  Fixture f;
  {
    Tape tape;
    shift(tape, shift(tape, f.x, f.a), f.a);
    CHECK(f.a.pending == 2);
  }
  f.check_settled();
  {
    Tape tape;
    const Var y = shift(tape, f.x, f.a);
    const Var loss(Tensor::from({0}), true);
    tape.record("bad", loss, {&f.a, &f.b}, [&](BackwardPass& pass) {
      pass.contributed(f.b);
      throw Error("from a closure");
    });
    CHECK_THROWS_WITH(tape.backward(loss), "from a closure");
    (void)y;
  }
  f.check_settled();
  {
    Tape tape;
    CHECK_THROWS_WITH(tape.backward(shift(tape, shift(tape, f.x, f.a), f.b),
                                    [](Parameter& p) { throw Error("callback " + p.name); }),
                      "callback b");
  }
  f.check_settled();
  {
    Tape tape;
    CHECK_THROWS_AS(
        tape.backward(shift(tape, f.x, f.a), {}, [](Parameter&) { throw Error("callback"); }),
        Error);
  }
  f.check_settled();
  f.store.begin_step();
  Tape tape;
  f.events.clear();
  f.backward(tape, shift(tape, f.x, f.a));
  CHECK(f.events == Events{"final a", "free a"});
  CHECK(f.a.grad.item() == 1);
}

TEST_CASE("tape: misuse is refused") {
  Fixture f;
  Tape tape;
  const Var loss(Tensor::from({0}), true);
  tape.record("greedy", loss, {&f.a}, [&](BackwardPass& pass) {
    pass.contributed(f.a);
    pass.contributed(f.a);
  });
  CHECK_THROWS_AS(tape.backward(loss), InputError);
  CHECK_THROWS_AS(tape.backward(Var(Tensor::zeros({2}), true)), InputError);
  Tape evaluation({.training = false});
  shift(evaluation, f.x, f.a);
  CHECK(evaluation.size() == 0);
  CHECK_THROWS_AS(evaluation.backward(loss), InputError);
  CHECK_THROWS_AS(f.x.add_grad(Tensor::zeros({2})), InputError);
  CHECK_THROWS_AS(f.x.add_grad(Tensor::zeros({1}, DType::bf16)), InputError);
  const Var map(Tensor::zeros({1, 16, 2, 2}), true);
  CHECK_THROWS_AS(map.add_grad(Tensor::zeros({1, 16, 2, 2}, DType::f32, Layout::nhwc)), InputError);
}

TEST_CASE("tape: activations are freed during backward") {
  Fixture f;
  const auto pool = f.context.pool(Device{});
  const size_t before = pool->bytes_in_use();
  constexpr int64_t kSize = 100000;
  Tape tape;
  Var y(Tensor::zeros({kSize}), true);
  for (int i = 0; i < 10; ++i) {
    const Tensor out = Tensor::zeros({kSize});
    Var next(out, true);
    tape.record("link", next, {},
                [y](BackwardPass& pass) { y.add_grad(std::move(pass.dy).sum()); });
    y = next;
  }
  const Var loss(Tensor::from({0}), true);
  tape.record("sum", loss, {}, [y](BackwardPass&) { y.add_grad(Tensor::zeros(y.shape())); });
  y = Var();
  CHECK(pool->bytes_in_use() - before > 11 * kSize * 4);
  pool->reset_peak();
  const size_t at_start = pool->bytes_in_use();
  tape.backward(loss);
  CHECK(pool->peak_bytes_in_use() <= at_start + kSize * 4 + 1024);  // one gradient at a time
  CHECK(pool->bytes_in_use() - before < 1024);
}

TEST_CASE("Grad: up to two parts, other memory is unchanged") {
  Context context;
  const Var x(Tensor::zeros({2}), true);
  const Tensor shared = Tensor::from({1, 2});
  for (int i = 1; i <= 5; ++i) {
    x.add_grad(i % 2 == 1 ? shared : Tensor::from({10, 20}));
    const std::vector<float> sum = x.grad().to_vector();
    CHECK(sum == std::vector<float>{1.0f * ((i + 1) / 2) + 10.0f * (i / 2),
                                    2.0f * ((i + 1) / 2) + 20.0f * (i / 2)});
  }
  CHECK(x.take_grad().sum().to_vector() == std::vector<float>{23, 46});
  CHECK(shared.to_vector() == std::vector<float>{1, 2});
  CHECK_FALSE(x.take_grad().defined());
  const Var constant(Tensor::zeros({2}));
  constant.add_grad(shared);
  CHECK_FALSE(constant.grad().defined());
}

TEST_CASE("ParameterStore: reverse order, 256-byte alignment, zero padding, unique names") {
  Context context;
  ParameterStore store;
  Parameter& first = store.add("first", {3, 5}, normal_init(0.1f));
  Buffer& mean = store.add_buffer("mean", {4}, DType::f32, 2.0f);
  Parameter& second = store.add("second", {64}, uniform_init(0.5f), false);
  Buffer& count = store.add_buffer("count", {}, DType::i64, 7.0f);
  Parameter& third = store.add("third", {}, constant_init(3.0f));
  CHECK_THROWS_WITH(store.add("mean", {1}, constant_init(0)), "buffer mean: added twice");
  CHECK_THROWS_AS(store.add_buffer("first", {1}, DType::f32, 0), InputError);
  store.finalize(5);
  CHECK_THROWS_AS(store.add("late", {1}, constant_init(0)), InputError);
  CHECK_THROWS_AS(store.finalize(5), InputError);

  CHECK(third.offset == 0);
  CHECK(second.offset == 64);
  CHECK(first.offset == 128);
  CHECK(store.values().size() == 192);
  CHECK(store.count() == 15 + 64 + 1);
  for (const Parameter& p : store.parameters()) {
    CHECK(reinterpret_cast<uintptr_t>(p.value.raw()) % 256 == 0);
    CHECK(p.value.raw() == store.values().data<float>() + p.offset);
    CHECK(p.grad.raw() == store.grads().data<float>() + p.offset);
    CHECK(p.value.shape() == p.shape());
  }
  for (int64_t i = 0; i < 192; ++i) {
    CHECK(store.grads().data<float>()[i] == 0);
    if ((i > 0 && i < 64) || i >= 128 + 15) CHECK(store.values().data<float>()[i] == 0);
  }
  for (float v : second.value.to_vector()) CHECK(std::abs(v) <= 0.5f);
  CHECK(third.value.item() == 3);
  CHECK(mean.value.to_vector() == std::vector<float>{2, 2, 2, 2});
  CHECK(*count.value.data<int64_t>() == 7);
  CHECK(store.find("second") == &second);
  CHECK(store.find("nothing") == nullptr);
  std::vector<std::string> names;
  for (const auto& [name, tensor] : store.named_tensors()) names.push_back(name);
  CHECK(names == std::vector<std::string>{"first", "mean", "second", "count", "third"});

  // A parameter's values depend only on the seed and its position, not on threads or neighbours.
  Context one({.threads = 1});
  ParameterStore same;
  Parameter& again = same.add("other name", {3, 5}, normal_init(0.1f));
  same.finalize(5);
  CHECK(again.value.to_vector() == first.value.to_vector());
  ParameterStore other;
  Parameter& differs = other.add("first", {3, 5}, normal_init(0.1f));
  other.finalize(6);
  CHECK(differs.value.to_vector() != first.value.to_vector());
}
