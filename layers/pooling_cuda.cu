// Pooling's CUDA kernels. Backward gathers: each input value sums the gradients of the windows that
// contain it, in window order, so that no atomics are needed. A map in plain layout is read as
// channels last with one channel.
#include "core/pack.h"
#include "core/shared_kernel.h"
#include "layers/backend.h"

namespace heddle::HEDDLE_BACKEND {
namespace {

struct Windows {
  int64_t images, channels, height, width;  // of the input
  int64_t out_height, out_width, kernel_h, kernel_w, stride, padding;

  // Returns the number of values in an average.
  HEDDLE_HD float count() const { return to_float(kernel_h * kernel_w); }
};

// Image, row, column and first channel of a pack; 32-bit divisions, where possible, cost less.
struct At {
  int64_t n, h, w, c;
  HEDDLE_HD At(int64_t pack, int64_t packs, int64_t height, int64_t width, int per_pack) {
    const auto i = static_cast<uint64_t>(pack);
    if (i >> 32 == 0) {
      const auto k = static_cast<uint32_t>(packs), b = static_cast<uint32_t>(width),
                 a = static_cast<uint32_t>(height), pixel = static_cast<uint32_t>(i) / k,
                 row = pixel / b;
      c = to_int64(static_cast<uint32_t>(i) - pixel * k) * per_pack;
      w = pixel - row * b;
      n = row / a;
      h = row % a;
    } else {
      const int64_t pixel = pack / packs, row = pixel / width;
      c = (pack - pixel * packs) * per_pack;
      w = pixel % width;
      n = row / height;
      h = row % height;
    }
  }
};

// `chosen` receives the position within the window of the largest value, the first of equal ones. A
// NaN counts only as the first value of its window, as on the CPU.
template <class T, int kPack>
struct MaxForward {
  const T* x;
  T* y;
  uint8_t* chosen;
  Windows s;
  HEDDLE_HD void operator()(int64_t pack) const {
    const At at(pack, s.channels / kPack, s.out_height, s.out_width, kPack);
    Pack<T, kPack> top = {};
    Pack<uint8_t, kPack> position = {};
    bool first = true;
    for (int64_t i = 0, h = at.h * s.stride - s.padding; i < s.kernel_h; ++i, ++h)
      for (int64_t j = 0, w = at.w * s.stride - s.padding; j < s.kernel_w; ++j, ++w) {
        if (h < 0 || h >= s.height || w < 0 || w >= s.width) continue;
        const auto v =
            load_pack<kPack>(x + (((at.n * s.height + h) * s.width + w) * s.channels + at.c));
        for (int k = 0; k < kPack; ++k)
          if (first || v[k] > top[k]) {
            top.value[k] = v.value[k];
            position.value[k] = static_cast<uint8_t>(i * s.kernel_w + j);
          }
        first = false;
      }
    store_pack<kPack>(y + pack * kPack, top);
    store_pack<kPack>(chosen + pack * kPack, position);
  }
};

template <class T, int kPack>
struct AverageForward {
  const T* x;
  T* y;
  Windows s;
  HEDDLE_HD void operator()(int64_t i) const {
    const At at(i, s.channels / kPack, s.out_height, s.out_width, kPack);
    float sum[kPack] = {};
    for (int64_t h = at.h * s.stride - s.padding, bottom = h + s.kernel_h; h < bottom; ++h)
      for (int64_t w = at.w * s.stride - s.padding, right = w + s.kernel_w; w < right; ++w) {
        if (h < 0 || h >= s.height || w < 0 || w >= s.width) continue;
        const auto v =
            load_pack<kPack>(x + (((at.n * s.height + h) * s.width + w) * s.channels + at.c));
        for (int k = 0; k < kPack; ++k) sum[k] += v[k];
      }
    const float count = s.count();
    Pack<T, kPack> out;
    for (int k = 0; k < kPack; ++k) out.set(k, sum[k] / count);
    store_pack<kPack>(y + i * kPack, out);
  }
};

// chosen is null for averages.
template <class T, int kPack>
struct Backward {
  const T* dy;
  const uint8_t* chosen;
  T* dx;
  Windows s;
  HEDDLE_HD void operator()(int64_t i) const {
    const At at(i, s.channels / kPack, s.height, s.width, kPack);
    // The windows p with p * stride - padding <= h < p * stride - padding + kernel.
    const int h = to_int(at.h + s.padding), w = to_int(at.w + s.padding), stride = to_int(s.stride),
              kernel_h = to_int(s.kernel_h), kernel_w = to_int(s.kernel_w);
    const int top = h < kernel_h ? 0 : (h - kernel_h) / stride + 1,
              left = w < kernel_w ? 0 : (w - kernel_w) / stride + 1;
    const int bottom = h / stride < s.out_height ? h / stride : to_int(s.out_height) - 1,
              right = w / stride < s.out_width ? w / stride : to_int(s.out_width) - 1;
    float sum[kPack] = {};
    for (int p = top; p <= bottom; ++p)
      for (int q = left; q <= right; ++q) {
        const int64_t from = ((at.n * s.out_height + p) * s.out_width + q) * s.channels + at.c;
        const auto g = load_pack<kPack>(dy + from);
        if (chosen != nullptr) {
          const auto position = load_pack<kPack>(chosen + from);
          const int here = (h - p * stride) * kernel_w + w - q * stride;
          for (int k = 0; k < kPack; ++k) sum[k] += position.value[k] == here ? g[k] : 0.0f;
        } else {
          const float count = s.count();
          for (int k = 0; k < kPack; ++k) sum[k] += g[k] / count;
        }
      }
    Pack<T, kPack> out;
    for (int k = 0; k < kPack; ++k) out.set(k, sum[k]);
    store_pack<kPack>(dx + i * kPack, out);
  }
};

Windows windows_of(const Tensor& x, const Tensor& y, const PoolWindow& o) {
  auto [n, c, h, w] = dims<4>(x, "pooling input");
  check(x.layout() != Layout::c16, "pooling on CUDA: layout c16 exists on the CPU only");
  check(h * w < (int64_t{1} << 31), "pooling: a map of ", h, " x ", w, " is too large");
  const bool last = x.layout() == Layout::nhwc;
  return {last ? n : n * c, last ? c : 1, h,          w,        y.shape()[2],
          y.shape()[3],     o.kernel_h,   o.kernel_w, o.stride, o.padding};
}

}  // namespace

Tensor pool_forward(PoolKind kind, const Tensor& x, const Tensor& y, const PoolWindow& window) {
  const Windows s = windows_of(x, y, window);
  Tensor chosen;
  if (kind == PoolKind::max) chosen = Tensor::empty_on(x.device(), {y.size()}, DType::u8);
  with_packs({&x, &y}, s.channels, [&]<class T, int kPack>() {
    if (kind == PoolKind::max)
      for_each(y.size() / kPack,
               MaxForward<T, kPack>{x.data<T>(), y.data<T>(), chosen.data<uint8_t>(), s});
    else
      for_each(y.size() / kPack, AverageForward<T, kPack>{x.data<T>(), y.data<T>(), s});
  });
  return chosen;
}

void pool_backward(PoolKind kind, const Tensor& dy, const Tensor& workspace, const Tensor& dx,
                   const PoolWindow& window) {
  const Windows s = windows_of(dx, dy, window);
  const uint8_t* chosen = kind == PoolKind::max ? workspace.data<uint8_t>() : nullptr;
  with_packs({&dy, &dx}, s.channels, [&]<class T, int kPack>() {
    for_each(dx.size() / kPack, Backward<T, kPack>{dy.data<T>(), chosen, dx.data<T>(), s});
  });
}

}  // namespace heddle::HEDDLE_BACKEND
