#include "layers/pooling.h"

#include "core/kernels.h"
#include "core/shared_kernel.h"
#include "core/trace.h"
#include "layers/backend.h"

namespace heddle {
namespace {

Var pool(Tape& tape, const Var& x, PoolKind kind, const PoolWindow& o) {
  auto [n, c, h, w] = dims<4>(x.value(), "pooling input");
  check_floating(x.value(), "pooling input");
  check(o.kernel_h > 0 && o.kernel_w > 0 && o.stride > 0 && o.padding >= 0 &&
            2 * o.padding <= o.kernel_h,
        "pooling: expected a positive kernel and stride and at most half a kernel of padding");
  check(h + 2 * o.padding >= o.kernel_h && w + 2 * o.padding >= o.kernel_w, "pooling: input ",
        to_string(x.shape()), " is smaller than the kernel ", o.kernel_h, "x", o.kernel_w);
  const Device device = x.value().device();
  const Shape shape = {n, c, (h + 2 * o.padding - o.kernel_h) / o.stride + 1,
                       (w + 2 * o.padding - o.kernel_w) / o.stride + 1};
  const Tensor output = Tensor::empty_on(device, shape, x.value().dtype(), x.value().layout());
  const Tensor workspace = HEDDLE_DISPATCH(device, pool_forward(kind, x.value(), output, o));
  Var y(output, x.needs_grad());
  tape.record("pooling", y, {}, [x, workspace, kind, o, device](BackwardPass& pass) {
    const Tensor dy = std::move(pass.dy).sum();
    const Tensor dx = Tensor::empty_like(x.value());
    HEDDLE_DISPATCH(device, pool_backward(kind, dy, workspace, dx, o));
    x.add_grad(dx);
  });
  return y;
}

}  // namespace

Var max_pool2d(Tape& tape, const Var& x, const PoolOptions& o) {
  TraceRange range("forward", "max pooling");
  check(o.kernel <= kMaxPoolKernel, "max pooling: expected a kernel of at most ", kMaxPoolKernel,
        ", found ", o.kernel);
  return pool(tape, x, PoolKind::max, {o.kernel, o.kernel, o.stride, o.padding});
}

Var global_average_pool(Tape& tape, const Var& x) {
  TraceRange range("forward", "global average pooling");
  auto [n, c, h, w] = dims<4>(x.value(), "global average pooling input");
  const Var maps = pool(tape, x, PoolKind::average, {h, w, 1, 0});
  // One pixel per map: every layout stores (N, C) in the same order.
  const Tensor& value = maps.value();
  const Tensor plain = Tensor::view_as(value, {n, c});
  Var y(plain, x.needs_grad());
  tape.record("global average pooling", y, {}, [maps](BackwardPass& pass) {
    const Tensor dy = std::move(pass.dy).sum();
    const Tensor& like = maps.value();
    maps.add_grad(Tensor::view_as(dy, like.shape(), like.layout()));
  });
  return y;
}

Var flatten(Tape& tape, const Var& x) {
  TraceRange range("forward", "flatten");
  const auto [n, c, h, w] = dims<4>(x.value(), "flatten input");
  check_floating(x.value(), "flatten input");
  const Tensor plain = converted(x.value(), x.value().dtype(), Layout::plain);
  Var y(Tensor::view_as(plain, {n, c * h * w}), x.needs_grad());
  tape.record("flatten", y, {}, [x](BackwardPass& pass) {
    const Tensor dy = std::move(pass.dy).sum();
    x.add_grad(converted(Tensor::view_as(dy, x.shape()), dy.dtype(), x.value().layout()));
  });
  return y;
}

}  // namespace heddle
