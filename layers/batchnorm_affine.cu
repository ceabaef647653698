// Batch norm as y = scale * x + shift per channel, shared between CPU and CUDA.
#include <cmath>

#include "core/shared_kernel.h"
#include "layers/backend.h"

namespace heddle::HEDDLE_BACKEND {
namespace {

struct MakeAffine {
  const float *mean, *variance, *weight, *bias;
  float eps;
  float *invstd, *scale, *shift;
  HEDDLE_HD void operator()(int64_t c) const {
    const float inv = 1.0f / sqrtf(variance[c] + eps), factor = weight[c] * inv;
    invstd[c] = inv;
    scale[c] = factor;
    shift[c] = bias[c] - mean[c] * factor;
  }
};

}  // namespace

void batchnorm_affine(const BatchNormAffine& a) {
  for_each(a.mean.size(),
           MakeAffine{a.mean.data<float>(), a.variance.data<float>(), a.weight.data<float>(),
                      a.bias.data<float>(), a.eps, a.invstd.data<float>(), a.scale.data<float>(),
                      a.shift.data<float>()});
}

}  // namespace heddle::HEDDLE_BACKEND
