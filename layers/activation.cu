// Kernels of the elementwise layers, shared between CPU and CUDA.
#include <cmath>

#include "core/math.h"
#include "core/random.h"
#include "core/shared_kernel.h"
#include "layers/backend.h"

namespace heddle::HEDDLE_BACKEND {
namespace {

// Each activation has a gradient that follows from what is kept, its output unless noted:
// dx = back(kept, dy).
struct Relu {
  HEDDLE_HD float operator()(float v) const { return v < 0.0f ? 0.0f : v; }  // NaN stays NaN
  HEDDLE_HD float back(float y, float dy) const { return y > 0.0f ? dy : 0.0f; }
};

struct LeakyRelu {
  float slope;
  HEDDLE_HD float operator()(float v) const { return v < 0.0f ? slope * v : v; }
  HEDDLE_HD float back(float y, float dy) const { return y > 0.0f ? dy : slope * dy; }
};

struct Sigmoid {
  HEDDLE_HD float operator()(float v) const { return sigmoid_of(v); }
  HEDDLE_HD float back(float y, float dy) const { return dy * y * (1.0f - y); }
};

struct Tanh {
  HEDDLE_HD float operator()(float v) const { return tanh_of(v); }
  HEDDLE_HD float back(float y, float dy) const { return dy * (1.0f - y * y); }
};

struct Gelu {  // its input is kept
  HEDDLE_HD float operator()(float v) const { return v * below(v); }
  HEDDLE_HD float back(float x, float dy) const {
    return dy * (below(x) + x * 0.3989422804f * exp_of(-0.5f * x * x));
  }
  // The normal distribution's share below v.
  HEDDLE_HD static float below(float v) { return 0.5f * (1.0f + erff(0.7071067812f * v)); }
};

template <class T, class F>
struct Activate {
  const T* x;
  T* y;
  F f;
  HEDDLE_HD void operator()(int64_t i) const { y[i] = T(f(to_float(x[i]))); }
};

template <class T, class F>
struct ActivateBackward {
  const T *kept, *dy;
  T* dx;
  F f;
  HEDDLE_HD void operator()(int64_t i) const {
    dx[i] = T(f.back(to_float(kept[i]), to_float(dy[i])));
  }
};

// Calls call(f) with the function object of an activation.
template <class Call>
void with_activation(const Activation& a, const Call& call) {
  if (a.kind == Activation::relu) call(Relu{});
  if (a.kind == Activation::leaky_relu) call(LeakyRelu{a.slope});
  if (a.kind == Activation::sigmoid) call(Sigmoid{});
  if (a.kind == Activation::tanh) call(Tanh{});
  if (a.kind == Activation::gelu) call(Gelu{});
}

HEDDLE_HD inline uint64_t dropout_stream(uint64_t step, int operation) {
  return stream_id(Stream::dropout, step << 8 | static_cast<uint64_t>(operation));
}

// The mask of a batch: rows are (o, b), with o before and b along the batch axis; the key is the
// sample's index in the global batch, and one block of random numbers serves four consecutive
// elements of a row.
struct DropoutMask {
  float p, keep_scale;
  Philox rng;
  int64_t outer, batch, inner, first;
  int operation;
  const int64_t* counters;  // on a GPU: null, or step and first of the step that runs
  HEDDLE_HD Philox::Block draw(int64_t row, int64_t block) const {
#ifdef HEDDLE_GPU
    if (counters != nullptr) {
      Philox now = rng;
      now.stream = dropout_stream(static_cast<uint64_t>(counters[0]), operation);
      return now.block(index(row, block, counters[1]));
    }
#endif
    return rng.block(index(row, block, first));
  }
  HEDDLE_HD uint64_t index(int64_t row, int64_t block, int64_t first_sample) const {
    const int64_t sample = first_sample + row % batch, place = sample * outer + row / batch;
    return static_cast<uint64_t>(place * ((inner + 3) / 4) + block);
  }
  HEDDLE_HD float apply(uint32_t bits, float value) const {
    return Philox::unit(bits) < p ? 0.0f : value * keep_scale;
  }
};

template <class T>
struct DropoutBlock {
  const T* x;
  T* y;
  DropoutMask mask;
  HEDDLE_HD void operator()(int64_t row, int64_t block) const {
    const Philox::Block random = mask.draw(row, block);
    const int64_t i = row * mask.inner + 4 * block;
    y[i] = T(mask.apply(random.word[0], to_float(x[i])));
    y[i + 1] = T(mask.apply(random.word[1], to_float(x[i + 1])));
    y[i + 2] = T(mask.apply(random.word[2], to_float(x[i + 2])));
    y[i + 3] = T(mask.apply(random.word[3], to_float(x[i + 3])));
  }
};

// The last elements of rows whose length is not a multiple of four.
template <class T>
struct DropoutRest {
  const T* x;
  T* y;
  DropoutMask mask;
  HEDDLE_HD void operator()(int64_t row, int64_t word) const {
    const int64_t block = mask.inner / 4, i = row * mask.inner + 4 * block + word;
    const Philox::Block random = mask.draw(row, block);
    y[i] = T(mask.apply(random.word[word], to_float(x[i])));
  }
};

}  // namespace

void activation_forward(const Activation& a, const Tensor& x, const Tensor& y) {
  with_type(x, [&]<class T>() {
    with_activation(a, [&]<class F>(F f) {
      for_each(x.size(), Activate<T, F>{x.data<T>(), y.data<T>(), f});
    });
  });
}

void activation_backward(const Activation& a, const Tensor& kept, const Tensor& dy,
                         const Tensor& dx) {
  with_type(kept, [&]<class T>() {
    with_activation(a, [&]<class F>(F f) {
      for_each(kept.size(), ActivateBackward<T, F>{kept.data<T>(), dy.data<T>(), dx.data<T>(), f});
    });
  });
}

void dropout_apply(const Tensor& x, const Tensor& y, const DropoutKey& key) {
  const Shape& s = x.shape();
  int64_t outer = 1;
  for (int axis = 0; axis < key.batch_axis; ++axis) outer *= s[axis];
  const int64_t batch = s.rank() > 0 ? s[key.batch_axis] : 1;
  if (x.size() == 0) return;
  const int64_t* counters = key.counters.defined() ? key.counters.data<int64_t>() : nullptr;
  uint64_t step = key.step;
  int64_t first = key.first;
#ifndef HEDDLE_GPU
  if (counters != nullptr) step = static_cast<uint64_t>(counters[0]), first = counters[1];
#endif
  const DropoutMask mask{.p = key.p,
                         .keep_scale = 1.0f / (1.0f - key.p),
                         .rng = Philox(key.seed, dropout_stream(step, key.operation)),
                         .outer = outer,
                         .batch = batch,
                         .inner = x.size() / (outer * batch),
                         .first = first,
                         .operation = key.operation,
                         .counters = counters};
  const int64_t rows = outer * batch;
  with_type(x, [&]<class T>() {
    for_each_in_grid(rows, mask.inner / 4, DropoutBlock<T>{x.data<T>(), y.data<T>(), mask});
    for_each_in_grid(rows, mask.inner % 4, DropoutRest<T>{x.data<T>(), y.data<T>(), mask});
  });
}

}  // namespace heddle::HEDDLE_BACKEND
