#include "tests/gradcheck.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <optional>
#include <string>

#include "core/kernels.h"
#include "tests/device.h"

namespace heddle {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Elements that are checked of each tensor: `wanted`, or fewer if the environment says so.
int samples_of(int wanted) {
  const char* most = std::getenv("HEDDLE_GRADCHECK_SAMPLES");
  return most ? std::min(wanted, std::stoi(most)) : wanted;
}

// In memory order, whatever the layout.
std::vector<float> memory_of(const Tensor& x) { return Tensor::view_as(x, {x.size()}).to_vector(); }

// Writes element i in memory order.
void set_element(const Tensor& x, int64_t i, float value) {
  Tensor::view_as(x, {x.size()}).slice(i, i + 1).copy_from(Tensor::from({value}));
}

double rms(const std::vector<float>& v) {
  double squares = 0;
  for (float e : v) squares += double{e} * e;
  return v.empty() ? 0 : std::sqrt(squares / static_cast<double>(v.size()));
}

std::vector<float> times(std::vector<float> v, float factor) {
  for (float& e : v) e *= factor;
  return v;
}

}  // namespace

Tensor random_tensor(const Shape& shape, uint64_t seed, Layout layout, float scale, DType dtype) {
  const Tensor out = Tensor::empty_on(Device{}, shape, dtype, layout);
  const Philox rng(seed, stream_id(Stream::sample));
  for (int64_t i = 0; i < out.size(); ++i) {
    const float value = scale * (2.0f * rng.uniform(i) - 1.0f);
    if (dtype == DType::bf16)
      out.data<bfloat16>()[i] = bfloat16(value);
    else
      out.data<float>()[i] = value;
  }
  return here(out);
}

Tensor random_integers(const Shape& shape, uint64_t seed, uint32_t below) {
  const Tensor out = Tensor::empty_on(Device{}, shape, DType::i32);
  const Philox rng(seed, stream_id(Stream::sample));
  for (int64_t i = 0; i < out.size(); ++i)
    out.data<int32_t>()[i] = static_cast<int32_t>(rng.below(static_cast<uint64_t>(i), below));
  return out;
}

void add_constant(const Tensor& x, float value) {
  const Tensor constant = Tensor::empty_like(x);
  fill(constant, value);
  add_to(constant, x);
}

void randomize(ParameterStore& store, uint64_t seed, float scale) {
  uint64_t i = 0;
  for (Parameter& p : store.parameters()) {
    const bool centre_one = p.shape().rank() == 1 && p.name.ends_with("weight");
    p.value.copy_from(
        random_tensor(p.shape(), seed * 1000 + ++i, Layout::plain, centre_one ? 0.5f : scale));
    if (centre_one) add_constant(p.value, 1.0f);
  }
}

double relative_distance(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    norm += double{b[i]} * b[i];
  }
  if (norm == 0) return difference == 0 ? 0 : std::numeric_limits<double>::infinity();
  return std::sqrt(difference / norm);
}

Var project(Tape& tape, const Var& y, const Tensor& r, DyMode mode) {
  const std::vector<float> a = memory_of(y.value()), b = memory_of(r);
  double dot = 0;
  for (size_t i = 0; i < a.size(); ++i) dot += double{a[i]} * b[i];
  const Var loss(Tensor::from({static_cast<float>(dot)}, {}), true);
  tape.record("projection", loss, {}, [y, r, mode](BackwardPass& pass) {
    std::move(pass.dy).sum();
    const Tensor half = r.clone();
    scale(half, 0.5f);
    switch (mode) {
      case DyMode::shared:
        return y.add_grad(r);
      case DyMode::unique:
        return y.add_grad(r.clone());
      case DyMode::two_shared:
        y.add_grad(half);
        return y.add_grad(half);
      case DyMode::two_unique:
        y.add_grad(half.clone());
        return y.add_grad(half.clone());
      case DyMode::shared_and_unique:  // these two: r - r/2, r being kept by the test
        y.add_grad(r);
        scale(half, -1.0f);
        return y.add_grad(half);
      case DyMode::unique_and_shared:
        scale(half, -1.0f);
        y.add_grad(half);
        return y.add_grad(r);
    }
  });
  return loss;
}

GradCheck::GradCheck(ParameterStore& store, std::vector<Tensor> inputs, Network network,
                     const GradCheckOptions& options)
    : store_(store), inputs_(std::move(inputs)), network_(std::move(network)), options_(options) {}

GradCheck::Gradients GradCheck::analytic(DyMode mode, int uses) {
  std::vector<Var> leaves;
  std::vector<Tensor> noise;
  for (const Tensor& x : inputs_) {
    leaves.emplace_back(x, true);
    noise.push_back(random_tensor(x.shape(), 977, x.layout(), 1.0f, x.dtype()));
  }
  store_.begin_step();
  for (Parameter& p : store_.parameters()) {
    fill(p.grad, kNaN);
    p.touched_rows.reset();  // a write from outside
  }
  const std::vector<float> values = memory_of(store_.values());
  std::vector<std::vector<float>> inputs;
  for (const Tensor& x : inputs_) inputs.push_back(memory_of(x));

  Tape tape(options_.tape);
  Var loss;
  std::vector<Var> outputs;
  std::vector<std::vector<float>> forward;
  for (int i = 0; i < uses; ++i) {
    outputs.push_back(network_(tape, leaves));
    const Tensor& y = outputs.back().value();
    if (!r_.defined()) r_ = random_tensor(y.shape(), 131, y.layout(), 1.0f, y.dtype());
    forward.push_back(memory_of(y));
    const Var part = project(tape, outputs.back(), r_, mode);
    // add() of the scalar losses: their gradient is one for each part.
    if (i == 0) {
      loss = part;
    } else {
      const Var sum(Tensor::from({0.0f}, {}), true);
      tape.record("sum", sum, {}, [loss, part](BackwardPass& pass) {
        const Tensor dy = std::move(pass.dy).sum();
        loss.add_grad(dy.clone());
        part.add_grad(dy.clone());
      });
      loss = sum;
    }
  }
  const std::vector<float> r = memory_of(r_);
  int finals = 0;
  for (const Var& leaf : leaves) {
    const size_t i = &leaf - leaves.data();
    leaf.add_grad(noise[i].clone());
  }
  tape.backward(loss, [&](Parameter&) { ++finals; });

  CHECK(finals == static_cast<int>(store_.parameters().size()));
  CHECK_MESSAGE(memory_of(r_) == r, "backward wrote into memory that was not its own");
  CHECK_MESSAGE(memory_of(store_.values()) == values, "backward changed a parameter");
  for (int i = 0; i < uses; ++i)
    CHECK_MESSAGE(memory_of(outputs[i].value()) == forward[i], "backward changed an output");
  Gradients out;
  for (size_t i = 0; i < leaves.size(); ++i) {
    CHECK_MESSAGE(memory_of(leaves[i].value()) == inputs[i], "backward changed an input");
    const Tensor g = leaves[i].grad();
    REQUIRE(g.shape() == inputs_[i].shape());
    CHECK(g.layout() == inputs_[i].layout());
    CHECK(g.dtype() == inputs_[i].dtype());
    std::vector<float> sum = memory_of(g), added = memory_of(noise[i]);
    for (size_t k = 0; k < sum.size(); ++k) sum[k] -= added[k];
    out.push_back(std::move(sum));
  }
  for (Parameter& p : store_.parameters()) out.push_back(memory_of(p.grad));
  return out;
}

void GradCheck::check_accumulation(const Gradients& expected) {
  // fp32 rounding of differently ordered sums; bf16 rounds each part to 2^-9.
  bool half = false;
  for (const Tensor& x : inputs_) half = half || x.dtype() == DType::bf16;
  const double bound = half ? 2e-2 : 1e-5;
  for (DyMode mode : {DyMode::unique, DyMode::two_shared, DyMode::two_unique,
                      DyMode::shared_and_unique, DyMode::unique_and_shared}) {
    const float factor = mode < DyMode::shared_and_unique ? 1.0f : 0.5f;
    const Gradients found = analytic(mode);
    for (size_t i = 0; i < expected.size(); ++i) {
      CAPTURE(i);
      CAPTURE(static_cast<int>(mode));
      CHECK(relative_distance(found[i], times(expected[i], factor)) <= bound);
    }
  }
  for (int uses : {2, 3}) {
    CAPTURE(uses);
    const Gradients found = analytic(DyMode::unique, uses);
    for (size_t i = 0; i < expected.size(); ++i) {
      CAPTURE(i);
      CHECK(relative_distance(found[i], times(expected[i], static_cast<float>(uses))) <= bound);
    }
  }
  // A second step into the same buffers without begin_step adds.
  std::vector<std::vector<float>> once;
  for (Parameter& p : store_.parameters()) once.push_back(memory_of(p.grad));
  std::vector<Var> leaves;
  for (const Tensor& x : inputs_) leaves.emplace_back(x, false);
  Tape tape(options_.tape);
  tape.backward(project(tape, network_(tape, leaves), r_));
  size_t i = 0;
  for (Parameter& p : store_.parameters()) {
    CAPTURE(p.name);
    CHECK(relative_distance(memory_of(p.grad), times(once[i++], 4.0f / 3.0f)) <= bound);
  }
  for (const Var& leaf : leaves) CHECK_FALSE(leaf.grad().defined());
}

Tensor forward_value(const GradCheck::Network& network, const std::vector<Tensor>& inputs,
                     const TapeOptions& options) {
  std::vector<Var> leaves;
  for (const Tensor& x : inputs) leaves.emplace_back(x, true);
  Tape tape(options);
  return network(tape, leaves).value();
}

std::vector<float> GradCheck::output() {
  return memory_of(forward_value(network_, inputs_, options_.tape));
}

// Halves the step until two neighbouring central differences agree and the one-sided ones do not
// show a kink: for a smooth function their gap halves with the step, across a kink it stays.
// With outputs of magnitude one, fp32 noise is about 1e-7 * sqrt(outputs touched) / step: the
// steps end before it matters.
bool GradCheck::differentiate(const Tensor& values, int64_t i, float centre,
                              const std::vector<float>& middle, double scale, double* derivative) {
  const std::vector<float> r = memory_of(r_);
  double last = 0, last_gap = 0;
  bool found = false;
  int k = 0;
  for (double h = options_.first_step; h > 4e-4 && !found; h /= 2, ++k) {
    const auto above = static_cast<float>(centre + h), below = static_cast<float>(centre - h);
    const double up = double{above} - centre, down = double{centre} - below;
    set_element(values, i, above);
    const std::vector<float> plus = output();
    set_element(values, i, below);
    const std::vector<float> minus = output();
    double right = 0, left = 0;
    for (size_t j = 0; j < r.size(); ++j) {
      right += r[j] * (double{plus[j]} - middle[j]);
      left += r[j] * (double{middle[j]} - minus[j]);
    }
    const double central = (right + left) / (up + down);
    const double gap = std::abs(right / up - left / down);
    const bool smooth = gap < 1e-3 * scale || gap < 0.7 * last_gap;
    if (k > 0 && smooth && std::abs(central - last) < 1e-3 * scale) {
      *derivative = central + (central - last) / 3;  // Richardson
      found = true;
    }
    last = central;
    last_gap = gap;
  }
  set_element(values, i, centre);
  return found;
}

void GradCheck::check_tensor(const std::string& name, const Tensor& values,
                             const std::vector<float>& gradient) {
  CAPTURE(name);
  const std::vector<float> centres = memory_of(values);
  const auto size = static_cast<int64_t>(gradient.size());
  const double scale = rms(gradient);
  REQUIRE(std::isfinite(scale));
  REQUIRE(scale > 0);
  const Philox rng(size, stream_id(Stream::sample, 7));
  const int64_t samples = std::min<int64_t>(size, samples_of(options_.samples));
  const std::vector<float> middle = output();
  double cross = 0, squares = 0, worst = 0;
  int64_t skipped = 0, wrong = 0;
  for (int64_t s = 0; s < samples; ++s) {
    int64_t i = samples == size ? s : rng.below(s, static_cast<uint32_t>(size));
    // Zeros (skipped by a stride, for example) must be right too, but other elements show more.
    while (samples < size && s % 2 == 1 && gradient[i] == 0) i = (i + 1) % size;
    const double expected = gradient[i], unit = std::max(std::abs(expected), scale);
    double found = 0;
    if (!differentiate(values, i, centres[i], middle, unit, &found)) {
      ++skipped;
      continue;
    }
    cross += found * expected;
    squares += expected * expected;
    worst = std::max(worst, std::abs(found - expected) / unit);
    wrong += std::abs(found - expected) > options_.tolerance * unit;
  }
  CAPTURE(worst);
  CHECK(wrong == 0);
  CAPTURE(samples);
  CHECK(static_cast<double>(skipped) <= options_.max_skipped * static_cast<double>(samples));
  // The bound of the slope is for as many elements as the test asks for.
  if (samples == std::min<int64_t>(size, options_.samples))
    CHECK(std::abs(cross / squares - 1.0) <= options_.slope_tolerance);
}

void GradCheck::run() {
  const Gradients expected = analytic(DyMode::shared);
  check_accumulation(expected);
  // Many small forward passes: on one thread, against which gradients of several are checked.
  std::optional<Context> alone;
  if (!Context::current().device().is_cuda()) alone.emplace(ContextOptions{.threads = 1});
  const Tensor& flat = store_.values();
  for (size_t i = 0; i < inputs_.size(); ++i)
    check_tensor(concat("input ", i), inputs_[i], expected[i]);
  size_t i = inputs_.size();
  std::vector<bool> used(flat.defined() ? flat.size() : 0, false);
  for (Parameter& p : store_.parameters()) {
    check_tensor(p.name, p.value, expected[i++]);
    for (int64_t k = 0; k < p.size(); ++k) used[p.offset + k] = true;
  }
  const std::vector<float> grads = memory_of(store_.grads());
  for (size_t k = 0; k < used.size(); ++k)
    if (!used[k]) REQUIRE(grads[k] == 0.0f);
}

}  // namespace heddle
