// Kernels of the elementwise layers, shared between CPU and CUDA.
#include "core/random.h"
#include "core/shared_kernel.h"
#include "layers/backend.h"

namespace heddle::HEDDLE_BACKEND {
namespace {

template <class T>
struct Relu {
  const T* x;
  T* y;
  HEDDLE_HD void operator()(int64_t i) const {
    const float v = to_float(x[i]);
    y[i] = T(v < 0.0f ? 0.0f : v);  // NaN stays NaN
  }
};

template <class T>
struct ReluBackward {
  const T *y, *dy;
  T* dx;
  HEDDLE_HD void operator()(int64_t i) const {
    dx[i] = T(to_float(y[i]) > 0.0f ? to_float(dy[i]) : 0.0f);
  }
};

HEDDLE_HD inline uint64_t dropout_stream(uint64_t step, int operation) {
  return stream_id(Stream::dropout, step << 8 | static_cast<uint64_t>(operation));
}

// The mask of a batch: rows are (o, b), with o before and b along the batch axis; the key is the
// sample's number in the global batch, and one block of random numbers serves four neighbours of a
// row.
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

void relu_forward(const Tensor& x, const Tensor& y) {
  with_type(x, [&]<class T>() { for_each(x.size(), Relu<T>{x.data<T>(), y.data<T>()}); });
}

void relu_backward(const Tensor& y, const Tensor& dy, const Tensor& dx) {
  with_type(y, [&]<class T>() {
    for_each(y.size(), ReluBackward<T>{y.data<T>(), dy.data<T>(), dx.data<T>()});
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
