#include "layers/shortcut.h"

#include <algorithm>

#include "core/kernels.h"
#include "core/shared_kernel.h"
#include "core/trace.h"
#include "layers/backend.h"

namespace heddle {
namespace cpu {
namespace {

// Returns how many channels from c on are adjacent in memory.
int64_t adjacent(const Tensor& x, int64_t c) {
  if (x.layout() == Layout::plain) return 1;
  return x.layout() == Layout::nhwc ? x.shape()[1] - c : 16 - c % 16;
}

// Calls copy(offset in the large map, offset in the small map, channels) for every second pixel of
// every second row and every run of channels that are adjacent on both sides.
template <class Copy>
void for_subsampled(const Tensor& large, const Tensor& small, Copy&& copy) {
  const Shape &s = large.shape(), &t = small.shape();
  const auto at = [](const Tensor& x, int64_t n, int64_t c, int64_t pixel) {
    return offset_in(x.layout(), x.shape()[1], x.shape()[2] * x.shape()[3], n, c, pixel);
  };
  const int64_t front = (t[1] - s[1]) / 2;
  parallel_for(t[0], 1, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n)
      for (int64_t c = 0, length = 0; c < s[1]; c += length) {
        length = std::min({adjacent(large, c), adjacent(small, front + c), s[1] - c});
        for (int64_t h = 0; h < t[2]; ++h)
          for (int64_t w = 0; w < t[3]; ++w)
            copy(at(large, n, c, 2 * (h * s[3] + w)), at(small, n, front + c, h * t[3] + w),
                 length);
      }
  });
}

}  // namespace

void subsample_forward(const Tensor& x, const Tensor& y) {
  y.fill_zero();
  with_type(x, [&]<class T>() {
    for_subsampled(x, y, [in = x.data<T>(), out = y.data<T>()](auto from, auto to, auto n) {
      for (int64_t i = 0; i < n; ++i) out[to + i] = in[from + i];
    });
  });
}

void subsample_backward(const Tensor& dy, const Tensor& dx) {
  dx.fill_zero();
  with_type(dy, [&]<class T>() {
    for_subsampled(dx, dy, [in = dy.data<T>(), out = dx.data<T>()](auto to, auto from, auto n) {
      for (int64_t i = 0; i < n; ++i) out[to + i] = in[from + i];
    });
  });
}

}  // namespace cpu

Var subsample_pad(Tape& tape, const Var& x, int64_t channels) {
  TraceRange range("forward", "shortcut");
  auto [n, c, h, w] = dims<4>(x.value(), "shortcut input");
  check(channels >= c && (channels - c) % 2 == 0, "shortcut: cannot pad ", c, " channels to ",
        channels);
  check_floating(x.value(), "shortcut input");
  const Device device = x.value().device();
  const Tensor output = Tensor::empty_on(device, {n, channels, (h + 1) / 2, (w + 1) / 2},
                                         x.value().dtype(), x.value().layout());
  HEDDLE_DISPATCH(device, subsample_forward(x.value(), output));
  Var y(output, x.needs_grad());
  tape.record("shortcut", y, {}, [x, device](BackwardPass& pass) {
    const Tensor dy = std::move(pass.dy).sum();
    const Tensor dx = Tensor::empty_like(x.value());
    HEDDLE_DISPATCH(device, subsample_backward(dy, dx));
    x.add_grad(dx);
  });
  return y;
}

}  // namespace heddle
