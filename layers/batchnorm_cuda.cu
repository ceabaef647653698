// Batch norm's CUDA kernels, at memory bandwidth, for channels last: a map is a matrix of pixels
// and channels. Each block walks the pixels of its part, each thread a pack of channels whose
// constants stay in registers. Sums go to memory per part and are joined in double in a fixed
// order: no atomics, the same bits in every run.
#include <algorithm>

#include "core/block_reduce.cuh"
#include "core/pack.h"
#include "core/shared_kernel.h"
#include "layers/backend.h"

namespace heddle::HEDDLE_BACKEND {
namespace {

constexpr int kBlock = 256;

// The cut of (pixels, channels): block (i, k) does strip i of the channels and part k of the
// pixels.
struct Cut {
  int64_t pixels, channels, part;  // part: pixels of a block
  unsigned strips, parts;
  int across;  // threads side by side on the channels
};

Cut cut_map(const Tensor& x, int pack) {
  auto [n, c, h, w] = dims<4>(x, "batch norm");
  check(x.layout() == Layout::nhwc, "batch norm on CUDA: expected layout nhwc, found ",
        layout_name(x.layout()));
  const int64_t pixels = n * h * w, packs = ceil_div(c, pack);
  int across = 1;
  while (across < 32 && across < packs) across *= 2;
  const int64_t strips = ceil_div(packs, across), down = kBlock / across;
  // Enough blocks to fill a GPU, but each with some pixels per thread.
  const int64_t parts =
      std::clamp<int64_t>(pixels / (8 * down), 1, std::max<int64_t>(1, 512 / strips));
  const int64_t part = ceil_div(pixels, parts);
  return {pixels,
          c,
          part,
          static_cast<unsigned>(strips),
          static_cast<unsigned>(part == 0 ? 1 : ceil_div(pixels, part)),
          across};
}

// A thread's part: its first channel, and the pixels first, first + step, … below end.
struct Place {
  int64_t channel, first, step, end;
  int row;  // of the block's threads
};

template <int kPack>
__device__ Place place_of(const Cut& cut) {
  const int column = to_int(threadIdx.x) % cut.across, row = to_int(threadIdx.x) / cut.across;
  const int64_t begin = blockIdx.y * cut.part, end = begin + cut.part;
  return {(to_int64(blockIdx.x) * cut.across + column) * kPack, begin + row, kBlock / cut.across,
          end < cut.pixels ? end : cut.pixels, row};
}

// Sums s and t over the threads of a block that share channels, as a tree; the first row writes s
// to sums[0 .. channels) and t to sums[channels .. 2 * channels) of the block's part.
template <int kPack>
__device__ void join_threads(const Cut& cut, const Place& at, float (&s)[kPack], float (&t)[kPack],
                             float* partial) {
  __shared__ float shared[2 * kPack][kBlock];
  const int thread = to_int(threadIdx.x);
  for (int i = 0; i < kPack; ++i) {
    shared[i][thread] = s[i];
    shared[kPack + i][thread] = t[i];
  }
  for (int half = kBlock / 2; half >= cut.across; half /= 2) {
    __syncthreads();
    if (thread >= half) continue;
    for (int i = 0; i < 2 * kPack; ++i) shared[i][thread] += shared[i][thread + half];
  }
  if (at.row > 0 || at.channel >= cut.channels) return;
  float* sums = partial + blockIdx.y * 2 * cut.channels;
  for (int i = 0; i < kPack; ++i) {
    sums[at.channel + i] = shared[i][thread];
    sums[cut.channels + at.channel + i] = shared[kPack + i][thread];
  }
}

// Sums x - x0 and its squares, x0 being the part's first pixel, which is near the mean: squares do
// not cancel.
template <class T, int kPack>
__global__ void sum_deviations(const T* x, Cut cut, float* partial) {
  const Place at = place_of<kPack>(cut);
  float s[kPack] = {}, q[kPack] = {};
  if (at.channel < cut.channels) {
    const auto origin = load_pack<kPack>(x + blockIdx.y * cut.part * cut.channels + at.channel);
#pragma unroll 4
    for (int64_t p = at.first; p < at.end; p += at.step) {
      const auto value = load_pack<kPack>(x + p * cut.channels + at.channel);
      for (int i = 0; i < kPack; ++i) {
        const float d = value[i] - origin[i];
        s[i] += d;
        q[i] += d * d;
      }
    }
  }
  join_threads<kPack>(cut, at, s, q, partial);
}

constexpr int kJoinChannels = 32, kJoinSlices = 16;

// Joins the parts' means and squared deviations around the first pixel of the map.
template <class T>
__global__ void join_statistics(const T* x, Cut cut, const float* partial, float* mean,
                                float* variance) {
  __shared__ double shared[kJoinSlices][kJoinChannels];
  const int64_t c = blockIdx.x * to_int64(kJoinChannels) + threadIdx.x;
  double sum = 0, squares = 0, origin = 0;
  if (c < cut.channels) {
    origin = to_float(x[c]);
    for (int64_t k = threadIdx.y; k < cut.parts; k += kJoinSlices) {
      const int64_t begin = k * cut.part, rest = cut.pixels - begin;
      const double n = to_double(rest < cut.part ? rest : cut.part);
      const double s = partial[k * 2 * cut.channels + c],
                   q = partial[(k * 2 + 1) * cut.channels + c];
      const double d = to_float(x[begin * cut.channels + c]) - origin + s / n;
      sum += n * d;
      squares += q - s * s / n + n * d * d;
    }
  }
  sum = sum_column(sum, shared);
  squares = sum_column(squares, shared);
  if (threadIdx.y > 0 || c >= cut.channels) return;
  const double n = to_double(cut.pixels);
  const double v = (squares - sum * sum / n) / n;
  mean[c] = to_float(origin + sum / n);
  // A negative remainder of cancellation is zero variance; NaN must stay NaN.
  variance[c] = to_float(v < 0 ? 0.0 : v);
}

template <class T, int kPack>
__global__ void apply(const T* x, const T* residual, Cut cut, const float* scale,
                      const float* shift, bool relu, T* y) {
  const Place at = place_of<kPack>(cut);
  if (at.channel >= cut.channels) return;
  float factor[kPack], offset[kPack];
  for (int i = 0; i < kPack; ++i) {
    factor[i] = scale[at.channel + i];
    offset[i] = shift[at.channel + i];
  }
#pragma unroll 4
  for (int64_t p = at.first; p < at.end; p += at.step) {
    const int64_t place = p * cut.channels + at.channel;
    const auto value = load_pack<kPack>(x + place);
    Pack<T, kPack> skip = {}, out;
    if (residual != nullptr) skip = load_pack<kPack>(residual + place);
    for (int i = 0; i < kPack; ++i) {
      float v = value[i] * factor[i] + offset[i];
      if (residual != nullptr) v += skip[i];
      out.set(i, relu && v < 0.0f ? 0.0f : v);  // NaN stays NaN
    }
    store_pack<kPack>(y + place, out);
  }
}

// Inputs of the backward pass. y is null unless the sign of ReLU's input follows from it.
template <class T>
struct Operands {
  const T *x, *y, *dy, *dy2;
  const float *mean, *scale, *shift;
  bool relu;
};

template <int kPack>
struct ChannelConstants {
  float mean[kPack], scale[kPack], shift[kPack];
  template <class T>
  __device__ ChannelConstants(const Operands<T>& a, int64_t channel) {
    for (int i = 0; i < kPack; ++i) {
      mean[i] = a.mean[channel + i];
      scale[i] = a.scale[channel + i];
      shift[i] = a.shift[channel + i];
    }
  }
};

// Computes the gradient before ReLU of a pack at `place`, with the sign of y or of its formula.
template <class T, int kPack>
__device__ void masked_gradient(const Operands<T>& a, int64_t place, const Pack<T, kPack>& x,
                                const ChannelConstants<kPack>& c, float (&g)[kPack]) {
  const auto dy = load_pack<kPack>(a.dy + place);
  Pack<T, kPack> dy2 = {}, y = {};
  if (a.dy2 != nullptr) dy2 = load_pack<kPack>(a.dy2 + place);
  if (a.y != nullptr) y = load_pack<kPack>(a.y + place);
  for (int i = 0; i < kPack; ++i) {
    g[i] = a.dy2 != nullptr ? dy[i] + dy2[i] : dy[i];
    const float sign = a.y != nullptr ? y[i] : x[i] * c.scale[i] + c.shift[i];
    if (a.relu && !(sign > 0.0f)) g[i] = 0.0f;
  }
}

// Sums dz and dz * (x - mean), in the first pass; stores dz where it is needed.
template <class T, int kPack>
__global__ void sum_gradients(Operands<T> a, Cut cut, T* dz, float* partial) {
  const Place at = place_of<kPack>(cut);
  float s[kPack] = {}, t[kPack] = {};
  if (at.channel < cut.channels) {
    const ChannelConstants<kPack> c(a, at.channel);
#pragma unroll 2
    for (int64_t p = at.first; p < at.end; p += at.step) {
      const int64_t place = p * cut.channels + at.channel;
      const auto x = load_pack<kPack>(a.x + place);
      float g[kPack];
      masked_gradient(a, place, x, c, g);
      Pack<T, kPack> out;
      for (int i = 0; i < kPack; ++i) {
        out.set(i, g[i]);
        s[i] += g[i];
        t[i] += g[i] * (x[i] - c.mean[i]);
      }
      if (dz != nullptr) store_pack<kPack>(dz + place, out);
    }
  }
  join_threads<kPack>(cut, at, s, t, partial);
}

// The statistics of forward (mean, invstd, scale) and the parameters' gradients; (C) each.
struct ParameterGradients {
  const float *mean, *invstd, *scale;
  float *dweight, *dbias;
  float beta_weight, beta_bias;
};

// Joins the parts into the parameters' gradients and u, v, k of dx = u * dz + v * x + k.
__global__ void join_gradients(Cut cut, const float* partial, ParameterGradients out, float* line) {
  __shared__ double shared[kJoinSlices][kJoinChannels];
  const int64_t c = blockIdx.x * to_int64(kJoinChannels) + threadIdx.x;
  double s = 0, t = 0;
  if (c < cut.channels)
    for (int64_t k = threadIdx.y; k < cut.parts; k += kJoinSlices) {
      s += partial[k * 2 * cut.channels + c];
      t += partial[(k * 2 + 1) * cut.channels + c];
    }
  s = sum_column(s, shared);
  t = sum_column(t, shared);
  if (threadIdx.y > 0 || c >= cut.channels) return;
  const double n = to_double(cut.pixels), inv = out.invstd[c], a = out.scale[c];
  out.dbias[c] = accumulate(out.beta_bias, out.dbias[c], to_float(s));
  out.dweight[c] = accumulate(out.beta_weight, out.dweight[c], to_float(t * inv));
  // dx = scale * (dz - mean(dz) - xhat * mean(dz * xhat)) with xhat = (x - mean) * invstd.
  const double slope = -a * inv * inv * t / n;
  line[c] = to_float(a);
  line[cut.channels + c] = to_float(slope);
  line[2 * cut.channels + c] = to_float(-a * s / n - slope * out.mean[c]);
}

// Computes dx, in the second pass.
template <class T, int kPack>
__global__ void input_gradient(Operands<T> a, Cut cut, const float* line, T* dx) {
  const Place at = place_of<kPack>(cut);
  if (at.channel >= cut.channels) return;
  const ChannelConstants<kPack> c(a, at.channel);
  float u[kPack], v[kPack], k[kPack];
  for (int i = 0; i < kPack; ++i) {
    u[i] = line[at.channel + i];
    v[i] = line[cut.channels + at.channel + i];
    k[i] = line[2 * cut.channels + at.channel + i];
  }
#pragma unroll 2
  for (int64_t p = at.first; p < at.end; p += at.step) {
    const int64_t place = p * cut.channels + at.channel;
    const auto x = load_pack<kPack>(a.x + place);
    float g[kPack];
    masked_gradient(a, place, x, c, g);
    Pack<T, kPack> out;
    for (int i = 0; i < kPack; ++i) out.set(i, u[i] * g[i] + (v[i] * x[i] + k[i]));
    store_pack<kPack>(dx + place, out);
  }
}

// Updates the running statistics, in one block, unless any new value is non-finite.
__global__ void move_running(const float* mean, const float* variance, int64_t channels,
                             float momentum, float unbiased, float* running_mean,
                             float* running_var, int64_t* batches) {
  __shared__ int broken[kBlock];
  int mine = 0;
  for (int64_t c = threadIdx.x; c < channels; c += kBlock)
    mine |= !(mean[c] - mean[c] == 0.0f) || !(variance[c] - variance[c] == 0.0f);
  broken[threadIdx.x] = mine;
  __syncthreads();
  for (int i = 0; i < kBlock; ++i) mine |= broken[i];
  if (mine != 0) return;
  for (int64_t c = threadIdx.x; c < channels; c += kBlock) {
    running_mean[c] = running_mean[c] * (1.0f - momentum) + momentum * mean[c];
    running_var[c] = running_var[c] * (1.0f - momentum) + momentum * unbiased * variance[c];
  }
  if (threadIdx.x == 0) ++*batches;
}

dim3 blocks_of(const Cut& cut) { return dim3(cut.strips, cut.parts); }
unsigned join_blocks(const Cut& cut) {
  return static_cast<unsigned>(ceil_div(cut.channels, kJoinChannels));
}
dim3 join_threads_of_block() { return dim3(kJoinChannels, kJoinSlices); }

Tensor partial_sums(const Cut& cut) {
  return Tensor::empty({to_int64(cut.parts), 2, cut.channels});
}

template <class T>
T* or_null(const Tensor& x) {
  return x.defined() ? x.data<T>() : nullptr;
}

}  // namespace

void batchnorm_statistics(const Tensor& x, const Tensor& mean, const Tensor& variance) {
  with_packs({&x}, x.shape()[1], [&]<class T, int kPack>() {
    const Cut cut = cut_map(x, kPack);
    const Tensor partial = partial_sums(cut);
    launch("batch norm: sums", sum_deviations<T, kPack>, blocks_of(cut), kBlock, x.data<T>(), cut,
           partial.data<float>());
    launch("batch norm: statistics", join_statistics<T>, join_blocks(cut), join_threads_of_block(),
           x.data<T>(), cut, partial.data<float>(), mean.data<float>(), variance.data<float>());
  });
}

void batchnorm_update_running(const BatchNormRunning& a) {
  launch("batch norm: running statistics", move_running, 1, kBlock, a.mean.data<float>(),
         a.variance.data<float>(), a.mean.size(), a.momentum, a.unbiased,
         a.running_mean.data<float>(), a.running_var.data<float>(), a.batches.data<int64_t>());
}

void batchnorm_apply(const Tensor& x, const Tensor& scale, const Tensor& shift,
                     const Tensor& residual, bool relu, const Tensor& y) {
  with_packs({&x, &residual, &y}, x.shape()[1], [&]<class T, int kPack>() {
    const Cut cut = cut_map(x, kPack);
    launch("batch norm: apply", apply<T, kPack>, blocks_of(cut), kBlock, x.data<T>(),
           or_null<T>(residual), cut, scale.data<float>(), shift.data<float>(), relu, y.data<T>());
  });
}

void batchnorm_backward(const BatchNormBackward& a) {
  with_packs({&a.x, &a.y, &a.dy, &a.dy2, &a.dz, &a.dx}, a.x.shape()[1], [&]<class T, int kPack>() {
    const Cut cut = cut_map(a.x, kPack);
    Operands<T> operands = {a.x.data<T>(),         a.residual ? a.y.data<T>() : nullptr,
                            a.dy.data<T>(),        or_null<T>(a.dy2),
                            a.mean.data<float>(),  a.scale.data<float>(),
                            a.shift.data<float>(), a.relu};
    const Tensor partial = partial_sums(cut), line = Tensor::empty({3, cut.channels});
    launch("batch norm: gradient sums", sum_gradients<T, kPack>, blocks_of(cut), kBlock, operands,
           cut, or_null<T>(a.dz), partial.data<float>());
    launch("batch norm: gradients", join_gradients, join_blocks(cut), join_threads_of_block(), cut,
           partial.data<float>(),
           ParameterGradients{a.mean.data<float>(), a.invstd.data<float>(), a.scale.data<float>(),
                              a.dweight.data<float>(), a.dbias.data<float>(), a.beta_weight,
                              a.beta_bias},
           line.data<float>());
    if (a.dz.defined()) {  // the masked gradient was stored
      operands.dy = a.dz.data<T>();
      operands.y = operands.dy2 = nullptr;
      operands.relu = false;
    }
    launch("batch norm: input gradient", input_gradient<T, kPack>, blocks_of(cut), kBlock, operands,
           cut, line.data<float>(), a.dx.data<T>());
  });
}

}  // namespace heddle::HEDDLE_BACKEND
