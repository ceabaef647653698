// The parameter-free shortcut of CIFAR ResNets, option A (He et al., 2016, section 4.2): where a
// stage halves the map and doubles the channels, the identity is subsampled and padded with zeros.
//
//   x (N, 16, 32, 32)   every second pixel of every second row, and channels
//   y (N, 32, 16, 16)   [ 8 channels of zeros | the 16 of x | 8 of zeros ]
#pragma once

#include "core/tape.h"

namespace heddle {

// x (N, C, H, W), f32 or bf16 -> (N, channels, ceil(H/2), ceil(W/2)) in the layout of x. Throws
// InputError unless channels - C is even and at least 0.
Var subsample_pad(Tape& tape, const Var& x, int64_t channels);

}  // namespace heddle
