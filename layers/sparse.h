// Products with a sparse matrix, and the rows of a matrix: the layers of networks on graphs.
//
//   Var y = sparse_matmul(tape, a, x);    // (M, N) times (N, F) -> (M, F)
#pragma once

#include "core/sparse_matrix.h"
#include "core/tape.h"

namespace heddle {

// a (M, N), x (N, F) f32 or bf16, on one device -> (M, F) of x's type, summed in f32 in the order
// of a row's entries: the same bits for any number of threads. Throws InputError for shapes that do
// not fit, and if x needs a gradient for a matrix without its transpose.
Var sparse_matmul(Tape& tape, const SparseMatrix& a, const Var& x);

// x (N, I), weight (O, I), on one device -> (N, O) f32: linear() of a sparse matrix, without bias.
// Throws InputError for shapes that do not fit, and while training for x without its transpose.
Var sparse_linear(Tape& tape, const SparseMatrix& x, Parameter& weight);

// Adds a bias (F) to each row: x (N, F) f32 -> (N, F). Throws InputError for shapes that do not
// fit.
Var add_bias(Tape& tape, const Var& x, Parameter& bias);

// Returns the first n rows: x (N, ...) -> (n, ...). Throws InputError unless 0 <= n <= N.
Var first_rows(Tape& tape, const Var& x, int64_t n);

}  // namespace heddle
