// Steps of codecs that are one loop over elements, shared between CPU and CUDA.
#include "compress/codecs/sparse_kernels.h"

#include "core/shared_kernel.h"

namespace heddle::HEDDLE_BACKEND {
namespace {

const uint32_t* words(const Tensor& x) {
  return reinterpret_cast<const uint32_t*>(x.data<int32_t>());
}

struct Take {
  const float* x;
  const uint32_t* places;
  float* values;
  int64_t n;
  HEDDLE_HD void operator()(int64_t j) const {
    const uint32_t i = places[j];
    values[j] = i < n ? x[i] : __builtin_bit_cast(float, 0x7fc00000u);
  }
};

template <bool kAdd>
struct Put {
  const float* values;  // null: value for all
  float value;
  const uint32_t* places;
  float* x;
  int64_t n;
  HEDDLE_HD void operator()(int64_t j) const {
    const uint32_t i = places[j];
    if (i >= n) return;
    const float v = values == nullptr ? value : values[j];
    x[i] = kAdd ? x[i] + v : v;
  }
};

struct Filter {
  const float* m;
  float* x;
  float rest, beta;
  HEDDLE_HD void operator()(int64_t i) const { x[i] = rest * m[i] + beta * x[i]; }
};

struct CopyByte {
  const uint8_t* from;
  uint8_t* to;
  HEDDLE_HD void operator()(int64_t i) const { to[i] = from[i]; }
};

template <bool kAdd>
void put_all(const float* values, float value, const Tensor& places, const Tensor& x) {
  for_each(places.size(), Put<kAdd>{values, value, words(places), x.data<float>(), x.size()});
}

}  // namespace

void take(const Tensor& x, const Tensor& places, const Tensor& values) {
  for_each(places.size(), Take{x.data<float>(), words(places), values.data<float>(), x.size()});
}

void put(const Tensor& values, const Tensor& places, const Tensor& x) {
  put_all<false>(values.data<float>(), 0, places, x);
}

void add_at(const Tensor& values, const Tensor& places, const Tensor& x) {
  put_all<true>(values.data<float>(), 0, places, x);
}

void put_value(float value, const Tensor& places, const Tensor& x) {
  put_all<false>(nullptr, value, places, x);
}

void filter(const Tensor& m, const Tensor& x, double beta) {
  for_each(x.size(), Filter{m.data<float>(), x.data<float>(), static_cast<float>(1 - beta),
                            static_cast<float>(beta)});
}

void copy_bytes(const Tensor& from, const Tensor& to) {
  for_each(to.bytes(),
           CopyByte{static_cast<const uint8_t*>(from.raw()), static_cast<uint8_t*>(to.raw())});
}

}  // namespace heddle::HEDDLE_BACKEND
