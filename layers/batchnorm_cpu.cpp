// Batch norm's CPU kernels: two passes forward, two backward, at memory bandwidth for blocks of 16
// channels (channels last and plain maps take longer). Sums are taken per run in fp32 around a
// shift and joined in double in a fixed order (Chan et al., 1983).
#include <vector>

#include "core/kernels.h"
#include "layers/backend.h"
#include "layers/channel.h"

namespace heddle::cpu {
namespace {

// Returns the first pixel of every run, (runs, width).
std::vector<float> first_pixels(const Runs& runs, const Tensor& x) {
  std::vector<float> first(runs.count() * runs.width());
  for (int64_t r = 0; r < runs.count(); ++r)
    for (int64_t c = 0; c < runs.width(); ++c) {
      const int64_t p = runs[r].offset + c;
      first[r * runs.width() + c] = x.dtype() == DType::f32
                                        ? static_cast<const float*>(x.raw())[p]
                                        : to_float(static_cast<const bfloat16*>(x.raw())[p]);
    }
  return first;
}

// The constants of one channel group for the backward pass.
template <int kLanes>
struct Channel {
  using L = Lanes<kLanes>;
  typename L::Vec mean, scale, shift;
  Channel(const BatchNormBackward& a, int64_t channel)
      : mean(L::load(static_cast<const float*>(a.mean.raw()) + channel)),
        scale(L::load(static_cast<const float*>(a.scale.raw()) + channel)),
        shift(L::load(static_cast<const float*>(a.shift.raw()) + channel)) {}
};

// Computes the gradient before ReLU at element p.
template <int kLanes, class T>
struct MaskedGradient {
  using L = Lanes<kLanes>;
  const T *x, *y, *dy, *dy2;
  bool relu;
  typename L::Vec operator()(int64_t p, typename L::Vec value, const Channel<kLanes>& c) const {
    auto g = L::load(dy + p);
    if (dy2 != nullptr) g += L::load(dy2 + p);
    if (!relu) return g;
    // With a residual the sign follows from the output, else from the formula of forward.
    return L::positive(y != nullptr ? L::load(y + p) : value * c.scale + c.shift, g);
  }
};

// Sums dz and dz * (x - mean) per run, in the first pass; stores dz where it is needed.
template <int kLanes, class T>
void backward_sums(const Runs& runs, const BatchNormBackward& a, float* sums) {
  using L = Lanes<kLanes>;
  T* dz = a.dz.defined() ? a.dz.data<T>() : nullptr;
  const MaskedGradient<kLanes, T> gradient = {
      a.x.data<T>(), a.kept.defined() ? a.kept.data<T>() : nullptr, a.dy.data<T>(),
      a.dy2.defined() ? a.dy2.data<T>() : nullptr, a.relu};
  for_runs(runs, [&](int64_t r, const Run& run) {
    sum_pixels<kLanes>(
        run, [&](int64_t channel) { return Channel<kLanes>(a, channel); },
        [&](int64_t p, const Channel<kLanes>& c, auto& s, auto& t) {
          const auto value = L::load(gradient.x + p);
          const auto g = gradient(p, value, c);
          if (dz != nullptr) L::store(dz + p, g);
          s += g;
          t += g * (value - c.mean);
        },
        sums + r * 2 * runs.width());
  });
}

// Computes dx = u * dz + v * x + k, with u, v, k per channel, in the second pass.
template <int kLanes, class T>
void backward_input(const Runs& runs, const BatchNormBackward& a, const float* u, const float* v,
                    const float* k) {
  using L = Lanes<kLanes>;
  struct Constants {
    Channel<kLanes> channel;
    typename L::Vec u, v, k;
  };
  T* dx = a.dx.data<T>();
  // The masked gradient was stored, or is computed once more.
  const bool stored = a.dz.defined();
  const MaskedGradient<kLanes, T> gradient = {
      a.x.data<T>(), stored || !a.kept.defined() ? nullptr : a.kept.data<T>(),
      stored ? a.dz.data<T>() : a.dy.data<T>(),
      stored || !a.dy2.defined() ? nullptr : a.dy2.data<T>(), a.relu && !stored};
  for_runs(runs, [&](int64_t, const Run& run) {
    for_pixels<kLanes>(
        run,
        [&](int64_t channel) {
          return Constants{Channel<kLanes>(a, channel), L::load(u + channel), L::load(v + channel),
                           L::load(k + channel)};
        },
        [&](int64_t p, const Constants& c) {
          const auto value = L::load(gradient.x + p);
          L::store(dx + p, c.u * gradient(p, value, c.channel) + (c.v * value + c.k));
        });
  });
}

void move_running(const BatchNormRunning& a) {
  if (!heddle::all_finite(a.mean) || !heddle::all_finite(a.variance)) return;
  heddle::scale(a.running_mean, 1.0f - a.momentum);
  heddle::axpy(a.momentum, a.mean, a.running_mean);
  heddle::scale(a.running_var, 1.0f - a.momentum);
  heddle::axpy(a.momentum * a.unbiased, a.variance, a.running_var);
  ++*a.batches.data<int64_t>();
}

}  // namespace

void batchnorm_statistics(const Tensor& x, const BatchNormAffine& a) {
  const Runs runs(x);
  const int64_t channels = runs.channels(), width = runs.width();
  // Sums are taken around the run's first pixel, which is near the mean: squares do not cancel.
  std::vector<float> partial(runs.count() * 2 * width);
  with_runs(runs, x, [&]<int kLanes, class T>() {
    using L = Lanes<kLanes>;
    const T* in = x.data<T>();
    for_runs(runs, [&](int64_t r, const Run& run) {
      sum_pixels<kLanes>(
          run, [&](int64_t channel) { return L::load(in + run.offset + (channel - run.channel)); },
          [&](int64_t p, auto first, auto& s, auto& q) {
            const auto d = L::load(in + p) - first;
            s += d;
            q += d * d;
          },
          partial.data() + r * 2 * width);
    });
  });
  // Each run gives a mean and a sum of squared deviations; they are joined by Chan's formula.
  const double count = to_double(runs.per_channel());
  std::vector<double> mu(channels, 0.0), squares(channels, 0.0);
  std::vector<double> run_mean(runs.count() * width);
  const std::vector<float> first = first_pixels(runs, x);
  for (int64_t r = 0; r < runs.count(); ++r) {
    const Run run = runs[r];
    const double n = to_double(run.pixels);
    for (int64_t c = 0; c < width; ++c) {
      const double m = first[r * width + c] + partial[r * 2 * width + c] / n;
      run_mean[r * width + c] = m;
      mu[run.channel + c] += n * m / count;
    }
  }
  for (int64_t r = 0; r < runs.count(); ++r) {
    const Run run = runs[r];
    const double n = to_double(run.pixels);
    for (int64_t c = 0; c < width; ++c) {
      const double s = partial[r * 2 * width + c], q = partial[(r * 2 + 1) * width + c];
      const double d = run_mean[r * width + c] - mu[run.channel + c];
      squares[run.channel + c] += q - s * s / n + n * d * d;
    }
  }
  for (int64_t c = 0; c < channels; ++c) {
    a.mean.data<float>()[c] = to_float(mu[c]);
    // A negative remainder of cancellation is zero variance; NaN must stay NaN.
    a.variance.data<float>()[c] = to_float(squares[c] < 0 ? 0.0 : squares[c] / count);
  }
  batchnorm_affine(a);
}

Tensor batchnorm_apply(const Tensor& x, const Tensor& scale, const Tensor& shift,
                       const Tensor& residual, bool relu, const Tensor& y,
                       const BatchNormRunning* running) {
  if (running != nullptr) move_running(*running);
  const Runs runs(x);
  with_runs(runs, x, [&]<int kLanes, class T>() {
    using L = Lanes<kLanes>;
    struct Constants {
      typename L::Vec scale, shift;
    };
    const T* in = x.data<T>();
    const T* skip = residual.defined() ? residual.data<T>() : nullptr;
    const float *a = scale.data<float>(), *b = shift.data<float>();
    T* out = y.data<T>();
    for_runs(runs, [&](int64_t, const Run& run) {
      for_pixels<kLanes>(
          run,
          [&](int64_t channel) {
            return Constants{L::load(a + channel), L::load(b + channel)};
          },
          [&](int64_t p, const Constants& c) {
            auto value = L::load(in + p) * c.scale + c.shift;
            if (skip != nullptr) value += L::load(skip + p);
            L::store(out + p, relu ? L::relu(value) : value);
          });
    });
  });
  return y;
}

void batchnorm_backward(const BatchNormBackward& a) {
  const Runs runs(a.x);
  const int64_t channels = runs.channels(), width = runs.width();
  std::vector<float> partial(runs.count() * 2 * width);
  with_runs(runs, a.x,
            [&]<int kLanes, class T>() { backward_sums<kLanes, T>(runs, a, partial.data()); });
  std::vector<double> s(channels, 0.0), t(channels, 0.0);
  for (int64_t r = 0; r < runs.count(); ++r)
    for (int64_t c = 0; c < width; ++c) {
      s[runs[r].channel + c] += partial[r * 2 * width + c];
      t[runs[r].channel + c] += partial[(r * 2 + 1) * width + c];
    }
  const double count = to_double(runs.per_channel());
  std::vector<float> u(channels), v(channels), k(channels);
  float *dweight = a.dweight.data<float>(), *dbias = a.dbias.data<float>();
  for (int64_t c = 0; c < channels; ++c) {
    const double invstd = a.invstd.data<float>()[c], mean = a.mean.data<float>()[c];
    const double scale = a.scale.data<float>()[c];
    dbias[c] = accumulate(a.beta_bias, dbias[c], to_float(s[c]));
    dweight[c] = accumulate(a.beta_weight, dweight[c], to_float(t[c] * invstd));
    // dx = scale * (dz - mean(dz) - xhat * mean(dz * xhat)) with xhat = (x - mean) * invstd.
    const double slope = -scale * invstd * invstd * t[c] / count;
    u[c] = to_float(scale);
    v[c] = to_float(slope);
    k[c] = to_float(-scale * s[c] / count - slope * mean);
  }
  with_runs(runs, a.x, [&]<int kLanes, class T>() {
    backward_input<kLanes, T>(runs, a, u.data(), v.data(), k.data());
  });
}

}  // namespace heddle::cpu
