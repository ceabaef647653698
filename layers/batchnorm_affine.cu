#include "layers/batchnorm_affine.h"

#include "core/shared_kernel.h"
#include "layers/backend.h"

namespace heddle::HEDDLE_BACKEND {

void batchnorm_affine(const BatchNormAffine& a) {
  for_each(a.mean.size(),
           MakeAffine{a.mean.data<float>(), a.variance.data<float>(), a.weight.data<float>(),
                      a.bias.data<float>(), a.eps, a.invstd.data<float>(), a.scale.data<float>(),
                      a.shift.data<float>()});
}

}  // namespace heddle::HEDDLE_BACKEND
