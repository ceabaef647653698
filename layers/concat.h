// Joins two maps along their channels.
//
//   a (N, 2, H, W), b (N, 1, H, W)  ->  y (N, 3, H, W): of each sample a's channels, then b's
#pragma once

#include "core/tape.h"

namespace heddle {

// a (N, C, ...) and b (N, D, ...), f32 or bf16, with the same other axes -> (N, C + D, ...), plain.
// Throws InputError for other shapes and for two types.
Var concat_channels(Tape& tape, const Var& a, const Var& b);

}  // namespace heddle
