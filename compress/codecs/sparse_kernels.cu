// The kernels of sparse codecs that are one loop over elements, shared between CPU and CUDA.
#include "compress/codecs/sparse_kernels.h"

#include "core/shared_kernel.h"

namespace heddle::HEDDLE_BACKEND {
namespace {

const uint32_t* words(const Tensor& x) {
  return reinterpret_cast<const uint32_t*>(x.data<int32_t>());
}

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

struct CopyByte {
  const uint8_t* from;
  uint8_t* to;
  HEDDLE_HD void operator()(int64_t i) const { to[i] = from[i]; }
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

void copy_bytes(const Tensor& from, const Tensor& to) {
  for_each(to.bytes(),
           CopyByte{static_cast<const uint8_t*>(from.raw()), static_cast<uint8_t*>(to.raw())});
}

}  // namespace heddle::HEDDLE_BACKEND
