// Losses that compare two tensors element by element, shared between CPU and CUDA.
#include <cmath>

#include "core/math.h"
#include "core/shared_kernel.h"
#include "layers/backend.h"

namespace heddle::HEDDLE_BACKEND {
namespace {

struct SquaredError {
  HEDDLE_HD float operator()(float a, float b) const { return (a - b) * (a - b); }
  HEDDLE_HD float slope(float a, float b) const { return 2.0f * (a - b); }
};

// -b log sigmoid(a) - (1 - b) log(1 - sigmoid(a)), without overflow.
struct BinaryCrossEntropy {
  HEDDLE_HD float operator()(float a, float b) const {
    return (a > 0.0f ? a : 0.0f) - a * b + log1pf(exp_of(a > 0.0f ? -a : a));
  }
  HEDDLE_HD float slope(float a, float b) const { return sigmoid_of(a) - b; }
};

template <class F>
struct Losses {
  const float *a, *b;
  float* losses;
  HEDDLE_HD void operator()(int64_t i) const { losses[i] = F()(a[i], b[i]); }
};

template <class F>
struct Slopes {
  const float *a, *b, *dmean;
  float count;
  float* da;
  HEDDLE_HD void operator()(int64_t i) const { da[i] = *dmean / count * F().slope(a[i], b[i]); }
};

template <class Call>
void with_loss(PairLoss loss, const Call& call) {
  loss == PairLoss::squared_error ? call(SquaredError()) : call(BinaryCrossEntropy());
}

}  // namespace

void pair_losses(PairLoss loss, const Tensor& a, const Tensor& b, const Tensor& losses) {
  with_loss(loss, [&]<class F>(F) {
    for_each(a.size(), Losses<F>{a.data<float>(), b.data<float>(), losses.data<float>()});
  });
}

void pair_loss_backward(PairLoss loss, const Tensor& a, const Tensor& b, const Tensor& dmean,
                        const Tensor& da) {
  with_loss(loss, [&]<class F>(F) {
    for_each(a.size(), Slopes<F>{a.data<float>(), b.data<float>(), dmean.data<float>(),
                                 to_float(a.size()), da.data<float>()});
  });
}

}  // namespace heddle::HEDDLE_BACKEND
