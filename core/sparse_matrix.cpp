#include "core/sparse_matrix.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "core/kernels.h"

namespace heddle {

SparseMatrix::SparseMatrix(int64_t cols, const std::vector<int32_t>& starts,
                           const std::vector<int32_t>& columns, const std::vector<float>& weights)
    : cols_(cols) {
  check(!starts.empty() && starts[0] == 0 && std::ranges::is_sorted(starts) &&
            starts.back() == std::ssize(columns),
        "sparse matrix: expected starts that rise from 0 to the number of entries, ",
        columns.size());
  check(weights.size() == columns.size(), "sparse matrix: expected ", columns.size(),
        " weights, found ", weights.size());
  starts_ = Tensor::from_integers(starts);
  columns_ = Tensor::from_integers(columns);
  weights_ = Tensor::from(weights);
  check_indices(columns_, cols, "sparse matrix: columns");
}

SparseMatrix SparseMatrix::from_bits(const Tensor& rows, int64_t cols) {
  check_shape(rows, {rows.shape()[0], ceil_div(cols, 8)}, "bits of a sparse matrix");
  std::vector<int32_t> starts = {0}, columns;
  const uint8_t* bytes = rows.data<uint8_t>();
  for (int64_t r = 0; r < rows.shape()[0]; ++r) {
    for (int64_t first = 0; first < cols; first += 8)
      for (unsigned bits = *bytes++; bits != 0; bits &= bits - 1)
        columns.push_back(to_int(first + std::countr_zero(bits)));
    check(columns.size() <= INT32_MAX, "sparse matrix: more than ", INT32_MAX, " entries");
    starts.push_back(to_int(columns.size()));
  }
  return SparseMatrix(cols, starts, columns, std::vector<float>(columns.size(), 1.0f));
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
  for (int64_t i = 0; i < entries(); ++i) ++next[columns[i]];
  int32_t before = 0;
  for (int64_t c = 0; c <= cols_; ++c) before += std::exchange(next[c], before);
  const float* weights = weights_.data<float>();
  int32_t* to_columns = t.columns_.data<int32_t>();
  float* to_weights = t.weights_.data<float>();
  for (int32_t r = 0; r < rows(); ++r) {
    for (int32_t i = starts[r]; i < starts[r + 1]; ++i) {
      const int32_t at = next[columns[i]]++;
      to_columns[at] = r;
      to_weights[at] = weights[i];
    }
  }
  // Each row has ended where the next one begins.
  std::copy_backward(next, next + cols_, next + cols_ + 1);
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
