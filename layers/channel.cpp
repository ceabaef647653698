#include "layers/channel.h"

#include <vector>

#include "core/kernels.h"

namespace heddle {
namespace {

// Returns a channels-last map (N, C, H, W), the layout of convolutions on CUDA, as rows of pixels
// (N*H*W, C): a view.
Tensor pixel_rows(const Tensor& x) {
  auto [n, c, h, w] = dims<4>(x, "activations");
  check(x.layout() == Layout::nhwc, "channels on CUDA: expected layout nhwc, found ",
        layout_name(x.layout()));
  return Tensor::view_as(x, {n * h * w, c});
}

}  // namespace

void add_channel_bias(const Tensor& x, const Tensor& bias) {
  check_shape(bias, {x.shape()[1]}, "bias");
  if (x.device().is_cuda()) return add_row(bias, pixel_rows(x));
  const Runs runs(x);
  with_runs(runs, x, [&]<int kLanes, class T>() {
    using L = Lanes<kLanes>;
    T* to = x.data<T>();
    const float* shift = bias.data<float>();
    for_runs(runs, [&](int64_t, const Run& run) {
      for_pixels<kLanes>(
          run, [&](int64_t channel) { return L::load(shift + channel); },
          [&](int64_t p, auto b) { L::store(to + p, L::load(to + p) + b); });
    });
  });
}

void sum_channels(const Tensor& x, const Tensor& out, float beta) {
  if (x.device().is_cuda()) return sum_rows(pixel_rows(x), out, beta);
  const Runs runs(x);
  std::vector<float> partial(runs.count() * 2 * runs.width());
  with_runs(runs, x, [&]<int kLanes, class T>() {
    const T* from = x.data<T>();
    for_runs(runs, [&](int64_t r, const Run& run) {
      sum_pixels<kLanes>(
          run, [](int64_t) { return 0; },
          [&](int64_t p, int, auto& s, auto&) { s += Lanes<kLanes>::load(from + p); },
          partial.data() + r * 2 * runs.width());
    });
  });
  std::vector<double> total(runs.channels(), 0.0);
  for (int64_t r = 0; r < runs.count(); ++r)
    for (int64_t c = 0; c < runs.width(); ++c)
      total[runs[r].channel + c] += partial[r * 2 * runs.width() + c];
  float* result = out.data<float>();
  for (int64_t c = 0; c < runs.channels(); ++c)
    result[c] = accumulate(beta, result[c], to_float(total[c]));
}

}  // namespace heddle
