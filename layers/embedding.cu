// The rows of an embedding, shared between CPU and CUDA. Their gradients differ: see
// embedding.cpp and embedding_cuda.cu.
#include "core/shared_kernel.h"
#include "layers/backend.h"

namespace heddle::HEDDLE_BACKEND {
namespace {

template <class T>
struct Gather {
  const int32_t* tokens;
  const float* weight;
  T* y;
  int64_t width;
  HEDDLE_HD void operator()(int64_t r, int64_t c) const {
    y[r * width + c] = T(weight[tokens[r] * width + c]);
  }
};

}  // namespace

void embedding_forward(const Tensor& tokens, const Tensor& weight, const Tensor& y) {
  const int64_t width = weight.shape()[1];
  with_type(y, [&]<class T>() {
    for_each_in_grid(tokens.size(), width,
                     Gather<T>{tokens.data<int32_t>(), weight.data<float>(), y.data<T>(), width});
  });
}

}  // namespace heddle::HEDDLE_BACKEND
