// Golden values from PyTorch, stored by tests/golden/make_golden.py, and the formula by which both
// sides compute weights, inputs and labels from their names; formula.py states it.
//
//   Golden golden("conv2d_3x3_s1");
//   Var x(golden.value("x", {2, 8, 9, 7}), true);
//   golden.expect("y", y.value());   // CHECKs the relative error; -s prints it
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "core/kernels.h"
#include "core/parameters.h"
#include "core/safetensors.h"
#include "core/tape.h"
#include "core/tensor.h"
#include "tests/device.h"

namespace heddle {

constexpr double kGoldenBound = 1e-4;

// Twenty-four random bits of element i under a name whose hash is given.
inline uint64_t formula_bits(uint64_t hash, uint64_t i) {
  uint64_t z = hash + (i + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return (z ^ (z >> 31)) >> 40;
}

inline uint64_t formula_hash(std::string_view name) {
  uint64_t hash = 14695981039346656037u;
  for (unsigned char byte : name) hash = (hash ^ byte) * 1099511628211u;
  return hash;
}

// In [-1, 1), exact in float.
inline double formula_uniform(uint64_t hash, uint64_t i) {
  return (static_cast<double>(formula_bits(hash, i)) - 8388608.0) / 8388608.0;
}

// offset + scale * u. Exact in double, so that there is one rounding on both sides.
inline std::vector<float> formula_values(std::string_view name, int64_t size, float scale = 1.0f,
                                         double offset = 0.0) {
  const uint64_t hash = formula_hash(name);
  std::vector<float> values(size);
  for (int64_t i = 0; i < size; ++i)
    values[i] = static_cast<float>(offset + double{scale} * formula_uniform(hash, i));
  return values;
}

inline Tensor formula(std::string_view name, const Shape& shape, float scale = 1.0f,
                      double offset = 0.0) {
  return here(Tensor::from(formula_values(name, shape.elements(), scale, offset), shape));
}

inline Tensor formula_labels(std::string_view name, int64_t count, int classes) {
  const uint64_t hash = formula_hash(name);
  Tensor labels = Tensor::empty_on(Device{}, {count}, DType::i32);
  for (int64_t i = 0; i < count; ++i)
    labels.data<int32_t>()[i] = static_cast<int32_t>(formula_bits(hash, i) % classes);
  return labels;
}

// Returns the bound of the uniform distribution with variance 2 / fan_in (He et al.).
inline float he_scale(const Shape& weight) {
  return static_cast<float>(std::sqrt(6.0 / static_cast<double>(weight.elements() / weight[0])));
}

// Sets every parameter of a model by its name, as formula.py's set_parameters does.
inline void set_formula_parameters(ParameterStore& store) {
  for (Parameter& p : store.parameters()) {
    if (p.shape().rank() > 1)
      p.value.copy_from(formula(p.name, p.shape(), he_scale(p.shape())));
    else if (p.name.find(".bias") != std::string::npos)
      p.value.copy_from(formula(p.name, p.shape(), 0.1f));
    else
      p.value.copy_from(formula(p.name, p.shape(), 0.1f, 1.0));
  }
}

// Propagates dy from y, whatever y's layout.
inline void backward(Tape& tape, const Var& y, const Tensor& dy) {
  Var scalar(Tensor::zeros({1}), true);
  tape.record("dy", scalar, {}, [&](BackwardPass&) {
    y.add_grad(converted(dy, DType::f32, y.value().layout()).clone());
  });
  tape.backward(scalar);
}

// Fills gradients with NaN, which backward must overwrite.
inline void spoil_gradients(ParameterStore& store) {
  for (Parameter& p : store.parameters()) fill(p.grad, std::numeric_limits<float>::quiet_NaN());
}

inline double norm(const std::vector<float>& values) {
  double sum = 0;
  for (float v : values) sum += double{v} * v;
  return std::sqrt(sum);
}

// ||a - b|| / ||b||, both in logical order. NaN in either gives NaN, which no bound admits.
inline double relative_error(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  std::vector<float> difference(a.size());
  for (size_t i = 0; i < a.size(); ++i) difference[i] = a[i] - b[i];
  return norm(difference) / norm(b);
}

// The expected values of one case.
class Golden {
 public:
  explicit Golden(const std::string& name)
      : case_(name),
        file_(SafetensorsFile::open(
            concat(HEDDLE_SOURCE_DIR "/tests/golden/", name, ".safetensors"))) {}

  // An input of this case by the formula.
  Tensor value(const std::string& name, const Shape& shape, float scale = 1.0f,
               double offset = 0.0) const {
    return formula(case_ + "." + name, shape, scale, offset);
  }
  Tensor labels(int64_t count, int classes) const {
    return formula_labels(case_ + ".labels", count, classes);
  }
  Tensor load(const std::string& name) const { return file_.load(name); }
  bool has(const std::string& name) const { return file_.has(name); }
  std::vector<std::string> names() const { return file_.names(); }

  // Checks whole tensors by the norm of the difference; sampled ones by their norm, projection, and
  // their entries' root mean square error relative to the root mean square of all entries.
  void expect(const std::string& name, const Tensor& found, double bound = kGoldenBound) const {
    expect(name, found.to_vector(), bound);
  }
  void expect(const std::string& name, const std::vector<float>& found,
              double bound = kGoldenBound) const {
    CAPTURE(case_);
    CAPTURE(name);
    if (file_.has(name)) {
      const double error = relative_error(found, load(name).to_vector());
      CHECK(error <= bound);
      return;
    }
    const std::vector<float> expected = load(name + ".sampled").to_vector();
    const auto size = static_cast<int64_t>(found.size()),
               entries = static_cast<int64_t>(expected.size()) - 2;
    const double length = expected[0];
    const uint64_t hash = formula_hash("proj:" + name);
    double projection = 0, squares = 0;
    for (int64_t i = 0; i < size; ++i) projection += double{found[i]} * formula_uniform(hash, i);
    for (int64_t k = 0; k < entries; ++k)
      squares += std::pow(double{found[k * size / entries]} - expected[k + 2], 2);
    const double norm_error = std::abs(norm(found) - length) / length;
    const double projection_error = std::abs(projection - expected[1]) / length;
    const double entry_error = std::sqrt(squares / entries) / (length / std::sqrt(double(size)));
    CHECK(norm_error <= bound);
    CHECK(projection_error <= bound);
    CHECK(entry_error <= bound);
  }

 private:
  std::string case_;
  SafetensorsFile file_;
};

}  // namespace heddle
