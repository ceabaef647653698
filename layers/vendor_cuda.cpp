// The CUDA side of the layers that vendor libraries carry (cuDNN). Their places and signatures are
// here; until they are filled in, each says so when it is called on a CUDA tensor.
#include "layers/batchnorm.h"
#include "layers/conv2d.h"
#include "layers/loss.h"
#include "layers/pooling.h"

namespace heddle::cuda {
namespace {

[[noreturn]] void missing(const char* layer) {
  throw InputError(
      concat("--device cuda: the CUDA backend has no ", layer, " yet; use --device cpu"));
}

}  // namespace

ConvLayouts conv2d_layouts(const Tensor&, int64_t, const Conv2dOptions&) {
  return {Layout::nhwc, Layout::nhwc};
}

void conv2d_forward(const Tensor&, const Tensor&, const Tensor&, const Conv2dOptions&) {
  missing("convolution");
}

void conv2d_backward_weight(const Tensor&, const Tensor&, const Tensor&, float,
                            const Conv2dOptions&) {
  missing("convolution");
}

void conv2d_backward_input(const Tensor&, const Tensor&, const Tensor&, const Conv2dOptions&) {
  missing("convolution");
}

void batchnorm_statistics(const Tensor&, const Tensor&, const Tensor&) {
  missing("batch normalisation");
}

void batchnorm_apply(const Tensor&, const Tensor&, const Tensor&, const Tensor&, bool,
                     const Tensor&) {
  missing("batch normalisation");
}

void batchnorm_backward(const BatchNormBackward&) { missing("batch normalisation"); }

Tensor pool_forward(PoolKind, const Tensor&, const Tensor&, int64_t, int64_t, int64_t, int64_t) {
  missing("pooling");
}

void pool_backward(PoolKind, const Tensor&, const Tensor&, const Tensor&, int64_t, int64_t, int64_t,
                   int64_t) {
  missing("pooling");
}

double softmax_cross_entropy_forward(const Tensor&, const Tensor&, float, const Tensor&) {
  missing("cross-entropy");
}

void softmax_cross_entropy_backward(const Tensor&, const Tensor&, const Tensor&, float, float,
                                    const Tensor&) {
  missing("cross-entropy");
}

}  // namespace heddle::cuda
