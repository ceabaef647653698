#include "layers/channel.h"

#include <vector>

#include "core/kernels.h"
#include "core/parallel.h"
#include "core/simd.h"

namespace heddle {
namespace {

template <int kLanes, class T>
void add_bias(const Runs& runs, T* x, const float* bias) {
  using L = Lanes<kLanes>;
  for_runs(runs, [&](int64_t, const Run& run) {
    for_pixels<kLanes>(
        run, [&](int64_t channel) { return L::load(bias + channel); },
        [&](int64_t p, auto b) { L::store(x + p, L::load(x + p) + b); });
  });
}

template <int kLanes, class T>
void sum_runs(const Runs& runs, const T* x, float* partial) {
  using L = Lanes<kLanes>;
  for_runs(runs, [&](int64_t r, const Run& run) {
    sum_pixels<kLanes>(
        run, [](int64_t) { return 0; },
        [&](int64_t p, int, auto& s, auto&) { s += L::load(x + p); },
        partial + r * 2 * runs.width());
  });
}

template <class T>
void add_channel_bias_of(const Tensor& x, const Tensor& bias) {
  const Runs runs(x);
  if (runs.lanes() == 16)
    add_bias<16>(runs, x.data<T>(), bias.data<float>());
  else
    add_bias<1>(runs, x.data<T>(), bias.data<float>());
}

template <class T>
void sum_channels_of(const Tensor& x, const Tensor& out, float beta) {
  const Runs runs(x);
  std::vector<float> partial(runs.count() * 2 * runs.width());
  if (runs.lanes() == 16)
    sum_runs<16>(runs, x.data<T>(), partial.data());
  else
    sum_runs<1>(runs, x.data<T>(), partial.data());
  std::vector<double> total(runs.channels(), 0.0);
  for (int64_t r = 0; r < runs.count(); ++r)
    for (int64_t c = 0; c < runs.width(); ++c)
      total[runs[r].channel + c] += partial[r * 2 * runs.width() + c];
  float* result = out.data<float>();
  for (int64_t c = 0; c < runs.channels(); ++c)
    result[c] = (beta == 0.0f ? 0.0f : beta * result[c]) + static_cast<float>(total[c]);
}

// Channels last, the layout of convolutions on CUDA, as rows of pixels.
Tensor pixel_rows(const Tensor& x) {
  auto [n, c, h, w] = dims<4>(x, "activations");
  check(x.layout() == Layout::nhwc, "channels on CUDA: expected layout nhwc, found ",
        layout_name(x.layout()));
  return Tensor::view_as(x, {n * h * w, c});
}

}  // namespace

void add_channel_bias(const Tensor& x, const Tensor& bias) {
  if (x.device().is_cuda()) return add_row(bias, pixel_rows(x));
  if (x.dtype() == DType::bf16)
    add_channel_bias_of<bfloat16>(x, bias);
  else
    add_channel_bias_of<float>(x, bias);
}

void sum_channels(const Tensor& x, const Tensor& out, float beta) {
  if (x.device().is_cuda()) return sum_rows(pixel_rows(x), out, beta);
  if (x.dtype() == DType::bf16)
    sum_channels_of<bfloat16>(x, out, beta);
  else
    sum_channels_of<float>(x, out, beta);
}

}  // namespace heddle
