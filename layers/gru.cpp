#include "layers/gru.h"

#include <cmath>

#include "core/gemm.h"
#include "core/kernels.h"
#include "core/shared_kernel.h"
#include "core/trace.h"
#include "layers/activation.h"
#include "layers/backend.h"

namespace heddle {

Var gru_layer(Tape& tape, const Var& x, const RecurrentWeights& w, Tensor& h) {
  TraceRange range("forward", w.ih->name);
  const auto [steps, batch, hidden] = check_recurrent(x.value(), w, 3);
  check_shape(h, {batch, hidden}, w.hh->name + ": hidden state");
  const Device device = x.value().device();
  const DType type = x.value().dtype();

  // The states, entry t the one before step t; products, which become gates.
  const Tensor hs = Tensor::empty_on(device, {steps + 1, batch, hidden});
  time_step(hs, 0).copy_from(h);
  const Tensor gates = Tensor::empty_on(device, {steps, batch, 3 * hidden});
  const Tensor recurrent = Tensor::empty_like(gates);
  const Tensor input = all_steps(x.value());
  gemm(input, converted(w.ih->value, type, Layout::plain), all_steps(gates), {.transpose_b = true});
  const PackedMatrix product(w.hh->value, true, batch, type, 0.0f);
  for (int64_t t = 0; t < steps; ++t) {
    product.multiply(converted(time_step(hs, t), type, Layout::plain), time_step(recurrent, t));
    HEDDLE_DISPATCH(device,
                    gru_cell_forward(time_step(gates, t), time_step(recurrent, t), w.bias_ih->value,
                                     w.bias_hh->value, time_step(hs, t), time_step(hs, t + 1)));
  }
  h = time_step(hs, steps);
  w.ih->uses_per_sample = w.hh->uses_per_sample = to_double(steps);

  const Tensor output = converted(hs.slice(1, steps + 1), type, Layout::plain);
  Var y(output, x.needs_grad() || any_trained({w.ih, w.hh, w.bias_ih, w.bias_hh}));
  auto backward = [x, input, w, hs, gates, recurrent, device, type](BackwardPass& pass) {
    const int64_t steps = x.shape()[0], batch = x.shape()[1], hidden = w.hh->shape()[1];
    const Tensor dy = std::move(pass.dy).sum();
    const Tensor dgates = Tensor::empty_on(device, gates.shape(), type);
    const Tensor drecurrent = Tensor::empty_on(device, gates.shape(), type);
    const Tensor dh = Tensor::empty_on(device, {batch, hidden});
    dh.fill_zero();
    const PackedMatrix product(w.hh->value, false, batch, type, 1.0f);
    for (int64_t t = steps - 1; t >= 0; --t) {
      HEDDLE_DISPATCH(device, gru_cell_backward({.gates = time_step(gates, t),
                                                 .recurrent = time_step(recurrent, t),
                                                 .before = time_step(hs, t),
                                                 .dy = time_step(dy, t),
                                                 .dh = dh,
                                                 .dgates = time_step(dgates, t),
                                                 .drecurrent = time_step(drecurrent, t)}));
      if (t > 0) product.multiply(time_step(drecurrent, t), dh);
    }
    const Tensor before = converted(hs.slice(0, steps), type, Layout::plain);
    add_recurrent_gradients(all_steps(dgates), all_steps(drecurrent), input, all_steps(before), w,
                            pass);
    if (!x.needs_grad()) return;
    const Tensor dx = Tensor::empty_on(device, x.shape(), type);
    gemm(all_steps(dgates), converted(w.ih->value, type, Layout::plain), all_steps(dx));
    x.add_grad(dx);
  };
  tape.record(w.ih->name, y, {w.ih, w.hh, w.bias_ih, w.bias_hh}, std::move(backward));
  return y;
}

Gru::Gru(ParameterStore& store, const std::string& name, int64_t input, int64_t hidden,
         int64_t layers, float dropout)
    : hidden_(hidden), dropout_(dropout) {
  check(input > 0 && hidden > 0 && layers > 0, name, ": expected positive sizes, found input ",
        input, ", hidden ", hidden, ", layers ", layers);
  const float bound = 1.0f / std::sqrt(to_float(hidden));
  for (int64_t l = 0; l < layers; ++l)
    weights_.push_back(
        add_recurrent_weights(store, name, l, 3 * hidden, l == 0 ? input : hidden, hidden, bound));
}

Tensor Gru::zero_state(int64_t batch) const {
  Tensor state =
      Tensor::empty_on(weights_[0].hh->value.device(), {std::ssize(weights_), batch, hidden_});
  state.fill_zero();
  return state;
}

Var Gru::forward(Tape& tape, const Var& x, Tensor& state) const {
  check(x.shape().rank() == 3, "gru: expected input (T, B, I), found ", to_string(x.shape()));
  check_shape(state, {std::ssize(weights_), x.shape()[1], hidden_}, "gru: hidden state");
  const Tensor next = Tensor::empty_like(state);
  Var y = x;
  for (int64_t l = 0; l < std::ssize(weights_); ++l) {
    if (l > 0) y = dropout(tape, y, dropout_, 1);
    Tensor h = time_step(state, l);
    y = gru_layer(tape, y, weights_[to_size(l)], h);
    time_step(next, l).copy_from(h);
  }
  state = next;
  return y;
}

}  // namespace heddle
