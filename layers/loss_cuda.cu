// Softmax cross-entropy on CUDA: one block per sample, which reduces as a tree, and one block for
// the mean. All on the GPU, so that a step can be recorded.
#include <algorithm>
#include <cmath>

#include "core/block_reduce.cuh"
#include "core/math.h"
#include "core/shared_kernel.h"
#include "layers/backend.h"

namespace heddle::HEDDLE_BACKEND {
namespace {

constexpr int kLossThreads = 256;

__global__ void loss_forward(const float* logits, const int32_t* labels, int64_t classes,
                             float smoothing, float* log_sums, double* losses) {
  __shared__ float floats[kLossThreads];
  __shared__ double doubles[kLossThreads];
  const int64_t i = blockIdx.x;
  const float* z = logits + i * classes;
  float top = -__builtin_huge_valf();
  for (int64_t c = threadIdx.x; c < classes; c += kLossThreads) top = Larger()(top, z[c]);
  top = block_reduce(top, Larger(), floats);
  float total = 0;
  double mean = 0;
  for (int64_t c = threadIdx.x; c < classes; c += kLossThreads) {
    total += exp_of(z[c] - top);
    mean += z[c];
  }
  total = block_reduce(total, Plus(), floats);
  // A class masked by -inf costs nothing unless smoothing gives it a share.
  if (smoothing != 0.0f) mean = block_reduce(mean, Plus(), doubles) / to_double(classes);
  if (threadIdx.x > 0) return;
  const double log_total = log(to_double(total)), log_sum = top + log_total;
  log_sums[2 * i] = top;
  log_sums[2 * i + 1] = to_float(log_total);
  const double loss = log_sum - to_double(z[labels[i]]);
  losses[i] = smoothing == 0.0f ? loss : (1.0 - smoothing) * loss + smoothing * (log_sum - mean);
}

// Averages the losses: in order within a thread, then as a tree over threads.
template <class T>
__global__ void mean_loss(const T* losses, int64_t n, float* mean) {
  __shared__ double doubles[kLossThreads];
  double sum = 0;
  for (int64_t i = threadIdx.x; i < n; i += kLossThreads) sum += losses[i];
  sum = block_reduce(sum, Plus(), doubles);
  if (threadIdx.x == 0) *mean = to_float(sum / to_double(n));
}

// dlogits may be the logits' memory.
__global__ void loss_backward(const float* logits, const int32_t* labels, const float* log_sums,
                              int64_t classes, float smoothing, const float* dmean,
                              float* dlogits) {
  const float factor = *dmean / to_float(gridDim.x);
  const int64_t i = blockIdx.x;
  const float* z = logits + i * classes;
  float* d = dlogits + i * classes;
  const float rest = smoothing / to_float(classes);
  const float top = log_sums[2 * i], log_total = log_sums[2 * i + 1];
  for (int64_t c = threadIdx.x; c < classes; c += kLossThreads) {
    const float g = factor * (exp_of(z[c] - top - log_total) - rest);
    d[c] = c == labels[i] ? g - factor * (1.0f - smoothing) : g;
  }
}

}  // namespace

void softmax_cross_entropy_forward(const Tensor& logits, const Tensor& labels, float smoothing,
                                   const Tensor& log_sums, const Tensor& mean) {
  const int64_t n = logits.shape()[0], classes = logits.shape()[1];
  const Tensor space = Tensor::empty_on(logits.device(), {n}, DType::i64);  // used as doubles
  auto* losses = static_cast<double*>(space.raw());
  launch("cross-entropy", loss_forward, static_cast<unsigned>(n), kLossThreads,
         logits.data<float>(), labels.data<int32_t>(), classes, smoothing, log_sums.data<float>(),
         losses);
  launch("cross-entropy: mean", mean_loss<double>, 1, kLossThreads, losses, n, mean.data<float>());
}

void mean_of(const Tensor& losses, const Tensor& mean) {
  launch("mean", mean_loss<float>, 1, kLossThreads, losses.data<float>(), losses.size(),
         mean.data<float>());
}

void softmax_cross_entropy_backward(const Tensor& logits, const Tensor& labels,
                                    const Tensor& log_sums, float smoothing, const Tensor& dmean,
                                    const Tensor& dlogits) {
  const int64_t n = dlogits.shape()[0], classes = dlogits.shape()[1];
  launch("cross-entropy: gradient", loss_backward, static_cast<unsigned>(n), kLossThreads,
         logits.data<float>(), labels.data<int32_t>(), log_sums.data<float>(), classes, smoothing,
         dmean.data<float>(), dlogits.data<float>());
}

}  // namespace heddle::HEDDLE_BACKEND
