// The kernels of sparse codecs that are one loop over elements, shared between CPU and CUDA.
#include "compress/codecs/sparse_kernels.h"

#include "compress/codecs/magnitude.h"
#include "core/shared_kernel.h"

namespace heddle::HEDDLE_BACKEND {
namespace {

struct Gather {
  const float* x;
  const uint32_t* indices;
  float* values;
  int64_t n;
  HEDDLE_HD void operator()(int64_t j) const {
    const uint32_t i = indices[j];
    values[j] = i < n ? x[i] : __builtin_bit_cast(float, 0x7fc00000u);
  }
};

template <bool kAdd>
struct Scatter {
  const float* values;  // null: value for all
  float value;
  const uint32_t* indices;
  float* x;
  int64_t n;
  HEDDLE_HD void operator()(int64_t j) const {
    const uint32_t i = indices[j];
    if (i >= n) return;
    const float v = values == nullptr ? value : values[j];
    x[i] = kAdd ? x[i] + v : v;
  }
};

struct LowPass {
  float *m, *x;
  float rest, beta;
  HEDDLE_HD void operator()(int64_t i) const {
    x[i] = rest * m[i] + beta * x[i];
    m[i] = 0;
  }
};

struct FlagAbove {
  const uint32_t* magnitudes;
  int64_t n;
  uint32_t most;
  float* flag;
  HEDDLE_HD void operator()(int64_t) const {
    uint32_t largest = 0;
    for (int64_t i = 0; i < n; ++i) largest = magnitudes[i] > largest ? magnitudes[i] : largest;
    *flag = largest > most ? __builtin_bit_cast(float, kInfinite) : 0;
  }
};

template <bool kAdd>
void scatter_all(const float* values, float value, const Tensor& indices, const Tensor& x) {
  for_each_joined(indices.size(),
                  Scatter<kAdd>{values, value, words(indices), x.data<float>(), x.size()});
}

}  // namespace

void gather(const Tensor& x, const Tensor& indices, const Tensor& values) {
  for_each_joined(indices.size(),
                  Gather{x.data<float>(), words(indices), values.data<float>(), x.size()});
}

void scatter(const Tensor& values, const Tensor& indices, const Tensor& x) {
  scatter_all<false>(values.data<float>(), 0, indices, x);
}

void scatter_add(const Tensor& values, const Tensor& indices, const Tensor& x) {
  scatter_all<true>(values.data<float>(), 0, indices, x);
}

void scatter_value(float value, const Tensor& indices, const Tensor& x) {
  scatter_all<false>(nullptr, value, indices, x);
}

void low_pass(const Tensor& m, const Tensor& x, double beta) {
  for_each_joined(x.size(), LowPass{m.data<float>(), x.data<float>(), static_cast<float>(1 - beta),
                                    static_cast<float>(beta)});
}

void flag_above(const Tensor& magnitudes, uint32_t most, const Tensor& flag) {
  for_each(1, FlagAbove{words(magnitudes), magnitudes.size(), most, flag.data<float>()});
}

}  // namespace heddle::HEDDLE_BACKEND
