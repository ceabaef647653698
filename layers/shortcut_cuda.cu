// The parameter-free shortcut of CIFAR ResNets on CUDA, channels last: every second pixel of every
// second row, between channels of zeros.
#include "core/shared_kernel.h"
#include "layers/backend.h"

namespace heddle::HEDDLE_BACKEND {
namespace {

struct Maps {
  int64_t height, width, channels;  // of the large map
  int64_t small_height, small_width, small_channels, front;
};

template <class T>
struct Subsample {
  const T* x;
  T* y;
  Maps m;
  HEDDLE_HD void operator()(int64_t i) const {
    const int64_t pixel = i / m.small_channels, c = i % m.small_channels - m.front;
    const int64_t w = pixel % m.small_width, row = pixel / m.small_width;
    const int64_t n = row / m.small_height, h = row % m.small_height;
    const int64_t from = ((n * m.height + 2 * h) * m.width + 2 * w) * m.channels + c;
    y[i] = c >= 0 && c < m.channels ? x[from] : T(0.0f);
  }
};

template <class T>
struct Spread {
  const T* dy;
  T* dx;
  Maps m;
  HEDDLE_HD void operator()(int64_t i) const {
    const int64_t pixel = i / m.channels, c = i % m.channels;
    const int64_t w = pixel % m.width, row = pixel / m.width;
    const int64_t n = row / m.height, h = row % m.height;
    const int64_t from =
        ((n * m.small_height + h / 2) * m.small_width + w / 2) * m.small_channels + m.front + c;
    dx[i] = h % 2 == 0 && w % 2 == 0 ? dy[from] : T(0.0f);
  }
};

Maps maps_of(const Tensor& large, const Tensor& small) {
  check(large.layout() == Layout::nhwc, "shortcut on CUDA: expected layout nhwc, found ",
        layout_name(large.layout()));
  const Shape &s = large.shape(), &t = small.shape();
  return {s[2], s[3], s[1], t[2], t[3], t[1], (t[1] - s[1]) / 2};
}

}  // namespace

void subsample_forward(const Tensor& x, const Tensor& y) {
  const Maps m = maps_of(x, y);
  with_type(x, [&]<class T>() { for_each(y.size(), Subsample<T>{x.data<T>(), y.data<T>(), m}); });
}

void subsample_backward(const Tensor& dy, const Tensor& dx) {
  const Maps m = maps_of(dx, dy);
  with_type(dx, [&]<class T>() { for_each(dx.size(), Spread<T>{dy.data<T>(), dx.data<T>(), m}); });
}

}  // namespace heddle::HEDDLE_BACKEND
