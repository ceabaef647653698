#include "layers/recurrent.h"

#include "core/gemm.h"
#include "core/kernels.h"

namespace heddle {

RecurrentWeights add_recurrent_weights(ParameterStore& store, const std::string& name,
                                       int64_t layer, int64_t rows, int64_t input, int64_t hidden,
                                       float bound) {
  const auto make = [&](const char* kind, const Shape& shape, bool decay) {
    return &store.add(concat(name, kind, "_l", layer), shape, uniform_init(bound), decay);
  };
  return {make(".weight_ih", {rows, input}, true), make(".weight_hh", {rows, hidden}, true),
          make(".bias_ih", {rows}, false), make(".bias_hh", {rows}, false)};
}

std::array<int64_t, 3> check_recurrent(const Tensor& x, const RecurrentWeights& w, int64_t gates) {
  auto [steps, batch, in] = dims<3>(x, w.ih->name.c_str());
  const int64_t hidden = w.hh->shape()[1];
  check(w.ih->shape() == Shape{gates * hidden, in}, w.ih->name, ": expected input (T, B, ",
        w.ih->shape()[1], "), found ", to_string(x.shape()));
  check(steps > 0 && batch > 0, w.ih->name, ": empty input ", to_string(x.shape()));
  check(x.device() == w.ih->value.device(), w.ih->name, ": weights on ",
        to_string(w.ih->value.device()), ", input on ", to_string(x.device()));
  for (const auto* bias : {w.bias_ih, w.bias_hh})
    check_shape(bias->value, {gates * hidden}, bias->name);
  return {steps, batch, hidden};
}

void add_recurrent_gradients(const Tensor& dgates, const Tensor& drecurrent, const Tensor& input,
                             const Tensor& before, const RecurrentWeights& w, BackwardPass& pass) {
  if (!w.hh->frozen)
    gemm(drecurrent, before, w.hh->grad, {.transpose_a = true, .beta = w.hh->next_beta()});
  pass.contributed(*w.hh);
  if (!w.ih->frozen)
    gemm(dgates, input, w.ih->grad, {.transpose_a = true, .beta = w.ih->next_beta()});
  pass.contributed(*w.ih);
  Tensor sums;  // of dgates, which both biases may share
  for (Parameter* bias : {w.bias_ih, w.bias_hh}) {
    if (bias->frozen) continue;
    const Tensor& rows = bias == w.bias_ih ? dgates : drecurrent;
    if (!sums.defined() || rows.raw() != dgates.raw()) {
      sums = Tensor::empty_like(bias->value);
      sum_rows(rows, sums, 0.0f);
    }
    if (bias->next_beta() == 0.0f)
      bias->grad.copy_from(sums);
    else
      add_to(sums, bias->grad);
    pass.contributed(*bias);
  }
}

Tensor time_step(const Tensor& buffer, int64_t t) {
  return buffer.slice(t, t + 1).reshape({buffer.shape()[1], buffer.shape()[2]});
}

Tensor all_steps(const Tensor& x) { return x.reshape({x.shape()[0] * x.shape()[1], x.shape()[2]}); }

}  // namespace heddle
