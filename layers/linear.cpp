#include "layers/linear.h"

#include <cmath>

#include "core/gemm.h"
#include "core/kernels.h"
#include "core/trace.h"

namespace heddle {

Var linear(Tape& tape, const Var& x, Parameter& weight, Parameter* bias) {
  TraceRange range("forward", weight.name);
  auto [n, in] = dims<2>(x.value(), weight.name.c_str());
  const int64_t out = weight.shape()[0];
  check(weight.shape()[1] == in, weight.name, ": expected input (N, ", weight.shape()[1],
        "), found ", to_string(x.shape()));
  const Tensor input = converted(x.value(), DType::f32, Layout::plain);
  const Tensor output = Tensor::empty_on(input.device(), {n, out});
  if (bias != nullptr) repeat_row(bias->value, output);
  gemm(input, weight.value, output, {.transpose_b = true, .beta = bias != nullptr ? 1.0f : 0.0f});
  weight.uses_per_sample = 1;

  Var y(output, true);
  std::vector<Parameter*> uses = {&weight};
  if (bias != nullptr) uses.push_back(bias);
  tape.record(weight.name, y, uses, [x, input, &weight, bias](BackwardPass& pass) {
    const Tensor dy = std::move(pass.dy).sum();
    gemm(dy, input, weight.grad, {.transpose_a = true, .beta = weight.next_beta()});
    pass.contributed(weight);
    if (bias != nullptr) {
      sum_rows(dy, bias->grad, bias->next_beta());
      pass.contributed(*bias);
    }
    if (!x.needs_grad()) return;
    const Tensor dx = Tensor::empty_like(input);
    gemm(dy, weight.value, dx);
    x.add_grad(converted(dx, x.value().dtype(), Layout::plain));
  });
  return y;
}

Linear::Linear(ParameterStore& store, const std::string& name, int64_t in, int64_t out, bool with) {
  check(in > 0 && out > 0, name, ": expected positive sizes, found ", in, " and ", out);
  const float bound = 1.0f / std::sqrt(static_cast<float>(in));
  weight = &store.add(name + ".weight", {out, in}, uniform_init(bound));
  if (with) bias = &store.add(name + ".bias", {out}, uniform_init(bound), false);
}

}  // namespace heddle
