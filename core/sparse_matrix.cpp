#include "core/sparse_matrix.h"

#include <algorithm>
#include <utility>

#include "core/kernels.h"

namespace heddle {
namespace {

template <class T>
Tensor tensor_of(const std::vector<T>& values) {
  const Tensor out = Tensor::empty_on(Device{}, {to_int64(values.size())}, dtype_of<T>());
  std::ranges::copy(values, out.data<T>());
  return out;
}

}  // namespace

SparseMatrix::SparseMatrix(int64_t cols, const std::vector<int32_t>& starts,
                           const std::vector<int32_t>& columns, const std::vector<float>& weights)
    : cols_(cols) {
  check(!starts.empty() && starts[0] == 0 && std::ranges::is_sorted(starts) &&
            starts.back() == std::ssize(columns),
        "sparse matrix: expected starts that rise from 0 to the number of entries, ",
        columns.size());
  check(weights.size() == columns.size(), "sparse matrix: expected ", columns.size(),
        " weights, found ", weights.size());
  starts_ = tensor_of(starts);
  columns_ = tensor_of(columns);
  weights_ = tensor_of(weights);
  check_indices(columns_, cols, "sparse matrix: columns");
}

SparseMatrix SparseMatrix::slice(int64_t begin, int64_t end) const {
  SparseMatrix out = *this;
  out.transpose_ = nullptr;
  out.starts_ = starts_.slice(begin, end + 1);
  return out;
}

SparseMatrix SparseMatrix::with_transpose() const {
  SparseMatrix t;
  t.cols_ = rows();
  t.starts_ = Tensor::empty_on(Device{}, {cols_ + 1}, DType::i32);
  t.columns_ = Tensor::empty_on(Device{}, {entries()}, DType::i32);
  t.weights_ = Tensor::empty_on(Device{}, {entries()});
  t.starts_.fill_zero();
  const int32_t *starts = starts_.data<int32_t>(), *columns = columns_.data<int32_t>();
  int32_t* next = t.starts_.data<int32_t>();
  for (int32_t i = starts[0]; i < starts[rows()]; ++i) ++next[columns[i]];
  int32_t before = 0;
  for (int64_t c = 0; c <= cols_; ++c) before += std::exchange(next[c], before);
  for (int32_t r = 0; r < rows(); ++r) {
    for (int32_t i = starts[r]; i < starts[r + 1]; ++i) {
      const int32_t at = next[columns[i]]++;
      t.columns_.data<int32_t>()[at] = r;
      t.weights_.data<float>()[at] = weights_.data<float>()[i];
    }
  }
  std::copy_backward(next, next + cols_,
                     next + cols_ + 1);  // each row has ended where the next begins
  next[0] = 0;
  SparseMatrix out = *this;
  out.transpose_ = std::make_shared<const SparseMatrix>(t);
  return out;
}

SparseMatrix SparseMatrix::to(Device device) const {
  SparseMatrix out = *this;
  out.starts_ = starts_.to(device);
  out.columns_ = columns_.to(device);
  out.weights_ = weights_.to(device);
  if (transpose_ != nullptr)
    out.transpose_ = std::make_shared<const SparseMatrix>(transpose_->to(device));
  return out;
}

}  // namespace heddle
