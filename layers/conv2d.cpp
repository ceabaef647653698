#include "layers/conv2d.h"

#include <cmath>

#include "core/kernels.h"
#include "core/shared_kernel.h"
#include "core/trace.h"
#include "layers/backend.h"
#include "layers/channel.h"

namespace heddle {

Shape conv2d_shape(const Shape& x, const Shape& weight, const Conv2dOptions& o,
                   const std::string& name) {
  check(x.rank() == 4 && weight.rank() == 4, name, ": expected four axes, found input ",
        to_string(x), " and weight ", to_string(weight));
  check(o.stride > 0 && o.padding >= 0 && o.groups > 0, name,
        ": stride and groups must be positive, padding at least 0");
  check(x[1] == weight[1] * o.groups && weight[0] % o.groups == 0, name, ": input ", to_string(x),
        " does not fit weight ", to_string(weight), " in ", o.groups, " groups");
  const int64_t height = x[2] + 2 * o.padding - weight[2], width = x[3] + 2 * o.padding - weight[3];
  check(height >= 0 && width >= 0, name, ": input ", to_string(x), " is smaller than the kernel ",
        to_string(weight));
  return {x[0], weight[0], height / o.stride + 1, width / o.stride + 1};
}

namespace {

void check_input(const Tensor& x, const Parameter& weight) {
  check_floating(x, weight.name + ": input");
  check(weight.value.defined() && x.device() == weight.value.device(), weight.name, ": weights ",
        weight.value.defined() ? "on " + to_string(weight.value.device()) : "not finalized",
        ", input on ", to_string(x.device()));
}

}  // namespace

Var conv2d(Tape& tape, const Var& x, Parameter& weight, Parameter* bias, const Conv2dOptions& o) {
  TraceRange range("forward", weight.name);
  const Shape shape = conv2d_shape(x.shape(), weight.shape(), o, weight.name);
  check_input(x.value(), weight);
  const Device device = x.value().device();
  const ConvLayouts layouts = HEDDLE_DISPATCH(device, conv2d_layouts(x.value(), shape[1], o));
  const Tensor input = converted(x.value(), x.value().dtype(), layouts.input);
  Tensor output = Tensor::empty_on(device, shape, input.dtype(), layouts.output);
  HEDDLE_DISPATCH(device, conv2d_forward(input, weight.value, output, o));
  if (bias != nullptr) add_channel_bias(output, bias->value);
  weight.uses_per_sample = to_double(shape[2] * shape[3]);

  Var y(output, x.needs_grad() || any_trained({&weight, bias}));
  const auto backward = [x, input, &weight, bias, o, device](BackwardPass& pass) {
    const Tensor dy = std::move(pass.dy).sum();
    if (!weight.frozen) {
      const float beta = weight.next_beta();
      HEDDLE_DISPATCH(device, conv2d_backward_weight(input, dy, weight.grad, beta, o));
    }
    pass.contributed(weight);
    if (any_trained({bias})) {
      sum_channels(dy, bias->grad, bias->next_beta());
      pass.contributed(*bias);
    }
    if (!x.needs_grad()) return;
    Tensor dx = Tensor::empty_like(input);
    HEDDLE_DISPATCH(device, conv2d_backward_input(dy, weight.value, dx, o));
    x.add_grad(converted(dx, dx.dtype(), x.value().layout()));
  };
  tape.record(weight.name, y, {&weight, bias}, backward);
  return y;
}

// The roles of input and output are exchanged: `output` is the input of a convolution whose output
// is x.
Var conv_transpose2d(Tape& tape, const Var& x, Parameter& weight, Parameter* bias,
                     const Conv2dOptions& o) {
  TraceRange range("forward", weight.name);
  const Shape &s = x.shape(), &w = weight.shape();
  check(s.rank() == 4 && w.rank() == 4 && s[1] == w[0], weight.name, ": input ", to_string(s),
        " does not fit weight ", to_string(w));
  const auto size = [&](int64_t in, int64_t kernel) {
    return (in - 1) * o.stride - 2 * o.padding + kernel;
  };
  const Shape shape{s[0], w[1] * o.groups, size(s[2], w[2]), size(s[3], w[3])};
  check(s[2] > 0 && s[3] > 0 && shape[2] > 0 && shape[3] > 0, weight.name,
        ": empty output for input ", to_string(s), " with weight ", to_string(w));
  (void)conv2d_shape(shape, w, o, weight.name);
  check_input(x.value(), weight);
  const Device device = x.value().device();
  const DType type = x.value().dtype();
  const Layout wanted = device.is_cuda() ? Layout::nhwc : x.value().layout();
  const bool fits = wanted != Layout::c16 || shape[1] % 16 == 0;
  Tensor output = Tensor::empty_on(device, shape, type, fits ? wanted : Layout::nhwc);
  const ConvLayouts layouts = HEDDLE_DISPATCH(device, conv2d_layouts(output, s[1], o));
  if (layouts.input != output.layout())
    output = Tensor::empty_on(device, shape, type, layouts.input);
  const Tensor input = converted(x.value(), type, layouts.output);
  HEDDLE_DISPATCH(device, conv2d_backward_input(input, weight.value, output, o));
  if (bias != nullptr) add_channel_bias(output, bias->value);
  weight.uses_per_sample = to_double(s[2] * s[3]);

  Var y(output, x.needs_grad() || any_trained({&weight, bias}));
  const auto backward = [x, input, &weight, bias, o, device](BackwardPass& pass) {
    const Tensor dy = std::move(pass.dy).sum();
    if (!weight.frozen) {
      const float beta = weight.next_beta();
      HEDDLE_DISPATCH(device, conv2d_backward_weight(dy, input, weight.grad, beta, o));
    }
    pass.contributed(weight);
    if (any_trained({bias})) {
      sum_channels(dy, bias->grad, bias->next_beta());
      pass.contributed(*bias);
    }
    if (!x.needs_grad()) return;
    Tensor dx = Tensor::empty_like(input);
    HEDDLE_DISPATCH(device, conv2d_forward(dy, weight.value, dx, o));
    x.add_grad(converted(dx, dx.dtype(), x.value().layout()));
  };
  tape.record(weight.name, y, {&weight, bias}, backward);
  return y;
}

Conv2d::Conv2d(ParameterStore& store, const std::string& name, const Options& o)
    : options{o.stride, o.padding, o.groups} {
  check(o.in > 0 && o.out > 0 && o.groups > 0 && o.in % o.groups == 0 && o.out % o.groups == 0,
        name, ": channels must be positive and divisible by groups");
  check(o.kernel > 0, name, ": expected a positive kernel, found ", o.kernel);
  const int64_t area = o.kernel * o.kernel;
  const double fan = to_double(area * (o.fan_out ? o.out : o.in / o.groups));
  weight = &store.add(name + ".weight", {o.out, o.in / o.groups, o.kernel, o.kernel},
                      normal_init(to_float(std::sqrt(2.0 / fan))));
  if (o.bias) {
    const double bound = 1.0 / std::sqrt(to_double(area * o.in / o.groups));
    bias = &store.add(name + ".bias", {o.out}, uniform_init(to_float(bound)), false);
  }
}

}  // namespace heddle
