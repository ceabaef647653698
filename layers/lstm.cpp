#include "layers/lstm.h"

#include <cmath>

#include "core/gemm.h"
#include "core/kernels.h"
#include "core/shared_kernel.h"
#include "core/trace.h"
#include "layers/activation.h"
#include "layers/backend.h"
#ifdef HEDDLE_CUDA
#include "layers/lstm_cudnn.h"
#endif

namespace heddle {
namespace {

// One product and one kernel for each time step.
Var layer_by_steps(Tape& tape, const Var& x, const LstmWeights& w, Tensor& h, Tensor& c) {
  const Device device = x.value().device();
  const DType dtype = x.value().dtype();
  const int64_t steps = x.shape()[0], batch = x.shape()[1], hidden = w.hh->shape()[1];
  // The states (T + 1, B, H), entry t the one before step t; activated gates (T, B, 4H).
  const Tensor hs = Tensor::empty_on(device, {steps + 1, batch, hidden}, dtype);
  const Tensor cs = Tensor::empty_on(device, {steps + 1, batch, hidden});
  const Tensor gates = Tensor::empty_on(device, {steps, batch, 4 * hidden});
  convert(h, time_step(hs, 0));
  time_step(cs, 0).copy_from(c);
  const Tensor bias = Tensor::empty_like(w.bias_ih->value);
  add(w.bias_ih->value, w.bias_hh->value, bias);
  const Tensor input = all_steps(x.value());
  gemm(input, converted(w.ih->value, dtype, Layout::plain), all_steps(gates),
       {.transpose_b = true});
  const PackedMatrix recurrent(w.hh->value, true, batch, dtype, 1.0f);
  for (int64_t t = 0; t < steps; ++t) {
    const Tensor gate = time_step(gates, t);
    recurrent.multiply(time_step(hs, t), gate);
    HEDDLE_DISPATCH(device, lstm_cell_forward(gate, bias, time_step(cs, t), time_step(cs, t + 1),
                                              time_step(hs, t + 1)));
  }
  h = converted(time_step(hs, steps), DType::f32, Layout::plain);
  c = time_step(cs, steps);

  Var y(hs.slice(1, steps + 1), x.needs_grad() || any_trained({w.ih, w.hh, w.bias_ih, w.bias_hh}));
  auto backward = [=](BackwardPass& pass) {
    const Tensor dy = std::move(pass.dy).sum();
    const Tensor dgates =
        dtype == DType::f32 ? gates : Tensor::empty_on(device, gates.shape(), dtype);
    // The gradient from the next time step: through the recurrent product, and along the cell.
    const Tensor dh = Tensor::empty_on(device, {batch, hidden});
    const Tensor dc = Tensor::empty_on(device, {batch, hidden});
    dh.fill_zero();
    dc.fill_zero();
    const PackedMatrix recurrent(w.hh->value, false, batch, dtype, 0.0f);
    for (int64_t t = steps - 1; t >= 0; --t) {
      HEDDLE_DISPATCH(device, lstm_cell_backward({.gates = time_step(gates, t),
                                                  .c_before = time_step(cs, t),
                                                  .c = time_step(cs, t + 1),
                                                  .dy = time_step(dy, t),
                                                  .dh = dh,
                                                  .dc = dc,
                                                  .dgates = time_step(dgates, t)}));
      if (t > 0) recurrent.multiply(time_step(dgates, t), dh);
    }
    const Tensor d = all_steps(dgates);
    add_recurrent_gradients(d, d, input, all_steps(hs.slice(0, steps)), w, pass);
    if (!x.needs_grad()) return;
    const Tensor dx = Tensor::empty_on(device, x.shape(), dtype);
    gemm(d, converted(w.ih->value, dtype, Layout::plain), all_steps(dx));
    x.add_grad(dx);
  };
  tape.record(w.ih->name, y, {w.ih, w.hh, w.bias_ih, w.bias_hh}, std::move(backward));
  return y;
}

}  // namespace

Var lstm_layer(Tape& tape, const Var& x, const LstmWeights& w, Tensor& h, Tensor& c) {
  TraceRange range("forward", w.ih->name);
  const auto [steps, batch, hidden] = check_recurrent(x.value(), w, 4);
  check_shape(h, {batch, hidden}, w.hh->name + ": hidden state");
  check_shape(c, {batch, hidden}, w.hh->name + ": cell state");
  w.ih->uses_per_sample = w.hh->uses_per_sample = to_double(steps);
#ifdef HEDDLE_CUDA
  if (x.value().device().is_cuda() && tape.training())
    return cuda::fastest_lstm_layer(tape, x, w, h, c, layer_by_steps);
#endif
  return layer_by_steps(tape, x, w, h, c);
}

Lstm::Lstm(ParameterStore& store, const std::string& name, int64_t input, int64_t hidden,
           const LstmOptions& options)
    : options_(options), hidden_(hidden) {
  check(input > 0 && hidden > 0 && options.layers > 0, name,
        ": expected positive sizes, found input ", input, ", hidden ", hidden, ", layers ",
        options.layers);
  const float bound = options.init > 0 ? options.init : 1.0f / std::sqrt(to_float(hidden));
  for (int64_t l = 0; l < options.layers; ++l)
    weights_.push_back(
        add_recurrent_weights(store, name, l, 4 * hidden, l == 0 ? input : hidden, hidden, bound));
}

LstmState Lstm::zero_state(int64_t batch) const {
  const Device device = weights_[0].hh->value.device();
  const Shape shape = {std::ssize(weights_), batch, hidden_};
  LstmState state{Tensor::empty_on(device, shape), Tensor::empty_on(device, shape)};
  state.h.fill_zero();
  state.c.fill_zero();
  return state;
}

Var Lstm::forward(Tape& tape, const Var& x, LstmState& state) const {
  check(x.shape().rank() == 3, "lstm: expected input (T, B, I), found ", to_string(x.shape()));
  const Shape shape = {std::ssize(weights_), x.shape()[1], hidden_};
  check_shape(state.h, shape, "lstm: hidden state");
  check_shape(state.c, shape, "lstm: cell state");
  LstmState next{Tensor::empty_like(state.h), Tensor::empty_like(state.c)};
  Var y = x;
  for (int64_t l = 0; l < options_.layers; ++l) {
    if (l > 0) y = dropout(tape, y, options_.dropout, 1);
    Tensor h = time_step(state.h, l), c = time_step(state.c, l);
    y = lstm_layer(tape, y, weights_[to_size(l)], h, c);
    time_step(next.h, l).copy_from(h);
    time_step(next.c, l).copy_from(c);
  }
  state = next;
  return y;
}

}  // namespace heddle
