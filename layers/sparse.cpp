#include "layers/sparse.h"

#include <utility>

#include "core/kernels.h"
#include "core/shared_kernel.h"
#include "core/trace.h"
#include "layers/backend.h"

namespace heddle {

Var sparse_matmul(Tape& tape, const SparseMatrix& a, const Var& x) {
  TraceRange range("forward", "sparse_matmul");
  check_floating(x.value(), "sparse_matmul");
  check(x.shape().rank() == 2 && x.shape()[0] == a.cols(), "sparse_matmul: expected (", a.cols(),
        ", F), found ", to_string(x.shape()));
  check(!tape.training() || !x.needs_grad() || a.transpose() != nullptr,
        "sparse_matmul: a gradient needs the matrix's transpose");
  const DType dtype = x.value().dtype();
  const Device device = x.value().device();
  const int64_t width = x.shape()[1];
  const Tensor output = Tensor::empty_on(device, {a.rows(), width}, dtype);
  HEDDLE_DISPATCH(device, sparse_matmul(a, x.value(), output));
  Var y(output, x.needs_grad());
  if (!x.needs_grad()) return y;
  tape.record("sparse_matmul", y, {}, [a, x, device](BackwardPass& pass) {
    const Tensor dy = std::move(pass.dy).sum();
    const Tensor dx = Tensor::empty_like(x.value());
    HEDDLE_DISPATCH(device, sparse_matmul(*a.transpose(), dy, dx));
    x.add_grad(dx);
  });
  return y;
}

Var sparse_linear(Tape& tape, const SparseMatrix& x, Parameter& weight) {
  TraceRange range("forward", weight.name);
  const int64_t out = weight.shape()[0], in = weight.shape()[1];
  const Device device = weight.value.device();
  check(x.cols() == in, weight.name, ": expected a sparse matrix (N, ", in, "), found (N, ",
        x.cols(), ")");
  check(!tape.training() || x.transpose() != nullptr, weight.name,
        ": a gradient needs the sparse matrix's transpose");
  const Tensor matrix = Tensor::empty_on(device, {in, out});
  HEDDLE_DISPATCH(device, add_transposed(weight.value, 0, matrix));
  const Tensor output = Tensor::empty_on(device, {x.rows(), out});
  HEDDLE_DISPATCH(device, sparse_matmul(x, matrix, output));
  weight.uses_per_sample = 1;
  Var y(output, !weight.frozen);
  tape.record(weight.name, y, {&weight}, [x, &weight, in, out, device](BackwardPass& pass) {
    const Tensor dy = std::move(pass.dy).sum();
    const Tensor gradient = Tensor::empty_on(device, {in, out});
    HEDDLE_DISPATCH(device, sparse_matmul(*x.transpose(), dy, gradient));
    HEDDLE_DISPATCH(device, add_transposed(gradient, weight.next_beta(), weight.grad));
    pass.contributed(weight);
  });
  return y;
}

Var add_bias(Tape& tape, const Var& x, Parameter& bias) {
  const Tensor output = x.value().clone();
  add_row(bias.value, output);
  Var y(output, x.needs_grad() || !bias.frozen);
  tape.record(bias.name, y, {&bias}, [x, &bias](BackwardPass& pass) {
    Tensor dy = std::move(pass.dy).sum();
    if (!bias.frozen) sum_rows(dy, bias.grad, bias.next_beta());
    pass.contributed(bias);
    x.add_grad(std::move(dy));
  });
  return y;
}

Var first_rows(Tape& tape, const Var& x, int64_t n) {
  check(x.shape().rank() > 0 && n >= 0 && n <= x.shape()[0], "first_rows: expected at most ",
        to_string(x.shape()), ", found ", n);
  Var y(x.value().slice(0, n), x.needs_grad());
  tape.record("first_rows", y, {}, [x, n](BackwardPass& pass) {
    const Tensor dx = Tensor::empty_like(x.value());
    dx.fill_zero();
    dx.slice(0, n).copy_from(std::move(pass.dy).sum());
    x.add_grad(dx);
  });
  return y;
}

}  // namespace heddle
