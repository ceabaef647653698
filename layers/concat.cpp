#include "layers/concat.h"

#include "core/kernels.h"
#include "core/shared_kernel.h"
#include "core/trace.h"
#include "layers/backend.h"

namespace heddle {

Var concat_channels(Tape& tape, const Var& a, const Var& b) {
  TraceRange range("forward", "concat");
  const Shape &s = a.shape(), &t = b.shape();
  bool fits = s.rank() >= 2 && s.rank() == t.rank();
  std::vector<int64_t> joined(s.begin(), s.end());
  for (int axis = 0; fits && axis < s.rank(); ++axis) {
    if (axis == 1)
      joined[1] += t[1];
    else
      fits = s[axis] == t[axis];
  }
  check(fits, "concat: ", to_string(s), " and ", to_string(t), " differ in more than channels");
  const DType type = a.value().dtype();
  check_floating(a.value(), "concat");
  check(b.value().dtype() == type, "concat: expected one type, found ", dtype_name(type), " and ",
        dtype_name(b.value().dtype()));
  const Device device = a.value().device();
  const Tensor output = Tensor::empty_on(device, Shape(joined), type);
  const int64_t n = s[0], all = n > 0 ? output.size() / n : 0;
  // Calls copy(input, its elements per sample, its offset in a sample of the output) for both.
  const auto for_both = [=](const auto& copy) {
    const int64_t first = n > 0 ? a.value().size() / n : 0;
    copy(a, first, int64_t{0});
    copy(b, all - first, first);
  };
  for_both([&](const Var& x, int64_t width, int64_t at) {
    const Tensor plain = converted(x.value(), type, Layout::plain).reshape({n * width});
    const Tensor to = output.reshape({n * all}).slice(at, n * all);
    HEDDLE_DISPATCH(device, copy_pieces(n, width, plain, width, to, all));
  });
  Var y(output, a.needs_grad() || b.needs_grad());
  tape.record("concat", y, {}, [for_both, n, all, type, device](BackwardPass& pass) {
    const Tensor dy = std::move(pass.dy).sum().reshape({n * all});
    for_both([&](const Var& x, int64_t width, int64_t at) {
      if (!x.needs_grad()) return;
      const Tensor dx = Tensor::empty_on(device, x.shape(), type);
      HEDDLE_DISPATCH(device, copy_pieces(n, width, dy.slice(at, n * all), all,
                                          dx.reshape({n * width}), width));
      x.add_grad(converted(dx, type, x.value().layout()));
    });
  });
  return y;
}

}  // namespace heddle
