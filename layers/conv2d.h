// 2-d convolution (cross-correlation, as everywhere in the field).
//   y[n, o, p, q] = bias[o] + sum over c, i, j of
//                   w[o, c, i, j] * x[n, c, p*stride + i - padding, q*stride + j - padding]
// Weights stay OIHW f32; activations keep the layout in which the network runs.
#pragma once

#include <string>

#include "core/tape.h"

namespace heddle {

struct Conv2dOptions {
  int64_t stride = 1, padding = 0, groups = 1;
};

// x (N, C, H, W), weight (O, C/groups, K, L), bias (O) or null -> (N, O, P, Q), in the type of x,
// with P = (H + 2*padding - K)/stride + 1, rounded down, and Q likewise. Throws InputError when
// shapes do not fit or the output would be empty.
Var conv2d(Tape& tape, const Var& x, Parameter& weight, Parameter* bias,
           const Conv2dOptions& options);

// Returns the transposed convolution, the adjoint of conv2d: x (N, I, H, W), weight (I, O/groups,
// K, L), bias (O) or null -> (N, O, P, Q), in the type of x, with P = (H - 1)*stride - 2*padding +
// K and Q likewise. For a sequence, give x and the weight a height of 1 and use no padding. Throws
// InputError as conv2d does.
//   y starts out as the bias or 0; then, for all n, o, h, v, i, j and all c of the group of o,
//   y[n, o, h*stride + i - padding, v*stride + j - padding] += w[c, o, i, j] * x[n, c, h, v]
Var conv_transpose2d(Tape& tape, const Var& x, Parameter& weight, Parameter* bias,
                     const Conv2dOptions& options);

// Returns the shape of conv2d's output. `name` names the layer in errors: InputError as conv2d.
Shape conv2d_shape(const Shape& x, const Shape& weight, const Conv2dOptions& options,
                   const std::string& name);

// A convolution with parameters `name.weight` and, if requested, `name.bias`, in the store, which
// owns them and must outlive it. Throws InputError for channels that are not positive or do not
// divide into the groups.
class Conv2d {
 public:
  struct Options {
    int64_t in = 0, out = 0, kernel = 1;
    int64_t stride = 1, padding = 0, groups = 1;
    bool bias = false;
    bool fan_out = false;  // He initialisation by fan-out (torchvision); else fan-in (He et al.)
  };
  Conv2d(ParameterStore& store, const std::string& name, const Options& options);
  Var forward(Tape& tape, const Var& x) const { return conv2d(tape, x, *weight, bias, options); }

  Parameter* weight;
  Parameter* bias = nullptr;
  Conv2dOptions options;
};

}  // namespace heddle
