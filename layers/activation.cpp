#include "layers/activation.h"

#include <algorithm>

#include "core/kernels.h"
#include "core/shared_kernel.h"
#include "core/trace.h"
#include "layers/backend.h"

namespace heddle {

Var relu(Tape& tape, const Var& x) {
  TraceRange range("forward", "relu");
  const Device device = x.value().device();
  const Tensor output = Tensor::empty_like(x.value());
  HEDDLE_DISPATCH(device, relu_forward(x.value(), output));
  Var y(output, true);
  tape.record("relu", y, {}, [x, output, device](BackwardPass& pass) {
    const Tensor dy = std::move(pass.dy).sum();
    const Tensor dx = dy.unique() ? dy : Tensor::empty_like(dy);
    HEDDLE_DISPATCH(device, relu_backward(output, dy, dx));
    x.add_grad(dx);
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
  const DropoutKey key{.p = p,
                       .seed = options.seed,
                       .step = options.step,
                       .operation = tape.next_random_op(),
                       .first = options.first_sample,
                       .batch_axis = batch_axis,
                       .counters = options.counters};
  const Tensor& input = x.value();
  const Device device = input.device();
  check(!key.counters.defined() || key.counters.device() == device,
        "dropout: expected counters on ", to_string(device));
  const Tensor output = Tensor::empty_like(input);
  HEDDLE_DISPATCH(device, dropout_apply(input, output, key));
  Var y(output, true);
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
