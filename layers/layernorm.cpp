#include "layers/layernorm.h"

#include "core/kernels.h"
#include "core/shared_kernel.h"
#include "core/trace.h"
#include "layers/backend.h"

namespace heddle {

LayerNorm::LayerNorm(ParameterStore& store, const std::string& name, int64_t columns) {
  check(columns > 0, name, ": expected a positive size, found ", columns);
  weight = &store.add(name + ".weight", {columns}, constant_init(1.0f), false);
  bias = &store.add(name + ".bias", {columns}, constant_init(0.0f), false);
}

Var LayerNorm::forward(Tape& tape, const Var& x) const {
  TraceRange range("forward", weight->name);
  check_floating(x.value(), weight->name);
  const int axes = x.shape().rank();
  const int64_t columns = weight->size();
  check(axes > 0 && x.shape()[axes - 1] == columns, weight->name, ": expected input (..., ",
        columns, "), found ", to_string(x.shape()));
  const Device device = x.value().device();
  const DType type = x.value().dtype();
  const Shape rows{x.value().size() / columns, columns};
  const Tensor input = converted(x.value(), type, Layout::plain).reshape(rows);
  const Tensor output = Tensor::empty_like(input);
  const Tensor statistics = Tensor::empty_on(device, {rows[0], 2});
  HEDDLE_DISPATCH(device,
                  layernorm_forward(input, weight->value, bias->value, eps, statistics, output));
  Var y(output.reshape(x.shape()), x.needs_grad() || any_trained({weight, bias}));
  tape.record(
      weight->name, y, {weight, bias},
      [x, input, statistics, rows, type, device, weight = weight, bias = bias](BackwardPass& pass) {
        const Tensor dy = std::move(pass.dy).sum().reshape(rows);
        const Tensor products = Tensor::empty_on(device, rows);
        const Tensor dx = x.needs_grad() ? Tensor::empty_like(input) : Tensor();
        HEDDLE_DISPATCH(device,
                        layernorm_backward(input, statistics, weight->value, dy, products, dx));
        if (!weight->frozen) sum_rows(products, weight->grad, weight->next_beta());
        pass.contributed(*weight);
        if (!bias->frozen) sum_rows(dy, bias->grad, bias->next_beta());
        pass.contributed(*bias);
        if (dx.defined()) x.add_grad(converted(dx.reshape(x.shape()), type, x.value().layout()));
      });
  return y;
}

}  // namespace heddle
