// A convolution of stride 2 over at most four channels, as a network's first one, becomes one of
// stride 1 over 16: the four pixels of a 2 x 2 square are channels of one pixel ("space to depth").
// Tensor cores multiply eight channels or more at a time, and libraries would pad three to eight.
//
//   channel 4 (2 i + j) + c at (u, v) of the folded map is channel c at (2 u + i - padding,
//   2 v + j - padding), zero outside; the same way for weights, zero beyond the kernel.
#include "core/pack.h"
#include "core/shared_kernel.h"
#include "layers/backend.h"

namespace heddle::HEDDLE_BACKEND {
namespace {

constexpr int kSlots = 4, kFolded = 4 * kSlots;  // channels of a pixel, and of a square of pixels

struct FoldMap {
  const bfloat16* x;
  bfloat16* out;
  uint32_t channels, height, width, out_height, out_width;
  int padding;
  int64_t image, channel, row, column;  // strides of x

  HEDDLE_HD void operator()(int64_t i) const {
    const uint32_t square = static_cast<uint32_t>(i), v = square % out_width,
                   u = square / out_width % out_height, n = square / out_width / out_height;
    Pack<bfloat16, kFolded / 2> halves[2] = {};
    for (int p = 0; p < 4; ++p) {
      const int h = to_int(2 * u) + p / 2 - padding, w = to_int(2 * v) + p % 2 - padding;
      if (h < 0 || w < 0 || h >= to_int(height) || w >= to_int(width)) continue;
      for (int c = 0; c < kSlots; ++c)
        if (c < to_int(channels))
          halves[p / 2].value[p % 2 * kSlots + c] =
              x[n * image + c * channel + h * row + w * column];
    }
    for (int k = 0; k < 2; ++k)
      store_pack<kFolded / 2>(out + i * kFolded + k * kFolded / 2, halves[k]);
  }
};

// The extents of a weight, and those of its squares.
struct WeightFold {
  int64_t channels, height, width, folded_height, folded_width;

  // Returns the place of an element of a weight (O, C, K, L) in the folded one (O, K/2, L/2, 16).
  HEDDLE_HD int64_t folded(int64_t i) const {
    const int64_t l = i % width, k = i / width % height, c = i / width / height % channels,
                  o = i / width / height / channels;
    return ((o * folded_height + k / 2) * folded_width + l / 2) * kFolded +
           (k % 2 * 2 + l % 2) * kSlots + c;
  }
};

struct FoldWeight {
  const float* w;
  bfloat16* out;
  WeightFold fold;
  HEDDLE_HD void operator()(int64_t i) const { out[fold.folded(i)] = bfloat16(w[i]); }
};

struct UnfoldGradient {
  const bfloat16* folded;
  float* dw;
  float beta;
  WeightFold fold;
  HEDDLE_HD void operator()(int64_t i) const {
    dw[i] = accumulate(beta, dw[i], to_float(folded[fold.folded(i)]));
  }
};

WeightFold fold_of(const Shape& w) {
  return {w[1], w[2], w[3], ceil_div(w[2], 2), ceil_div(w[3], 2)};
}

}  // namespace

Shape folded_weight_shape(const Shape& w) {
  return {w[0], kFolded, ceil_div(w[2], 2), ceil_div(w[3], 2)};
}

Shape folded_map_shape(const Shape& y, const Shape& w) {
  return {y[0], kFolded, y[2] + ceil_div(w[2], 2) - 1, y[3] + ceil_div(w[3], 2) - 1};
}

bool folds(const Tensor& x, const Conv2dOptions& o) {
  return x.dtype() == DType::bf16 && x.shape()[1] <= kSlots && o.stride == 2 && o.groups == 1 &&
         x.size() < (int64_t{1} << 31);
}

Tensor fold_map(const Tensor& x, const Shape& shape, int64_t padding) {
  const auto [n, c, h, w] = dims<4>(x, "convolution");
  const Tensor out = Tensor::empty_on(x.device(), shape, DType::bf16, Layout::nhwc);
  const bool last = x.layout() == Layout::nhwc;
  const auto extent = [](int64_t value) { return static_cast<uint32_t>(value); };
  for_each(shape[0] * shape[2] * shape[3],
           FoldMap{x.data<bfloat16>(), out.data<bfloat16>(), extent(c), extent(h), extent(w),
                   extent(shape[2]), extent(shape[3]), to_int(padding), c * h * w, last ? 1 : h * w,
                   last ? w * c : w, last ? c : 1});
  return out;
}

Tensor fold_weight(const Tensor& w) {
  const Tensor out =
      Tensor::empty_on(w.device(), folded_weight_shape(w.shape()), DType::bf16, Layout::nhwc);
  out.fill_zero();
  for_each(w.size(), FoldWeight{w.data<float>(), out.data<bfloat16>(), fold_of(w.shape())});
  return out;
}

void unfold_gradient(const Tensor& folded, const Tensor& dw, float beta) {
  for_each(dw.size(),
           UnfoldGradient{folded.data<bfloat16>(), dw.data<float>(), beta, fold_of(dw.shape())});
}

}  // namespace heddle::HEDDLE_BACKEND
