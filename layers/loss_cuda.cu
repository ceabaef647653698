// Softmax cross-entropy on CUDA: one block per sample, whose threads join as trees, and one block
// for the mean. The host takes no part, so that a step can be recorded.
#include <algorithm>
#include <cmath>

#include "core/math.h"
#include "core/shared_kernel.h"
#include "layers/loss.h"

namespace heddle::HEDDLE_BACKEND {
namespace {

constexpr int kLossThreads = 256;

struct Larger {
  __device__ float operator()(float a, float b) const { return b > a ? b : a; }
};
struct Sum {
  template <class V>
  __device__ V operator()(V a, V b) const {
    return a + b;
  }
};

// All threads get the result.
template <class V, class Join>
__device__ V join_block(V mine, Join join, V (&shared)[kLossThreads]) {
  __syncthreads();
  shared[threadIdx.x] = mine;
  for (unsigned half = kLossThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half)
      shared[threadIdx.x] = join(shared[threadIdx.x], shared[threadIdx.x + half]);
  }
  __syncthreads();
  return shared[0];
}

__global__ void loss_forward(const float* logits, const int32_t* labels, int64_t classes,
                             float smoothing, float* log_sums, double* losses) {
  __shared__ float floats[kLossThreads];
  __shared__ double doubles[kLossThreads];
  const int64_t i = blockIdx.x;
  const float* z = logits + i * classes;
  float top = -__builtin_huge_valf();
  for (int64_t c = threadIdx.x; c < classes; c += kLossThreads) top = Larger()(top, z[c]);
  top = join_block(top, Larger(), floats);
  float total = 0;
  double mean = 0;
  for (int64_t c = threadIdx.x; c < classes; c += kLossThreads) {
    total += exp_of(z[c] - top);
    mean += z[c];
  }
  total = join_block(total, Sum(), floats);
  // A class masked by -inf costs nothing unless smoothing gives it a share.
  if (smoothing != 0.0f) mean = join_block(mean, Sum(), doubles) / static_cast<double>(classes);
  if (threadIdx.x > 0) return;
  const double log_total = log(static_cast<double>(total)), log_sum = top + log_total;
  log_sums[2 * i] = top;
  log_sums[2 * i + 1] = static_cast<float>(log_total);
  const double loss = log_sum - static_cast<double>(z[labels[i]]);
  losses[i] = smoothing == 0.0f ? loss : (1.0 - smoothing) * loss + smoothing * (log_sum - mean);
}

// In order within a thread, then as a tree over threads.
__global__ void mean_loss(const double* losses, int64_t n, float* mean) {
  __shared__ double doubles[kLossThreads];
  double sum = 0;
  for (int64_t i = threadIdx.x; i < n; i += kLossThreads) sum += losses[i];
  sum = join_block(sum, Sum(), doubles);
  if (threadIdx.x == 0) *mean = static_cast<float>(sum / static_cast<double>(n));
}

// dlogits may be the logits' memory.
__global__ void loss_backward(const float* logits, const int32_t* labels, const float* log_sums,
                              int64_t classes, float smoothing, const float* dmean,
                              float* dlogits) {
  const float factor = *dmean / static_cast<float>(gridDim.x);
  const int64_t i = blockIdx.x;
  const float* z = logits + i * classes;
  float* d = dlogits + i * classes;
  const float rest = smoothing / static_cast<float>(classes);
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
  launch("cross-entropy: mean", mean_loss, 1, kLossThreads, losses, n, mean.data<float>());
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
