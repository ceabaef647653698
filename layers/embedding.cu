// Kernels of the embedding, shared between CPU and CUDA.
#include "layers/embedding.h"

#include "core/shared_kernel.h"

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

// Adds the gradients of one token's places in their order.
template <class T>
struct SegmentedSum {
  const T* dy;
  const int32_t *rows, *starts, *places;
  float* dweight;
  int64_t width;
  HEDDLE_HD void operator()(int64_t r, int64_t c) const {
    float sum = dweight[rows[r] * width + c];
    for (int32_t i = starts[r]; i < starts[r + 1]; ++i)
      sum += static_cast<float>(dy[places[i] * width + c]);
    dweight[rows[r] * width + c] = sum;
  }
};

struct ClearRow {
  const int32_t* rows;
  float* x;
  int64_t width;
  HEDDLE_HD void operator()(int64_t r, int64_t c) const { x[rows[r] * width + c] = 0.0f; }
};

template <class T>
void gather(const Tensor& tokens, const Tensor& weight, const Tensor& y) {
  const int64_t width = weight.shape()[1];
  for_each_in_grid(tokens.size(), width,
                   Gather<T>{tokens.data<int32_t>(), weight.data<float>(), y.data<T>(), width});
}

template <class T>
void segmented_sum(const Tensor& dy, const Tensor& rows, const Tensor& starts, const Tensor& places,
                   const Tensor& dweight) {
  const int64_t width = dweight.shape()[1];
  for_each_in_grid(rows.size(), width,
                   SegmentedSum<T>{dy.data<T>(), rows.data<int32_t>(), starts.data<int32_t>(),
                                   places.data<int32_t>(), dweight.data<float>(), width});
}

}  // namespace

void embedding_forward(const Tensor& tokens, const Tensor& weight, const Tensor& y) {
  if (y.dtype() == DType::f32)
    gather<float>(tokens, weight, y);
  else
    gather<bfloat16>(tokens, weight, y);
}

void embedding_backward(const Tensor& dy, const Tensor& rows, const Tensor& starts,
                        const Tensor& places, const Tensor& dweight) {
  if (dy.dtype() == DType::f32)
    segmented_sum<float>(dy, rows, starts, places, dweight);
  else
    segmented_sum<bfloat16>(dy, rows, starts, places, dweight);
}

void clear_rows(const Tensor& rows, const Tensor& x) {
  const int64_t width = x.shape()[1];
  for_each_in_grid(rows.size(), width, ClearRow{rows.data<int32_t>(), x.data<float>(), width});
}

}  // namespace heddle::HEDDLE_BACKEND
