// Joins two maps along their channels.
//
//   a (N, 2, H, W), b (N, 1, H, W)  ->  y (N, 3, H, W): for each sample, a's channels, then b's
#pragma once

#include "core/tape.h"

namespace heddle {

// a (N, C, ...) and b (N, D, ...), both f32 or both bf16, on one device, all other axes equal ->
// (N, C + D, ...) in plain layout. Throws InputError if another axis or the type differs.
Var concat_channels(Tape& tape, const Var& a, const Var& b);

}  // namespace heddle
