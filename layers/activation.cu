// Kernels of the elementwise layers, shared between CPU and CUDA.
#include "layers/activation.h"

#include "core/random.h"
#include "core/shared_kernel.h"

namespace heddle::HEDDLE_BACKEND {
namespace {

template <class T>
struct Relu {
  const T* x;
  T* y;
  HEDDLE_HD void operator()(int64_t i) const {
    const float v = static_cast<float>(x[i]);
    y[i] = T(v < 0.0f ? 0.0f : v);  // NaN stays NaN
  }
};

template <class T>
struct ReluBackward {
  const T *y, *dy;
  T* dx;
  HEDDLE_HD void operator()(int64_t i) const {
    dx[i] = T(static_cast<float>(y[i]) > 0.0f ? static_cast<float>(dy[i]) : 0.0f);
  }
};

template <class T>
struct Dropout {
  const T* x;
  T* y;
  float p, keep_scale;
  Philox rng;
  uint64_t first;
  HEDDLE_HD void operator()(int64_t i) const {
    const float v = static_cast<float>(x[i]);
    y[i] = T(rng.uniform(first + static_cast<uint64_t>(i)) < p ? 0.0f : v * keep_scale);
  }
};

template <class T>
void run_dropout(const Tensor& x, const Tensor& y, float p, const Philox& rng, int64_t first) {
  for_each(x.size(), Dropout<T>{x.data<T>(), y.data<T>(), p, 1.0f / (1.0f - p), rng,
                                static_cast<uint64_t>(first)});
}

}  // namespace

void relu_forward(const Tensor& x, const Tensor& y) {
  if (x.dtype() == DType::f32)
    for_each(x.size(), Relu<float>{x.data<float>(), y.data<float>()});
  else
    for_each(x.size(), Relu<bfloat16>{x.data<bfloat16>(), y.data<bfloat16>()});
}

void relu_backward(const Tensor& y, const Tensor& dy, const Tensor& dx) {
  if (y.dtype() == DType::f32)
    for_each(y.size(), ReluBackward<float>{y.data<float>(), dy.data<float>(), dx.data<float>()});
  else
    for_each(y.size(),
             ReluBackward<bfloat16>{y.data<bfloat16>(), dy.data<bfloat16>(), dx.data<bfloat16>()});
}

void dropout_apply(const Tensor& x, const Tensor& y, float p, uint64_t seed, uint64_t stream,
                   int64_t first) {
  const Philox rng(seed, stream);
  if (x.dtype() == DType::f32)
    run_dropout<float>(x, y, p, rng, first);
  else
    run_dropout<bfloat16>(x, y, p, rng, first);
}

}  // namespace heddle::HEDDLE_BACKEND
