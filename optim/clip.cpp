#include "optim/clip.h"

#include <algorithm>
#include <cmath>

#include "core/kernels.h"

namespace heddle {

double global_norm(const ParameterStore& store) { return std::sqrt(squared_norm(store.grads())); }

double clip_factor(double norm, double max_norm) {
  return std::isfinite(norm) ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
}

}  // namespace heddle
