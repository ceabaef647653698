#include "compress/lgc_autoencoder.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "core/context.h"
#include "core/kernels.h"
#include "core/math.h"
#include "layers/activation.h"
#include "layers/conv2d.h"

namespace heddle {
namespace {

constexpr float kSlope = 0.01f;                                  // of the leaky ReLU
constexpr float kMaxWeight = 100;                                // beyond it training has diverged
constexpr double kBeta1 = 0.9, kBeta2 = 0.999, kEpsilon = 1e-8;  // Adam's usual constants

// The network computes on the host, on one thread, while the learner does its own work.
constexpr ContextOptions kAlone{.threads = 1, .deterministic = true};

struct LayerSpec {
  int64_t in, out, kernel, stride;
  bool transposed, activated;
};
using Specs = std::vector<LayerSpec>;

// The layers of a public re-implementation of LGC (docs/algorithms.md); the last one, a convolution
// of width 1 for rings, is reconstructed.
const Specs kPaperEncoder = {{1, 64, 3, 2, false, true},
                             {64, 128, 3, 2, false, true},
                             {128, 256, 3, 2, false, true},
                             {256, 64, 3, 2, false, true},
                             {64, 4, 1, 1, false, true}};
const Specs kPaperDecoder = {{4, 32, 3, 2, true, true},
                             {32, 64, 3, 2, true, true},
                             {64, 128, 3, 2, true, true},
                             {128, 32, 3, 2, true, true},
                             {32, 1, 1, 1, false, false}};
// A lapped transform: windows of 31 values, one every 16.
const Specs kLinearEncoder = {{1, 4, 31, 16, false, false}};
const Specs kLinearDecoder = {{4, 1, 31, 16, true, false}};

// Appends the mean of the rows: x (P, C, 1, L) -> (P + 1, C, 1, L).
Var with_mean(Tape& tape, const Var& x) {
  const Shape shape = x.shape();
  const int64_t rows = shape[0], n = x.value().size() / rows;
  const Tensor out = Tensor::empty_on(Device{}, {rows + 1, shape[1], 1, shape[3]});
  const Tensor in = converted(x.value(), DType::f32, Layout::plain);
  float* y = out.data<float>();
  std::copy_n(in.data<float>(), rows * n, y);
  std::fill_n(y + rows * n, n, 0.0f);
  for (int64_t i = 0; i < rows * n; ++i) y[rows * n + i % n] += y[i] / to_float(rows);
  Var result(out, true);
  tape.record("mean of codes", result, {}, [x, rows, n](BackwardPass& pass) {
    const Tensor dy = converted(std::move(pass.dy).sum(), DType::f32, Layout::plain);
    const Tensor dx = Tensor::empty_on(Device{}, x.shape());
    const float* from = dy.data<float>();
    for (int64_t i = 0; i < rows * n; ++i)
      dx.data<float>()[i] = from[i] + from[rows * n + i % n] / to_float(rows);
    x.add_grad(converted(dx, DType::f32, x.value().layout()));
  });
  return result;
}

// Returns the mean over positions of (y - x)^2 of the last row plus its mean over the other rows: y
// (P + 1, 1, 1, L), x (P + 1, L).
Var weighted_loss(Tape& tape, const Var& y, const Tensor& x) {
  const Tensor difference = converted(y.value(), DType::f32, Layout::plain).clone();
  const int64_t rows = x.shape()[0] - 1, n = x.shape()[1];
  float* d = difference.data<float>();
  double loss = 0;
  for (int64_t i = 0; i < x.size(); ++i) {
    d[i] -= x.data<float>()[i];
    const double weight = 1.0 / to_double(i < rows * n ? rows * n : n);
    loss += weight * d[i] * d[i];
    d[i] *= to_float(2 * weight);  // now the gradient
  }
  Var result(Tensor::from({to_float(loss)}, {}), true);
  tape.record("autoencoder's loss", result, {}, [y, difference](BackwardPass& pass) {
    const float scale_by = std::move(pass.dy).sum().item();
    const Tensor dy = converted(difference.reshape(y.shape()), DType::f32, y.value().layout());
    scale(dy, scale_by);
    y.add_grad(dy);
  });
  return result;
}

// Returns the fit of y (P + 1, L), decoded from the codes of x (P + 1, L), to x; the mean is last.
GradientAutoencoder::Fit fit_of(const Tensor& y, const Tensor& x) {
  const int64_t rows = x.shape()[0] - 1, n = x.shape()[1];
  const float *decoded = y.data<float>(), *values = x.data<float>();
  double wrong = 0, energy = 0, gap = 0, delivered = 0;
  for (int64_t i = 0; i < n; ++i) {
    double sum = 0;
    for (int64_t r = 0; r < rows; ++r) sum += decoded[r * n + i];
    const double mean = decoded[rows * n + i], expected = values[rows * n + i];
    const double whole = to_double(rows) * mean;
    wrong += (mean - expected) * (mean - expected);
    energy += expected * expected;
    gap += (whole - sum) * (whole - sum);
    delivered += whole * whole;
  }
  return {wrong / energy, std::sqrt(gap / std::max(1e-30, delivered))};
}

}  // namespace

// Values by position, each with its channels.
struct GradientAutoencoder::Sequence {
  int64_t length, channels;
  std::vector<float> values;
};

GradientAutoencoder::GradientAutoencoder(Kind kind, uint64_t seed) {
  const bool linear = kind == Kind::linear;
  const auto add = [&](const Specs& specs, const std::string& part, std::vector<Layer>& layers) {
    for (const LayerSpec& spec : specs) {
      const std::string name = concat(part, ".", layers.size());
      const int64_t uses = spec.in * spec.kernel / (spec.transposed ? spec.stride : 1);
      const auto bound = to_float(std::sqrt(3.0 / to_double(uses)));
      const Shape shape = spec.transposed ? Shape{spec.in, spec.out, 1, spec.kernel}
                                          : Shape{spec.out, spec.in, 1, spec.kernel};
      layers.push_back(
          {&store_.add(name + ".weight", shape, uniform_init(bound)),
           linear ? nullptr : &store_.add(name + ".bias", {spec.out}, constant_init(0)),
           spec.stride, spec.transposed, spec.activated});
    }
  };
  add(linear ? kLinearEncoder : kPaperEncoder, "encoder", encoder_);
  add(linear ? kLinearDecoder : kPaperDecoder, "decoder", decoder_);
  const Context alone(kAlone);
  store_.finalize(seed);
  first_ = Tensor::zeros(weights().shape());
  second_ = Tensor::zeros(weights().shape());
  steps_ = Tensor::zeros({1});
}

int64_t GradientAutoencoder::positions(int64_t k) { return std::max<int64_t>(1, k / 16); }

GradientAutoencoder::Sequence GradientAutoencoder::apply(const std::vector<Layer>& layers,
                                                         Sequence x) const {
  for (const Layer& layer : layers) {
    const Shape& shape = layer.weight->shape();
    const int64_t in = x.channels, out = shape[layer.transposed ? 1 : 0], kernel = shape[3];
    const int64_t s = layer.stride;
    std::vector<float> w(to_size(layer.weight->size()));  // (kernel, in, out)
    const float* weight = layer.weight->value.data<float>();
    for (int64_t k = 0; k < kernel; ++k)
      for (int64_t c = 0; c < in; ++c)
        for (int64_t o = 0; o < out; ++o)
          w[to_size((k * in + c) * out + o)] =
              weight[(layer.transposed ? c * out + o : o * in + c) * kernel + k];
    Sequence y{
        layer.transposed ? (x.length - 1) * s + kernel : (x.length - kernel) / s + 1, out, {}};
    std::vector<float> bias(to_size(out));
    if (layer.bias != nullptr) bias = layer.bias->value.to_vector();
    for (int64_t p = 0; p < y.length; ++p)
      y.values.insert(y.values.end(), bias.begin(), bias.end());
    // Every sum is in the order (input position, k, channel), separately for each output channel.
    for (int64_t p = 0; p < std::min(x.length, y.length); ++p)
      for (int64_t k = 0; k < kernel; ++k) {
        const int64_t far = p * s + k;
        float* to = &y.values[to_size((layer.transposed ? far : p) * out)];
        const float* from = &x.values[to_size((layer.transposed ? p : far) * in)];
        const float* row = &w[to_size(k * in * out)];
        for (int64_t c = 0; c < in; ++c, row += out)
          for (int64_t o = 0; o < out; ++o) to[o] += from[c] * row[o];
      }
    if (layer.activated)
      for (float& v : y.values) v = v > 0 ? v : kSlope * v;
    x = std::move(y);
  }
  return x;
}

Tensor GradientAutoencoder::encode(const Tensor& x) const {
  const int64_t k = x.size();
  Sequence in{padded(k), 1, std::vector<float>(to_size(padded(k)))};
  std::copy_n(x.data<float>(), k, in.values.begin());
  const Sequence code = apply(encoder_, std::move(in));
  Tensor out = Tensor::empty_on(Device{}, {code.length * code.channels});
  for (int64_t p = 0; p < code.length; ++p)
    for (int64_t c = 0; c < code.channels; ++c)
      out.data<float>()[c * code.length + p] = code.values[to_size(p * code.channels + c)];
  return out;
}

Tensor GradientAutoencoder::decode(const Tensor& code) const {
  const int64_t channels = 4, m = code.size() / channels;
  Sequence in{m, channels, std::vector<float>(to_size(code.size()))};
  for (int64_t p = 0; p < m; ++p)
    for (int64_t c = 0; c < channels; ++c)
      in.values[to_size(p * channels + c)] = code.data<float>()[c * m + p];
  const Sequence values = apply(decoder_, std::move(in));
  Tensor out = Tensor::empty_on(Device{}, {values.length});
  std::ranges::copy(values.values, out.data<float>());
  return out;
}

Var GradientAutoencoder::record(Tape& tape, const std::vector<Layer>& layers, Var x) const {
  for (const Layer& layer : layers) {
    const auto& convolution = layer.transposed ? conv_transpose2d : conv2d;
    x = convolution(tape, x, *layer.weight, layer.bias, {.stride = layer.stride});
    if (layer.activated) x = leaky_relu(tape, x, kSlope);
  }
  return x;
}

GradientAutoencoder::Fit GradientAutoencoder::train(const Tensor& x, double lr) {
  const Context alone(kAlone);
  const int64_t rows = x.shape()[0], k = x.shape()[1], n = padded(k);
  const Tensor padded_rows = Tensor::zeros({rows + 1, n});  // the mean last
  float* to = padded_rows.data<float>();
  for (int64_t r = 0; r < rows; ++r) {
    std::copy_n(x.data<float>() + r * k, k, to + r * n);
    for (int64_t i = 0; i < k; ++i) to[rows * n + i] += to[r * n + i] / to_float(rows);
  }
  Fit fit;
  {
    Tape tape;
    store_.begin_step();
    const Var in(padded_rows.slice(0, rows).reshape({rows, 1, 1, n}));
    const Var code = record(tape, encoder_, in);
    const Var out = record(tape, decoder_, with_mean(tape, code));
    fit = fit_of(converted(out.value(), DType::f32, Layout::plain).reshape({rows + 1, n}),
                 padded_rows);
    tape.backward(weighted_loss(tape, out, padded_rows));
  }
  const Tensor before = weights().clone();
  update(lr);
  if (!sane()) {
    weights().copy_from(before);
    for (const Tensor& x : {first_, second_, steps_}) x.fill_zero();
  }
  return fit;
}

// Adam (Kingma and Ba 2015, arXiv 1412.6980, algorithm 1).
void GradientAutoencoder::update(double lr) {
  float& steps = *steps_.data<float>();
  ++steps;
  const double rate = lr * std::sqrt(1 - std::pow(kBeta2, steps)) / (1 - std::pow(kBeta1, steps));
  for (int64_t i = 0; i < weights().size(); ++i) {
    const double g = store_.grads().data<float>()[i];
    float &m = first_.data<float>()[i], &v = second_.data<float>()[i];
    m = to_float(kBeta1 * m + (1 - kBeta1) * g);
    v = to_float(kBeta2 * v + (1 - kBeta2) * g * g);
    weights().data<float>()[i] -= to_float(rate * m / (std::sqrt(double{v}) + kEpsilon));
  }
}

bool GradientAutoencoder::sane() const {
  const float* w = weights().data<float>();
  return std::all_of(w, w + weights().size(), [](float x) { return std::abs(x) <= kMaxWeight; });
}

NamedTensors GradientAutoencoder::named_state() const {
  return {{"autoencoder.weights", weights()},
          {"autoencoder.first_moments", first_},
          {"autoencoder.second_moments", second_},
          {"autoencoder.steps", steps_}};
}

}  // namespace heddle
