// Clipping by the global norm of all gradients (Pascanu et al. 2013), as
// torch.nn.utils.clip_grad_norm_: gradients are scaled by min(1, max_norm / (norm + 1e-6)).
// The norm is one reduction over the flat buffer, whose padding is zero: chunks of a fixed size are
// added in order, so the number of threads changes no bit.
//
//   const double norm = global_norm(store);
//   scale(store.grads(), to_float(clip_factor(norm, 0.25)));
#pragma once

#include "core/parameters.h"

namespace heddle {

// Returns the 2-norm of the flat gradient buffer, non-finite exactly if some gradient is.
// Parameters without a gradient in this step must have been set to zero
// (Optimizer::zero_missing_gradients). On a GPU it waits for the device.
double global_norm(const ParameterStore& store);

// Returns the factor that scales gradients of this norm to at most max_norm; 1 for a norm that is
// within it or non-finite.
double clip_factor(double norm, double max_norm);

}  // namespace heddle
