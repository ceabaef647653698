// SparseMatrix: a matrix of which only a few elements of each row differ from zero, in compressed
// rows (CSR): the entries of row r are columns()[i] and weights()[i] for i from starts()[r] up to,
// not including, starts()[r + 1].
//
//   0  2  0      starts   0 1 3
//   1  0  3      columns  1 0 2
//                weights  2 1 3
//
//   SparseMatrix a(3, {0, 1, 3}, {1, 0, 2}, {2, 1, 3});
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/tensor.h"

namespace heddle {

// Copies are cheap and share the entries, which nobody changes.
class SparseMatrix {
 public:
  SparseMatrix() = default;
  // On the host. Throws InputError unless starts rise from 0 to the number of entries, columns lie
  // in [0, cols) and there are as many weights.
  SparseMatrix(int64_t cols, const std::vector<int32_t>& starts,
               const std::vector<int32_t>& columns, const std::vector<float>& weights);

  // Returns the matrix whose elements are 1 where bit c % 8 of byte c / 8 of a row is set. rows: u8
  // (n, (cols + 7) / 8) on the host, as Graph keeps features.
  static SparseMatrix from_bits(const Tensor& rows, int64_t cols);

  int64_t rows() const { return starts_.defined() ? starts_.size() - 1 : 0; }
  int64_t cols() const { return cols_; }
  int64_t entries() const { return columns_.defined() ? columns_.size() : 0; }
  const Tensor& starts() const { return starts_; }    // i32 (rows + 1)
  const Tensor& columns() const { return columns_; }  // i32 (entries)
  const Tensor& weights() const { return weights_; }  // f32 (entries)

  // Returns this matrix with its transpose, in which the entries of a row are in the order of the
  // columns here; from the host.
  SparseMatrix with_transpose() const;
  const SparseMatrix* transpose() const { return transpose_.get(); }  // null: without
  // Returns a copy on the device, with its transpose; this one if it is there already.
  SparseMatrix to(Device device) const;

 private:
  int64_t cols_ = 0;
  Tensor starts_, columns_, weights_;
  std::shared_ptr<const SparseMatrix> transpose_;
};

}  // namespace heddle
