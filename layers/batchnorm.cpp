#include "layers/batchnorm.h"

#include <cmath>

#include "core/kernels.h"
#include "core/shared_kernel.h"
#include "core/trace.h"

namespace heddle {
namespace {

// Moves the running statistics towards a finite batch's.
void update_running(const BatchNorm2d& norm, const Tensor& mean, const Tensor& variance,
                    int64_t count) {
  if (!all_finite(mean) || !all_finite(variance)) return;
  const float unbiased = static_cast<float>(count) / static_cast<float>(count - 1);
  scale(norm.running_mean->value, 1.0f - norm.momentum);
  axpy(norm.momentum, mean, norm.running_mean->value);
  scale(norm.running_var->value, 1.0f - norm.momentum);
  axpy(norm.momentum * unbiased, variance, norm.running_var->value);
  ++*norm.batches->value.data<int64_t>();
}

struct Affine {
  Tensor invstd, scale, shift;
};

Affine make_affine(const BatchNorm2d& norm, const Tensor& mean, const Tensor& variance) {
  const Device device = mean.device();
  const Tensor m = mean.to(Device{}), v = variance.to(Device{});
  const Tensor w = norm.weight->value.to(Device{}), b = norm.bias->value.to(Device{});
  const int64_t channels = m.size();
  Affine out;
  for (Tensor* t : {&out.invstd, &out.scale, &out.shift})
    *t = Tensor::empty_on(Device{}, {channels});
  for (int64_t c = 0; c < channels; ++c) {
    const float invstd = 1.0f / std::sqrt(v.data<float>()[c] + norm.eps);
    const float scale = w.data<float>()[c] * invstd;
    out.invstd.data<float>()[c] = invstd;
    out.scale.data<float>()[c] = scale;
    out.shift.data<float>()[c] = b.data<float>()[c] - m.data<float>()[c] * scale;
  }
  return {out.invstd.to(device), out.scale.to(device), out.shift.to(device)};
}

}  // namespace

BatchNorm2d::BatchNorm2d(ParameterStore& store, const std::string& name, int64_t channels)
    : weight(&store.add(name + ".weight", {channels}, constant_init(1.0f), false)),
      bias(&store.add(name + ".bias", {channels}, constant_init(0.0f), false)),
      running_mean(&store.add_buffer(name + ".running_mean", {channels}, DType::f32, 0.0f)),
      running_var(&store.add_buffer(name + ".running_var", {channels}, DType::f32, 1.0f)),
      batches(&store.add_buffer(name + ".num_batches_tracked", {}, DType::i64, 0.0f)) {}

Var batchnorm2d(Tape& tape, const Var& x, const BatchNorm2d& norm, const BatchNormFusion& fusion) {
  TraceRange range("forward", norm.weight->name);
  const Tensor& input = x.value();
  auto [n, c, h, w] = dims<4>(input, norm.weight->name.c_str());
  check_floating(input, norm.weight->name);
  check_shape(norm.weight->value, {c}, norm.weight->name);
  const Tensor residual = fusion.residual ? fusion.residual->value() : Tensor{};
  if (residual.defined())
    check(residual.shape() == input.shape() && residual.dtype() == input.dtype() &&
              residual.layout() == input.layout(),
          norm.weight->name, ": residual ", to_string(residual.shape()), " ",
          layout_name(residual.layout()), " does not fit ", to_string(input.shape()), " ",
          layout_name(input.layout()));
  const Device device = input.device();
  Tensor mean = norm.running_mean->value, variance = norm.running_var->value;
  if (tape.training()) {
    check(n * h * w > 1, norm.weight->name, ": one value per channel cannot be normalised, input ",
          to_string(input.shape()));
    mean = Tensor::empty_on(device, {c});
    variance = Tensor::empty_on(device, {c});
    HEDDLE_DISPATCH(device, batchnorm_statistics(input, mean, variance));
    update_running(norm, mean, variance, n * h * w);
  }
  const Affine affine = make_affine(norm, mean, variance);
  Tensor output = Tensor::empty_like(input);
  HEDDLE_DISPATCH(
      device, batchnorm_apply(input, affine.scale, affine.shift, residual, fusion.relu, output));
  Var y(output, true);
  const Var skip = fusion.residual ? *fusion.residual : Var();
  // Without a residual the sign of ReLU's input follows from x, and y need not be kept.
  const Tensor kept = residual.defined() ? output : Tensor{};
  Parameter &weight = *norm.weight, &bias = *norm.bias;
  tape.record(weight.name, y, {&weight, &bias},
              [x, skip, kept, mean, affine, &weight, &bias, relu = fusion.relu,
               device](BackwardPass& pass) {
                Tensor dy = std::move(pass.dy.first), dy2 = std::move(pass.dy.second);
                if (!dy.unique() && dy2.defined()) std::swap(dy, dy2);
                const bool wants_dz = skip.needs_grad();
                Tensor dz, dx;
                if (wants_dz) {
                  dz = dy.unique() ? dy : Tensor::empty_like(dy);
                  dx = Tensor::empty_like(x.value());
                } else {
                  dx = dy.unique() ? dy : Tensor::empty_like(x.value());
                }
                HEDDLE_DISPATCH(device, batchnorm_backward({.x = x.value(),
                                                            .y = kept,
                                                            .mean = mean,
                                                            .invstd = affine.invstd,
                                                            .scale = affine.scale,
                                                            .shift = affine.shift,
                                                            .dy = dy,
                                                            .dy2 = dy2,
                                                            .dz = dz,
                                                            .dx = dx,
                                                            .dweight = weight.grad,
                                                            .dbias = bias.grad,
                                                            .beta_weight = weight.next_beta(),
                                                            .beta_bias = bias.next_beta(),
                                                            .relu = relu,
                                                            .residual = kept.defined()}));
                pass.contributed(weight);
                pass.contributed(bias);
                dy = dy2 = {};
                if (wants_dz) skip.add_grad(std::move(dz));
                x.add_grad(std::move(dx));
              });
  return y;
}

}  // namespace heddle
