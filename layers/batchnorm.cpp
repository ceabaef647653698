#include "layers/batchnorm.h"

#include <utility>

#include "core/kernels.h"
#include "core/shared_kernel.h"
#include "core/trace.h"
#include "layers/backend.h"

namespace heddle {

BatchNorm2d::BatchNorm2d(ParameterStore& store, const std::string& name, int64_t channels)
    : weight(&store.add(name + ".weight", {channels}, constant_init(1.0f), false)),
      bias(&store.add(name + ".bias", {channels}, constant_init(0.0f), false)),
      running_mean(
          &store.add_buffer(name + ".running_mean", {channels}, DType::f32, 0.0f, fixed())),
      running_var(&store.add_buffer(name + ".running_var", {channels}, DType::f32, 1.0f, fixed())),
      batches(&store.add_buffer(name + ".num_batches_tracked", {}, DType::i64, 0.0f, fixed())) {}

namespace {

// Records the backward pass of y = [relu](x * scale + shift + skip), whose statistics depend on
// nothing.
void record_fixed(Tape& tape, const std::string& name, const Var& x, const Var& skip, bool relu,
                  const Tensor& scale, const Var& y) {
  const Tensor kept = relu ? y.value() : Tensor{};
  tape.record(name, y, {}, [x, skip, scale, kept, device = x.value().device()](BackwardPass& pass) {
    Tensor dz = std::move(pass.dy).sum();
    if (kept.defined()) {
      const Tensor dy = dz;
      dz = Tensor::empty_like(dy);
      HEDDLE_DISPATCH(device, activation_backward({Activation::relu}, kept, dy, dz));
    }
    if (x.needs_grad()) {
      const Tensor dx = Tensor::empty_like(dz), none = Tensor::zeros(scale.shape());
      HEDDLE_DISPATCH(device, batchnorm_apply(dz, scale, none, Tensor{}, false, dx));
      x.add_grad(dx);
    }
    if (skip.needs_grad()) skip.add_grad(std::move(dz));
  });
}

}  // namespace

Var batchnorm2d(Tape& tape, const Var& x, const BatchNorm2d& norm, const BatchNormFusion& fusion) {
  TraceRange range("forward", norm.weight->name);
  const Tensor& input = x.value();
  auto [n, c, h, w] = dims<4>(input, norm.weight->name.c_str());
  check_floating(input, norm.weight->name);
  check_shape(norm.weight->value, {c}, norm.weight->name);
  const Tensor residual = fusion.residual ? fusion.residual->value() : Tensor{};
  if (residual.defined()) check_form(residual, input.form(), norm.weight->name.c_str());
  const Device device = input.device();
  const bool training = tape.training() && !norm.fixed();
  check(!training || n * h * w > 1, norm.weight->name,
        ": one value per channel cannot be normalised, input ", to_string(input.shape()));
  const auto of_batch = [&](const Buffer& running) {
    return training ? Tensor::empty_on(device, running.value.shape()) : running.value;
  };
  const Tensor mean = of_batch(*norm.running_mean), variance = of_batch(*norm.running_var),
               invstd = Tensor::empty_on(device, {c}), scale = Tensor::empty_on(device, {c}),
               shift = Tensor::empty_on(device, {c});
  const BatchNormAffine affine = {
      mean, variance, norm.weight->value, norm.bias->value, norm.eps, invstd, scale, shift};
  const int64_t count = n * h * w;
  const BatchNormRunning running = {.mean = mean,
                                    .variance = variance,
                                    .momentum = norm.momentum,
                                    .unbiased = to_float(count) / to_float(count - 1),
                                    .running_mean = norm.running_mean->value,
                                    .running_var = norm.running_var->value,
                                    .batches = norm.batches->value};
  Tensor output = Tensor::empty_like(input);
  training ? HEDDLE_DISPATCH(device, batchnorm_statistics(input, affine))
           : HEDDLE_DISPATCH(device, batchnorm_affine(affine));
  const Tensor of_output =
      HEDDLE_DISPATCH(device, batchnorm_apply(input, scale, shift, residual, fusion.relu, output,
                                              training ? &running : nullptr));
  const Var skip = fusion.residual ? *fusion.residual : Var();
  Var y(output, x.needs_grad() || skip.needs_grad() || !norm.fixed());
  if (norm.fixed()) {
    record_fixed(tape, norm.weight->name, x, skip, fusion.relu, scale, y);
    return y;
  }
  // Without a residual the sign of ReLU's input follows from x.
  const Tensor kept = residual.defined() && fusion.relu ? of_output : Tensor{};
  Parameter &weight = *norm.weight, &bias = *norm.bias;
  tape.record(weight.name, y, {&weight, &bias},
              [x, skip, kept, mean, invstd, scale, shift, &weight, &bias, relu = fusion.relu,
               device](BackwardPass& pass) {
                Tensor dy = std::move(pass.dy.first), dy2 = std::move(pass.dy.second);
                if (!dy.unique() && dy2.defined()) std::swap(dy, dy2);
                const bool wants_dz = skip.needs_grad();
                Tensor dx = dy.unique() ? dy : Tensor::empty_like(dy), dz;
                if (wants_dz) dz = std::exchange(dx, Tensor::empty_like(x.value()));
                // One of the two may be frozen; the kernel computes both.
                const bool partly = weight.frozen || bias.frozen;
                const Tensor unused = partly ? Tensor::empty_like(scale) : Tensor{};
                HEDDLE_DISPATCH(device, batchnorm_backward(
                                            {.x = x.value(),
                                             .kept = kept,
                                             .mean = mean,
                                             .invstd = invstd,
                                             .scale = scale,
                                             .shift = shift,
                                             .dy = dy,
                                             .dy2 = dy2,
                                             .dz = dz,
                                             .dx = dx,
                                             .dweight = weight.frozen ? unused : weight.grad,
                                             .dbias = bias.frozen ? unused : bias.grad,
                                             .beta_weight = weight.frozen ? 0 : weight.next_beta(),
                                             .beta_bias = bias.frozen ? 0 : bias.next_beta(),
                                             .relu = relu}));
                pass.contributed(weight);
                pass.contributed(bias);
                dy = dy2 = {};
                if (wants_dz) skip.add_grad(std::move(dz));
                x.add_grad(std::move(dx));
              });
  return y;
}

}  // namespace heddle
