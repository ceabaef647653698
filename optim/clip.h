// Clipping by the global norm of all gradients (Pascanu et al. 2013), as
// torch.nn.utils.clip_grad_norm_: gradients are scaled by min(1, max_norm / (norm + 1e-6)).
// The norm is one reduction over the flat buffer, whose padding is zero: chunks of fixed size are
// added in order, so the number of threads never changes it.
#pragma once

#include "core/parameters.h"

namespace heddle {

// The 2-norm of all gradients; not finite exactly if one of them is not. Every slot counts: those
// of parameters without a gradient must have been set to zero (Optimizer does).
double global_norm(const ParameterStore& store);

// The factor that brings gradients of this norm within max_norm; 1 for a norm that is not finite.
double clip_factor(double norm, double max_norm);

}  // namespace heddle
