#include "layers/activation.h"

#include <algorithm>

#include "core/kernels.h"
#include "core/shared_kernel.h"
#include "core/trace.h"
#include "layers/backend.h"

namespace heddle {
namespace {

Var activate(Tape& tape, const char* name, const Activation& a, const Var& x) {
  TraceRange range("forward", name);
  check_floating(x.value(), name);
  const Device device = x.value().device();
  const Tensor output = Tensor::empty_like(x.value());
  HEDDLE_DISPATCH(device, activation_forward(a, x.value(), output));
  Var y(output, x.needs_grad());
  const Tensor kept = a.kind == Activation::gelu ? x.value() : output;
  tape.record(name, y, {}, [x, kept, a, device](BackwardPass& pass) {
    const Tensor dy = std::move(pass.dy).sum();
    const Tensor dx = dy.unique() ? dy : Tensor::empty_like(dy);
    HEDDLE_DISPATCH(device, activation_backward(a, kept, dy, dx));
    x.add_grad(dx);
  });
  return y;
}

}  // namespace

Var relu(Tape& tape, const Var& x) { return activate(tape, "relu", {Activation::relu}, x); }

Var leaky_relu(Tape& tape, const Var& x, float slope) {
  check(slope >= 0.0f, "leaky relu: expected a slope of at least 0, found ", slope);
  return activate(tape, "leaky relu", {Activation::leaky_relu, slope}, x);
}

Var sigmoid(Tape& tape, const Var& x) {
  return activate(tape, "sigmoid", {Activation::sigmoid}, x);
}

Var tanh(Tape& tape, const Var& x) { return activate(tape, "tanh", {Activation::tanh}, x); }

Var gelu(Tape& tape, const Var& x) { return activate(tape, "gelu", {Activation::gelu}, x); }

Var softmax(Tape& tape, const Var& x) {
  TraceRange range("forward", "softmax");
  check_floating(x.value(), "softmax");
  const int axes = x.shape().rank();
  const int64_t columns = axes > 0 ? x.shape()[axes - 1] : 0;
  check(columns > 0, "softmax: expected input (..., C), found ", to_string(x.shape()));
  const Device device = x.value().device();
  const DType type = x.value().dtype();
  const Shape rows{x.value().size() / columns, columns};
  const auto as_rows = [rows](const Tensor& t, DType type) {
    return converted(t, type, Layout::plain).reshape(rows);
  };
  const Tensor input = as_rows(x.value(), DType::f32);
  const Tensor output = Tensor::empty_on(device, rows, type);
  HEDDLE_DISPATCH(device, softmax_forward(input, 1.0f, 0, output));
  Var y(output.reshape(x.shape()), x.needs_grad());
  tape.record("softmax", y, {}, [x, output, as_rows, type, device](BackwardPass& pass) {
    const Tensor dy = as_rows(std::move(pass.dy).sum(), DType::f32);
    const Tensor dx = Tensor::empty_like(output);
    HEDDLE_DISPATCH(device, softmax_backward(output, dy, 1.0f, dx));
    x.add_grad(converted(dx.reshape(x.shape()), type, x.value().layout()));
  });
  return y;
}

Var add(Tape& tape, const Var& a, const Var& b) {
  const Tensor output = Tensor::empty_like(a.value());
  add(a.value(), b.value(), output);
  Var y(output, a.needs_grad() || b.needs_grad());
  tape.record("add", y, {}, [a, b](BackwardPass& pass) {
    // Both inputs get the same memory: no longer unique, so neither writes into it.
    Tensor dy = std::move(pass.dy).sum();
    a.add_grad(dy);
    b.add_grad(std::move(dy));
  });
  return y;
}

Var dropout(Tape& tape, const Var& x, float p, int batch_axis) {
  check(p >= 0.0f && p < 1.0f, "dropout: expected a probability in [0, 1), found ", p);
  check(batch_axis >= 0 && batch_axis < std::max(1, x.shape().rank()), "dropout: batch axis ",
        batch_axis, " does not fit ", to_string(x.shape()));
  check(batch_axis == 0 || x.value().layout() == Layout::plain, "dropout: batch axis ", batch_axis,
        " needs a plain layout, found ", layout_name(x.value().layout()));
  if (!tape.training() || p == 0.0f) return x;
  TraceRange range("forward", "dropout");
  const TapeOptions& options = tape.options();
  check(options.step != kNoStep || options.counters.defined(),
        "dropout: the tape does not know its step, and every step would drop the same elements; "
        "make it with Tape tape({.step = step})");
  const DropoutKey key{.p = p,
                       .seed = options.seed,
                       .step = options.step,
                       .operation = tape.next_random_op(),
                       .first = options.first_sample,
                       .batch_axis = batch_axis,
                       .counters = options.counters};
  check(key.operation < 256, "dropout: expected at most 256 in a pass; masks would repeat");
  const Tensor& input = x.value();
  const Device device = input.device();
  check(!key.counters.defined() || key.counters.device() == device,
        "dropout: expected counters on ", to_string(device));
  const Tensor output = Tensor::empty_like(input);
  HEDDLE_DISPATCH(device, dropout_apply(input, output, key));
  Var y(output, x.needs_grad());
  tape.record("dropout", y, {}, [x, key, device](BackwardPass& pass) {
    // The mask is a function of the counter: it is drawn again instead of kept.
    const Tensor dy = std::move(pass.dy).sum();
    const Tensor dx = dy.unique() ? dy : Tensor::empty_like(dy);
    HEDDLE_DISPATCH(device, dropout_apply(dy, dx, key));
    x.add_grad(dx);
  });
  return y;
}

}  // namespace heddle
