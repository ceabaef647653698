// Batch norm's CUDA kernels, at memory bandwidth, for channels last: a map is a matrix of pixels
// and channels. Each block walks the pixels of its part, each thread a pack of channels whose
// constants stay in registers. Sums go to memory per part and are joined in double in a fixed
// order: no atomics, the same bits in every run.
#include <algorithm>

#include "core/block_reduce.cuh"
#include "core/pack.h"
#include "core/shared_kernel.h"
#include "layers/backend.h"
#include "layers/batchnorm_affine.h"

namespace heddle::HEDDLE_BACKEND {
namespace {

constexpr int kBlock = 256;
// Three blocks on each multiprocessor of a Hopper GPU, and few loads at once in each thread, were
// fastest there (docs/benchmarks.md).
constexpr int kResident = 3, kBlocks = kResident * 132;

// The cut of (pixels, channels): block (i, k) does strip i of the channels and rows k, k + parts, …
// of pixels, a row being those that a block's threads read at once. So all blocks sweep the map
// together, and a kernel that sweeps back finds the end of the last sweep in the L2 cache.
struct Cut {
  int64_t pixels, channels;
  unsigned strips, parts;
  int across;  // threads side by side on the channels

  HEDDLE_HD int down() const { return kBlock / across; }
  // Returns the number of pixels in part k.
  HEDDLE_HD int64_t pixels_of(int64_t k) const {
    const int64_t span = to_int64(parts) * down(), rest = pixels % span - k * down();
    return pixels / span * down() + (rest < 0 ? 0 : rest < down() ? rest : down());
  }
};

Cut cut_map(const Tensor& x, int pack) {
  auto [n, c, h, w] = dims<4>(x, "batch norm");
  check(x.layout() == Layout::nhwc, "batch norm on CUDA: expected layout nhwc, found ",
        layout_name(x.layout()));
  const int64_t pixels = n * h * w, packs = ceil_div(c, pack);
  int across = 1;
  while (across < 32 && across < packs) across *= 2;
  const int64_t strips = ceil_div(packs, across), down = kBlock / across;
  // All blocks run at once, one more (apply) included, and each has some pixels per thread.
  const int64_t parts =
      std::clamp<int64_t>(pixels / (8 * down), 1, std::max<int64_t>(1, kBlocks / strips - 1));
  return {pixels, c, static_cast<unsigned>(strips), static_cast<unsigned>(parts), across};
}

// A thread's part: its first channel, and the elements first, first + step, … of the map.
struct Place {
  int64_t channel, first, step, count;
  int row;  // of the block's threads
};

template <int kPack>
__device__ Place place_of(const Cut& cut) {
  const int column = to_int(threadIdx.x) % cut.across, row = to_int(threadIdx.x) / cut.across;
  const int64_t channel = (to_int64(blockIdx.x) * cut.across + column) * kPack,
                pixel = to_int64(blockIdx.y) * cut.down() + row,
                step = to_int64(cut.parts) * cut.down();
  const bool outside = channel >= cut.channels || pixel >= cut.pixels;
  return {channel, pixel * cut.channels + channel, step * cut.channels,
          outside ? 0 : (cut.pixels - pixel + step - 1) / step, row};
}

enum class Sweep : uint8_t { forward, back };

// Calls use(i, load(i)) for each element i of the place, in order or from the last to the first;
// kAhead of them are loaded before the first of them is used.
template <Sweep kSweep, int kAhead, class Load, class Use>
__device__ void sweep(const Place& at, const Load& load, const Use& use) {
  const auto element = [&](int64_t k) {
    return at.first + (kSweep == Sweep::back ? at.count - 1 - k : k) * at.step;
  };
  for (int64_t k = 0; k < at.count; k += kAhead) {
    decltype(load(k)) loaded[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      if (k + i < at.count) loaded[i] = load(element(k + i));
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      if (k + i < at.count) use(element(k + i), loaded[i]);
  }
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
__global__ void __launch_bounds__(kBlock, kResident)
    sum_deviations(const T* x, Cut cut, float* partial) {
  const Place at = place_of<kPack>(cut);
  float s[kPack] = {}, q[kPack] = {};
  if (at.count > 0) {
    const auto origin = load_pack<kPack>(x + at.first - at.row * cut.channels);
    sweep<Sweep::back, 2>(
        at, [&](int64_t i) { return load_pack<kPack>(x + i); },
        [&](int64_t, const Pack<T, kPack>& value) {
          for (int i = 0; i < kPack; ++i) {
            const float d = value[i] - origin[i];
            s[i] += d;
            q[i] += d * d;
          }
        });
  }
  join_threads<kPack>(cut, at, s, q, partial);
}

constexpr int kJoinChannels = 8, kJoinSlices = 32;

// Holds what batchnorm_statistics() computes of each channel.
struct Statistics {
  float *mean, *variance, *invstd, *scale, *shift;
  const float *weight, *bias;
  float eps;
};

// Joins the parts' means and squared deviations around the first pixel of the map.
template <class T>
__global__ void join_statistics(const T* x, Cut cut, const float* partial, Statistics out) {
  __shared__ double shared[kJoinSlices][kJoinChannels];
  const int64_t c = blockIdx.x * to_int64(kJoinChannels) + threadIdx.x;
  double sum = 0, squares = 0, origin = 0;
  if (c < cut.channels) {
    origin = to_float(x[c]);
    for (int64_t k = threadIdx.y; k < cut.parts; k += kJoinSlices) {
      const double n = to_double(cut.pixels_of(k));
      const double s = partial[k * 2 * cut.channels + c],
                   q = partial[(k * 2 + 1) * cut.channels + c], mean = s / n;
      const double d = to_float(x[k * cut.down() * cut.channels + c]) - origin + mean;
      sum += n * d;
      squares += q - s * mean + n * d * d;
    }
  }
  sum = sum_column(sum, shared);
  squares = sum_column(squares, shared);
  if (threadIdx.y > 0 || c >= cut.channels) return;
  const double n = to_double(cut.pixels);
  const double v = (squares - sum * sum / n) / n;
  out.mean[c] = to_float(origin + sum / n);
  // A negative remainder of cancellation is zero variance; NaN must stay NaN.
  out.variance[c] = to_float(v < 0 ? 0.0 : v);
  MakeAffine{out.mean, out.variance, out.weight, out.bias,
             out.eps,  out.invstd,   out.scale,  out.shift}(c);
}

// The running statistics and the batch's own, which move them.
struct Running {
  const float *mean, *variance;
  float momentum, unbiased;
  float *running_mean, *running_var;
  int64_t* batches;
};

// Updates the running statistics, in one block, unless any new value is non-finite.
__device__ void move_running(const Running& a, int64_t channels) {
  __shared__ int broken[kBlock];
  int mine = 0;
  for (int64_t c = threadIdx.x; c < channels; c += kBlock)
    mine |= !(a.mean[c] - a.mean[c] == 0.0f) || !(a.variance[c] - a.variance[c] == 0.0f);
  broken[threadIdx.x] = mine;
  __syncthreads();
  for (int i = 0; i < kBlock; ++i) mine |= broken[i];
  if (mine != 0) return;
  for (int64_t c = threadIdx.x; c < channels; c += kBlock) {
    a.running_mean[c] = a.running_mean[c] * (1.0f - a.momentum) + a.momentum * a.mean[c];
    a.running_var[c] =
        a.running_var[c] * (1.0f - a.momentum) + a.momentum * a.unbiased * a.variance[c];
  }
  if (threadIdx.x == 0) ++*a.batches;
}

template <class T, int kPack>
struct Normalized {
  Pack<T, kPack> x, skip;
};

// Blocks beyond the cut's parts update the running statistics meanwhile. `signs`: a byte for each
// pack, a bit for each of its values, set where y > 0; or null.
template <class T, int kPack>
__global__ void __launch_bounds__(kBlock, kResident)
    apply(const T* x, const T* residual, Cut cut, const float* scale, const float* shift, bool relu,
          T* y, uint8_t* signs, Running running) {
  if (blockIdx.y == cut.parts) {
    if (blockIdx.x == 0) move_running(running, cut.channels);
    return;
  }
  const Place at = place_of<kPack>(cut);
  if (at.count == 0) return;
  float factor[kPack], offset[kPack];
  for (int i = 0; i < kPack; ++i) {
    factor[i] = scale[at.channel + i];
    offset[i] = shift[at.channel + i];
  }
  sweep<Sweep::forward, 2>(
      at,
      [&](int64_t i) {
        Normalized<T, kPack> out = {load_pack<kPack>(x + i), {}};
        if (residual != nullptr) out.skip = load_pack<kPack>(residual + i);
        return out;
      },
      [&](int64_t place, const Normalized<T, kPack>& in) {
        Pack<T, kPack> out;
        uint32_t positive = 0;
        for (int i = 0; i < kPack; ++i) {
          float v = in.x[i] * factor[i] + offset[i];
          if (residual != nullptr) v += in.skip[i];
          out.set(i, relu && v < 0.0f ? 0.0f : v);  // NaN stays NaN
          positive |= (out[i] > 0.0f ? 1u : 0u) << i;
        }
        store_pack<kPack>(y + place, out);
        if (signs != nullptr) signs[place / kPack] = static_cast<uint8_t>(positive);
      });
}

// Inputs of the backward pass. signs: of apply(); null where ReLU's sign follows from x.
template <class T>
struct Operands {
  const T *x, *dy, *dy2;
  const uint8_t* signs;
  int64_t per_byte;  // values in a byte of signs: kPack, unless that is 1
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

// Holds what the backward pass reads of an element; dy2 is zero where there is none.
template <class T, int kPack>
struct Loaded {
  Pack<T, kPack> x, dy, dy2;
  uint32_t signs;

  __device__ static Loaded of(const Operands<T>& a, int64_t place) {
    Loaded out = {load_pack<kPack>(a.x + place), load_pack<kPack>(a.dy + place), {}, 0};
    if (a.dy2 != nullptr) out.dy2 = load_pack<kPack>(a.dy2 + place);
    if (a.signs == nullptr) return out;
    if constexpr (kPack == 1)
      out.signs = uint32_t{a.signs[place / a.per_byte]} >> place % a.per_byte;
    else
      out.signs = a.signs[place / kPack];
    return out;
  }
  // Returns value i of the gradient before ReLU: 0 where y is not above 0.
  __device__ float masked(const Operands<T>& a, const ChannelConstants<kPack>& c, int i) const {
    const float g = a.dy2 != nullptr ? dy[i] + dy2[i] : dy[i];
    if (a.signs != nullptr) return (signs >> i & 1) != 0 ? g : 0.0f;
    return a.relu && !(x[i] * c.scale[i] + c.shift[i] > 0.0f) ? 0.0f : g;
  }
};

// Sums dz and dz * (x - mean), in the first pass; stores dz where it is needed.
template <class T, int kPack>
__global__ void __launch_bounds__(kBlock, kResident)
    sum_gradients(Operands<T> a, Cut cut, T* dz, float* partial) {
  const Place at = place_of<kPack>(cut);
  float s[kPack] = {}, t[kPack] = {};
  if (at.count > 0) {
    const ChannelConstants<kPack> c(a, at.channel);
    sweep<Sweep::back, 1>(
        at, [&](int64_t i) { return Loaded<T, kPack>::of(a, i); },
        [&](int64_t place, const Loaded<T, kPack>& in) {
          Pack<T, kPack> out;
          for (int i = 0; i < kPack; ++i) {
            const float g = in.masked(a, c, i);
            out.set(i, g);
            s[i] += g;
            t[i] += g * (in.x[i] - c.mean[i]);
          }
          if (dz != nullptr) store_pack<kPack>(dz + place, out);
        });
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
__global__ void __launch_bounds__(kBlock, kResident)
    input_gradient(Operands<T> a, Cut cut, const float* line, T* dx) {
  const Place at = place_of<kPack>(cut);
  if (at.count == 0) return;
  const ChannelConstants<kPack> c(a, at.channel);
  float u[kPack], v[kPack], k[kPack];
  for (int i = 0; i < kPack; ++i) {
    u[i] = line[at.channel + i];
    v[i] = line[cut.channels + at.channel + i];
    k[i] = line[2 * cut.channels + at.channel + i];
  }
  sweep<Sweep::forward, 1>(
      at, [&](int64_t i) { return Loaded<T, kPack>::of(a, i); },
      [&](int64_t place, const Loaded<T, kPack>& in) {
        Pack<T, kPack> out;
        for (int i = 0; i < kPack; ++i)
          out.set(i, u[i] * in.masked(a, c, i) + (v[i] * in.x[i] + k[i]));
        store_pack<kPack>(dx + place, out);
      });
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

void batchnorm_statistics(const Tensor& x, const BatchNormAffine& a) {
  with_packs({&x}, x.shape()[1], [&]<class T, int kPack>() {
    const Cut cut = cut_map(x, kPack);
    const Tensor partial = partial_sums(cut);
    launch("batch norm: sums", sum_deviations<T, kPack>, blocks_of(cut), kBlock, x.data<T>(), cut,
           partial.data<float>());
    launch("batch norm: statistics", join_statistics<T>, join_blocks(cut), join_threads_of_block(),
           x.data<T>(), cut, partial.data<float>(),
           Statistics{a.mean.data<float>(), a.variance.data<float>(), a.invstd.data<float>(),
                      a.scale.data<float>(), a.shift.data<float>(), a.weight.data<float>(),
                      a.bias.data<float>(), a.eps});
  });
}

Tensor batchnorm_apply(const Tensor& x, const Tensor& scale, const Tensor& shift,
                       const Tensor& residual, bool relu, const Tensor& y,
                       const BatchNormRunning* running) {
  Tensor signs;
  with_packs({&x, &residual, &y}, x.shape()[1], [&]<class T, int kPack>() {
    if (relu && residual.defined())
      signs = Tensor::empty_on(x.device(), {x.size() / kPack}, DType::u8);
    const Cut cut = cut_map(x, kPack);
    Running moved = {};
    if (running != nullptr)
      moved = {running->mean.data<float>(),
               running->variance.data<float>(),
               running->momentum,
               running->unbiased,
               running->running_mean.data<float>(),
               running->running_var.data<float>(),
               running->batches.data<int64_t>()};
    const dim3 blocks(cut.strips, cut.parts + (running != nullptr ? 1 : 0));
    launch("batch norm: apply", apply<T, kPack>, blocks, kBlock, x.data<T>(), or_null<T>(residual),
           cut, scale.data<float>(), shift.data<float>(), relu, y.data<T>(),
           or_null<uint8_t>(signs), moved);
  });
  return signs;
}

void batchnorm_backward(const BatchNormBackward& a) {
  const Tensor& signs = a.kept;
  const int64_t per_byte = signs.defined() && signs.size() > 0 ? a.x.size() / signs.size() : 0;
  const int64_t neighbours = per_byte == 1 ? 1 : a.x.shape()[1];
  with_packs({&a.x, &a.dy, &a.dy2, &a.dz, &a.dx}, neighbours, [&]<class T, int kPack>() {
    const Cut cut = cut_map(a.x, kPack);
    Operands<T> operands = {
        a.x.data<T>(), a.dy.data<T>(),       or_null<T>(a.dy2),     or_null<uint8_t>(signs),
        per_byte,      a.mean.data<float>(), a.scale.data<float>(), a.shift.data<float>(),
        a.relu};
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
      operands.dy2 = nullptr, operands.signs = nullptr;
      operands.relu = false;
    }
    launch("batch norm: input gradient", input_gradient<T, kPack>, blocks_of(cut), kBlock, operands,
           cut, line.data<float>(), a.dx.data<T>());
  });
}

}  // namespace heddle::HEDDLE_BACKEND
