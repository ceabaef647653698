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

  // With both parameters frozen it normalises by the running statistics while training, too, and
  // leaves them unchanged.
  bool fixed() const { return weight->frozen && bias->frozen; }

  Parameter *weight, *bias;
  Buffer *running_mean, *running_var, *batches;
  float momentum = 0.1f;  // the weight of the new value in the running statistics
  float eps = 1e-5f;
};

struct BatchNormFusion {
  bool relu = false;
  const Var* residual = nullptr;  // added before ReLU; shape, type and layout of x
};

// x (N, C, H, W), f32 or bf16 -> same. While training it normalises by the batch and updates the
// running statistics (unbiased variance; a non-finite batch leaves them unchanged); otherwise it
// normalises by them. Throws InputError for one value per channel in training.
Var batchnorm2d(Tape& tape, const Var& x, const BatchNorm2d& norm,
                const BatchNormFusion& fusion = {});

}  // namespace heddle
