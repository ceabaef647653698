#include "layers/linear.h"

#include <cmath>

#include "core/gemm.h"
#include "core/kernels.h"
#include "core/trace.h"

namespace heddle {

Var linear(Tape& tape, const Var& x, Parameter& weight, Parameter* bias) {
  TraceRange range("forward", weight.name);
  const int axes = x.shape().rank();
  const int64_t out = weight.shape()[0], in = weight.shape()[1];
  check(axes >= 1 && x.shape()[axes - 1] == in && weight.value.defined(), weight.name,
        ": expected a finalized store and input (..., ", in, "), found ", to_string(x.shape()));
  const DType dtype = x.value().dtype();
  const int64_t n = in > 0 ? x.value().size() / in : 0;
  const Tensor input = converted(x.value(), dtype, Layout::plain).reshape({n, in});
  const Tensor output = Tensor::empty_on(input.device(), {n, out});
  const Tensor matrix = converted(weight.value, dtype, Layout::plain);
  if (bias != nullptr)
    gemm_with_bias(input, matrix, true, bias->value, output);
  else
    gemm(input, matrix, output, {.transpose_b = true});
  weight.uses_per_sample = axes == 3 ? to_double(x.shape()[0]) : 1;

  Shape shape = x.shape();
  shape[axes - 1] = out;
  Var y(output.reshape(shape), x.needs_grad() || any_trained({&weight, bias}));
  const auto backward = [x, input, &weight, bias, n, out](BackwardPass& pass) {
    const DType dtype = input.dtype();
    Tensor dy = std::move(pass.dy).sum().reshape({n, out});
    if (any_trained({bias})) {
      sum_rows(dy, bias->grad, bias->next_beta());
      pass.contributed(*bias);
    }
    dy = converted(dy, dtype, Layout::plain);
    if (!weight.frozen)
      gemm(dy, input, weight.grad, {.transpose_a = true, .beta = weight.next_beta()});
    pass.contributed(weight);
    if (!x.needs_grad()) return;
    const Tensor dx = Tensor::empty_like(input);
    gemm(dy, converted(weight.value, dtype, Layout::plain), dx);
    x.add_grad(converted(dx.reshape(x.shape()), dtype, x.value().layout()));
  };
  tape.record(weight.name, y, {&weight, bias}, backward);
  return y;
}

Linear::Linear(ParameterStore& store, const std::string& name, int64_t in, int64_t out, bool with) {
  check(in > 0 && out > 0, name, ": expected positive sizes, found ", in, " and ", out);
  const float bound = 1.0f / std::sqrt(to_float(in));
  weight = &store.add(name + ".weight", {out, in}, uniform_init(bound));
  if (with) bias = &store.add(name + ".bias", {out}, uniform_init(bound), false);
}

}  // namespace heddle
