// Copies between the pieces of joined tensors, shared between CPU and CUDA.
#include "core/shared_kernel.h"
#include "layers/backend.h"

namespace heddle::HEDDLE_BACKEND {
namespace {

template <class T>
struct CopyPiece {
  const T* from;
  T* to;
  int64_t from_stride, to_stride;
  HEDDLE_HD void operator()(int64_t row, int64_t i) const {
    to[row * to_stride + i] = from[row * from_stride + i];
  }
};

}  // namespace

void copy_pieces(int64_t rows, int64_t columns, const Tensor& from, int64_t from_stride,
                 const Tensor& to, int64_t to_stride) {
  with_type(from, [&]<class T>() {
    for_each_in_grid(rows, columns,
                     CopyPiece<T>{from.data<T>(), to.data<T>(), from_stride, to_stride});
  });
}

}  // namespace heddle::HEDDLE_BACKEND
