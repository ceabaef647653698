// Batch normalisation over (N, H, W) per channel (Ioffe and Szegedy, 2015), optionally fused with a
// residual addition and ReLU:   y = relu(weight * (x - mean) / sqrt(var + eps) + bias + residual)
// One pass gathers the statistics and one applies them; backward likewise.
#pragma once

#include <string>

#include "core/tape.h"

namespace heddle {

class BatchNorm2d {
 public:
  // Parameters name.weight (1) and name.bias (0), buffers name.running_mean, .running_var and
  // .num_batches_tracked (i64), all (C) but the counter.
  BatchNorm2d(ParameterStore& store, const std::string& name, int64_t channels);

  Parameter *weight, *bias;
  Buffer *running_mean, *running_var, *batches;
  float momentum = 0.1f;  // the weight of the new value in the running statistics
  float eps = 1e-5f;
};

struct BatchNormFusion {
  bool relu = false;
  const Var* residual = nullptr;  // added before ReLU; shape, type and layout of x
};

// x (N, C, H, W) -> same. While training it normalises by the batch and updates the running
// statistics (unbiased variance; a batch that is not finite leaves them alone); otherwise it
// normalises by them. Throws InputError for one value per channel in training.
Var batchnorm2d(Tape& tape, const Var& x, const BatchNorm2d& norm,
                const BatchNormFusion& fusion = {});

// The backends. All of them (C), f32 but the counter.
struct BatchNormAffine {
  const Tensor &mean, &variance, &weight, &bias;
  float eps;
  // out: 1 / sqrt(variance + eps), weight * invstd, bias - mean * scale
  const Tensor &invstd, &scale, &shift;
};
// running = (1 - momentum) * running + momentum * new, unless a new value is not finite.
struct BatchNormRunning {
  const Tensor &mean, &variance;
  float momentum, unbiased;  // unbiased: factor of the variance
  const Tensor &running_mean, &running_var, &batches;
};
struct BatchNormBackward {
  const Tensor &x, &y;  // input and output of forward
  const Tensor &mean, &invstd, &scale, &shift;
  const Tensor &dy, &dy2;         // to be added; dy2 may be undefined
  const Tensor& dz;               // out: gradient before ReLU; may be dy; undefined: not wanted
  const Tensor& dx;               // out: may be dy when dz is undefined or dy2 is
  const Tensor &dweight, &dbias;  // out, f32
  float beta_weight, beta_bias;   // how much of dweight and dbias is kept
  bool relu, residual;
};
#define HEDDLE_BATCHNORM                                                                  \
  void batchnorm_statistics(const Tensor& x, const Tensor& mean, const Tensor& variance); \
  void batchnorm_update_running(const BatchNormRunning& a);                               \
  void batchnorm_affine(const BatchNormAffine& a);                                        \
  void batchnorm_apply(const Tensor& x, const Tensor& scale, const Tensor& shift,         \
                       const Tensor& residual, bool relu, const Tensor& y);               \
  void batchnorm_backward(const BatchNormBackward& a);
HEDDLE_BACKENDS(HEDDLE_BATCHNORM)
#undef HEDDLE_BATCHNORM

}  // namespace heddle
