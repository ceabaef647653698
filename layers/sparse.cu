// The product of a sparse and a dense matrix, shared between CPU and CUDA.
#include "core/shared_kernel.h"
#include "layers/backend.h"

namespace heddle::HEDDLE_BACKEND {
namespace {

template <class T>
struct SparseRow {
  const int32_t *starts, *columns;
  const float* weights;
  const T* x;
  T* y;
  int64_t width;
  HEDDLE_HD void operator()(int64_t r, int64_t c) const {
    float sum = 0;
    for (int32_t i = starts[r]; i < starts[r + 1]; ++i)
      sum += weights[i] * to_float(x[columns[i] * width + c]);
    y[r * width + c] = T(sum);
  }
};

}  // namespace

void sparse_matmul(const SparseMatrix& a, const Tensor& x, const Tensor& y) {
  const int64_t width = x.shape()[1];
  with_type(x, [&]<class T>() {
    for_each_in_grid(a.rows(), width,
                     SparseRow<T>{a.starts().data<int32_t>(), a.columns().data<int32_t>(),
                                  a.weights().data<float>(), x.data<T>(), y.data<T>(), width});
  });
}

}  // namespace heddle::HEDDLE_BACKEND
