// Batch norm as y = scale * x + shift per channel, shared between CPU and CUDA. Internal.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/bfloat16.h"

namespace heddle {

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

}  // namespace heddle
