// Batch norm's CPU kernels, at memory bandwidth: two passes forward, two backward. Sums are taken
// per run in fp32 around a shift and joined in double in a fixed order (Chan et al., 1983).
#include <vector>

#include "core/parallel.h"
#include "core/simd.h"
#include "layers/batchnorm.h"
#include "layers/channel.h"

namespace heddle::cpu {
namespace {

// Calls f.template operator()<lanes, T>() for the lanes of the runs and the type of x.
template <class F>
void dispatch(const Runs& runs, const Tensor& x, F&& f) {
  if (x.dtype() == DType::f32)
    runs.lanes() == 16 ? f.template operator()<16, float>() : f.template operator()<1, float>();
  else
    runs.lanes() == 16 ? f.template operator()<16, bfloat16>()
                       : f.template operator()<1, bfloat16>();
}

template <class F>
void for_runs(const Runs& runs, F&& f) {
  parallel_for(runs.count(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) f(r, runs[r]);
  });
}

// Mean and sum of squared deviations of one run. Four independent sums hide the latency of
// addition.
template <int kLanes, class T>
void run_statistics(const Run& run, const T* x, float* mean, float* squares) {
  using L = Lanes<kLanes>;
  const auto shift = L::load(x);  // near the mean, so that squares do not cancel
  typename L::Vec s[4] = {}, q[4] = {};
  int64_t i = 0;
  for (; i + 4 <= run.pixels; i += 4)
    for (int k = 0; k < 4; ++k) {
      const auto d = L::load(x + (i + k) * run.stride) - shift;
      s[k] += d;
      q[k] += d * d;
    }
  for (; i < run.pixels; ++i) {
    const auto d = L::load(x + i * run.stride) - shift;
    s[0] += d;
    q[0] += d * d;
  }
  const auto sum = (s[0] + s[1]) + (s[2] + s[3]), square = (q[0] + q[1]) + (q[2] + q[3]);
  const float inverse = 1.0f / static_cast<float>(run.pixels);
  L::store(mean, shift + sum * inverse);
  L::store(squares, square - sum * sum * inverse);
}

// What backward needs of one channel group.
template <int kLanes>
struct Channel {
  using L = Lanes<kLanes>;
  typename L::Vec mean, scale, shift;
  Channel(const BatchNormBackward& a, int64_t channel)
      : mean(L::load(a.mean.data<float>() + channel)),
        scale(L::load(a.scale.data<float>() + channel)),
        shift(L::load(a.shift.data<float>() + channel)) {}
};

// The gradient before ReLU at element p.
template <int kLanes, class T>
struct MaskedGradient {
  using L = Lanes<kLanes>;
  const T *x, *y, *dy, *dy2;
  bool relu;
  typename L::Vec operator()(int64_t p, typename L::Vec value, const Channel<kLanes>& c) const {
    auto g = L::load(dy + p);
    if (dy2 != nullptr) g += L::load(dy2 + p);
    if (!relu) return g;
    // With a residual the output tells the sign; else the same formula as forward does.
    return L::positive(y != nullptr ? L::load(y + p) : value * c.scale + c.shift, g);
  }
};

// First pass: sums of dz and of dz * (x - mean) per run; stores dz where it is wanted.
template <int kLanes, class T>
void backward_sums(const Runs& runs, const BatchNormBackward& a, float* sums) {
  using L = Lanes<kLanes>;
  T* dz = a.dz.defined() ? a.dz.data<T>() : nullptr;
  const MaskedGradient<kLanes, T> gradient = {a.x.data<T>(), a.residual ? a.y.data<T>() : nullptr,
                                              a.dy.data<T>(),
                                              a.dy2.defined() ? a.dy2.data<T>() : nullptr, a.relu};
  for_runs(runs, [&](int64_t r, const Run& run) {
    const Channel<kLanes> c(a, run.channel);
    typename L::Vec s[2] = {}, t[2] = {};
    for (int64_t i = 0; i < run.pixels; ++i) {
      const int64_t p = run.offset + i * run.stride;
      const auto value = L::load(gradient.x + p);
      const auto g = gradient(p, value, c);
      if (dz != nullptr) L::store(dz + p, g);
      s[i & 1] += g;
      t[i & 1] += g * (value - c.mean);
    }
    L::store(sums + r * 2 * kLanes, s[0] + s[1]);
    L::store(sums + (r * 2 + 1) * kLanes, t[0] + t[1]);
  });
}

// Second pass: dx = u * dz + v * x + k with u, v, k per channel.
template <int kLanes, class T>
void backward_input(const Runs& runs, const BatchNormBackward& a, const float* u, const float* v,
                    const float* k) {
  using L = Lanes<kLanes>;
  T* dx = a.dx.data<T>();
  // The masked gradient is at hand when it was stored, else it is formed once more.
  const bool stored = a.dz.defined();
  const MaskedGradient<kLanes, T> gradient = {
      a.x.data<T>(), stored || !a.residual ? nullptr : a.y.data<T>(),
      stored ? a.dz.data<T>() : a.dy.data<T>(),
      stored || !a.dy2.defined() ? nullptr : a.dy2.data<T>(), a.relu && !stored};
  for_runs(runs, [&](int64_t, const Run& run) {
    const Channel<kLanes> c(a, run.channel);
    const auto uc = L::load(u + run.channel), vc = L::load(v + run.channel),
               kc = L::load(k + run.channel);
    for (int64_t i = 0; i < run.pixels; ++i) {
      const int64_t p = run.offset + i * run.stride;
      const auto value = L::load(gradient.x + p);
      L::store(dx + p, uc * gradient(p, value, c) + (vc * value + kc));
    }
  });
}

}  // namespace

void batchnorm_statistics(const Tensor& x, const Tensor& mean, const Tensor& variance) {
  const Runs runs(x);
  const int64_t channels = runs.channels(), lanes = runs.lanes();
  std::vector<float> partial(runs.count() * 2 * lanes);
  dispatch(runs, x, [&]<int kLanes, class T>() {
    for_runs(runs, [&](int64_t r, const Run& run) {
      float* out = partial.data() + r * 2 * kLanes;
      run_statistics<kLanes>(run, x.data<T>() + run.offset, out, out + kLanes);
    });
  });
  const double count = static_cast<double>(runs.per_channel());
  std::vector<double> mu(channels, 0.0), squares(channels, 0.0);
  for (int64_t r = 0; r < runs.count(); ++r)
    for (int64_t lane = 0; lane < lanes; ++lane)
      mu[runs[r].channel + lane] +=
          static_cast<double>(runs[r].pixels) * partial[r * 2 * lanes + lane] / count;
  for (int64_t r = 0; r < runs.count(); ++r)
    for (int64_t lane = 0; lane < lanes; ++lane) {
      const int64_t c = runs[r].channel + lane;
      const double d = partial[r * 2 * lanes + lane] - mu[c];
      squares[c] +=
          partial[(r * 2 + 1) * lanes + lane] + static_cast<double>(runs[r].pixels) * d * d;
    }
  for (int64_t c = 0; c < channels; ++c) {
    mean.data<float>()[c] = static_cast<float>(mu[c]);
    // A negative remainder of cancellation is zero variance; NaN must stay NaN.
    variance.data<float>()[c] = static_cast<float>(squares[c] < 0 ? 0.0 : squares[c] / count);
  }
}

void batchnorm_apply(const Tensor& x, const Tensor& scale, const Tensor& shift,
                     const Tensor& residual, bool relu, const Tensor& y) {
  const Runs runs(x);
  dispatch(runs, x, [&]<int kLanes, class T>() {
    using L = Lanes<kLanes>;
    const T* in = x.data<T>();
    const T* skip = residual.defined() ? residual.data<T>() : nullptr;
    T* out = y.data<T>();
    for_runs(runs, [&](int64_t, const Run& run) {
      const auto a = L::load(scale.data<float>() + run.channel);
      const auto b = L::load(shift.data<float>() + run.channel);
      for (int64_t i = 0; i < run.pixels; ++i) {
        const int64_t p = run.offset + i * run.stride;
        auto value = L::load(in + p) * a + b;
        if (skip != nullptr) value += L::load(skip + p);
        L::store(out + p, relu ? L::relu(value) : value);
      }
    });
  });
}

void batchnorm_backward(const BatchNormBackward& a) {
  const Runs runs(a.x);
  const int64_t channels = runs.channels(), lanes = runs.lanes();
  std::vector<float> partial(runs.count() * 2 * lanes);
  dispatch(runs, a.x,
           [&]<int kLanes, class T>() { backward_sums<kLanes, T>(runs, a, partial.data()); });
  std::vector<double> s(channels, 0.0), t(channels, 0.0);
  for (int64_t r = 0; r < runs.count(); ++r)
    for (int64_t lane = 0; lane < lanes; ++lane) {
      s[runs[r].channel + lane] += partial[r * 2 * lanes + lane];
      t[runs[r].channel + lane] += partial[(r * 2 + 1) * lanes + lane];
    }
  const double count = static_cast<double>(runs.per_channel());
  std::vector<float> u(channels), v(channels), k(channels);
  float *dweight = a.dweight.data<float>(), *dbias = a.dbias.data<float>();
  for (int64_t c = 0; c < channels; ++c) {
    const double invstd = a.invstd.data<float>()[c], mean = a.mean.data<float>()[c];
    const double scale = a.scale.data<float>()[c];
    dbias[c] = (a.beta_bias == 0.0f ? 0.0f : a.beta_bias * dbias[c]) + static_cast<float>(s[c]);
    dweight[c] = (a.beta_weight == 0.0f ? 0.0f : a.beta_weight * dweight[c]) +
                 static_cast<float>(t[c] * invstd);
    // dx = scale * (dz - mean(dz) - xhat * mean(dz * xhat)) with xhat = (x - mean) * invstd.
    const double slope = -scale * invstd * invstd * t[c] / count;
    u[c] = static_cast<float>(scale);
    v[c] = static_cast<float>(slope);
    k[c] = static_cast<float>(-scale * s[c] / count - slope * mean);
  }
  dispatch(runs, a.x, [&]<int kLanes, class T>() {
    backward_input<kLanes, T>(runs, a, u.data(), v.data(), k.data());
  });
}

}  // namespace heddle::cpu
