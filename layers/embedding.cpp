#include "layers/embedding.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "core/kernels.h"
#include "core/shared_kernel.h"
#include "core/trace.h"
#include "layers/backend.h"

namespace heddle {

namespace cpu {
namespace {

// The positions of each token that occurs: those of token rows[i] are positions[starts[i] …
// starts[i + 1]).
struct Segments {
  std::vector<int32_t> rows, starts, positions;
};

Segments sort_tokens(const Tensor& tokens) {
  const int32_t* token = tokens.data<int32_t>();
  Segments s;
  s.positions.resize(to_size(tokens.size()));
  std::iota(s.positions.begin(), s.positions.end(), 0);
  std::stable_sort(s.positions.begin(), s.positions.end(),
                   [token](int32_t a, int32_t b) { return token[a] < token[b]; });
  for (size_t i = 0; i < s.positions.size(); ++i) {
    const int32_t row = token[s.positions[i]];
    if (!s.rows.empty() && s.rows.back() == row) continue;
    s.rows.push_back(row);
    s.starts.push_back(static_cast<int32_t>(i));
  }
  s.starts.push_back(static_cast<int32_t>(s.positions.size()));
  return s;
}

// Adds the gradients of one token's positions in their order.
template <class T>
struct SegmentedSum {
  const T* dy;
  const int32_t *rows, *starts, *positions;
  float* dweight;
  int64_t width;
  void operator()(int64_t r, int64_t c) const {
    float sum = dweight[rows[r] * width + c];
    for (int32_t i = starts[r]; i < starts[r + 1]; ++i)
      sum += to_float(dy[positions[i] * width + c]);
    dweight[rows[r] * width + c] = sum;
  }
};

struct ClearRow {
  const int32_t* rows;
  float* x;
  int64_t width;
  void operator()(int64_t r, int64_t c) const { x[rows[r] * width + c] = 0.0f; }
};

// Prepares the gradient for additions: makes it zero outside of known rows, or, when another layer
// has written into it in this step (tied weights), leaves it dense.
void prepare(Parameter& weight, const std::vector<int32_t>& rows) {
  if (weight.written && !weight.touched_rows) return;
  std::vector<int32_t> known;
  if (weight.written)
    known = *weight.touched_rows;
  else if (!weight.touched_rows)
    weight.grad.fill_zero();
  else
    for_each_in_grid(
        std::ssize(*weight.touched_rows), weight.shape()[1],
        ClearRow{weight.touched_rows->data(), weight.grad.data<float>(), weight.shape()[1]});
  weight.written = true;
  std::vector<int32_t> both;
  std::set_union(known.begin(), known.end(), rows.begin(), rows.end(), std::back_inserter(both));
  weight.touched_rows = std::move(both);
}

}  // namespace

void embedding_backward(const Tensor& dy, const Tensor& tokens, Parameter& weight) {
  const Segments s = sort_tokens(tokens);
  prepare(weight, s.rows);
  const int64_t width = weight.shape()[1];
  with_type(dy, [&]<class T>() {
    for_each_in_grid(std::ssize(s.rows), width,
                     SegmentedSum<T>{dy.data<T>(), s.rows.data(), s.starts.data(),
                                     s.positions.data(), weight.grad.data<float>(), width});
  });
}

}  // namespace cpu

Var embedding(Tape& tape, const Tensor& tokens, Parameter& weight, DType dtype) {
  TraceRange range("forward", weight.name);
  const int64_t vocabulary = weight.shape()[0], width = weight.shape()[1];
  check(weight.shape().rank() == 2 && vocabulary > 0 && weight.value.size() > 0, weight.name,
        ": expected a weight (V, E) of a finalized store, found ", to_string(weight.shape()));
  check_indices(tokens, vocabulary, weight.name);
  const Device device = weight.value.device();
  std::vector<int64_t> shape(tokens.shape().begin(), tokens.shape().end());
  shape.push_back(width);
  const Tensor output = Tensor::empty_on(device, Shape(shape), dtype);
  const Tensor here = tokens.to(device);
  HEDDLE_DISPATCH(device, embedding_forward(here, weight.value, output));
  Var y(output, !weight.frozen);
  tape.record(weight.name, y, {&weight}, [here, &weight, device](BackwardPass& pass) {
    const Tensor dy = std::move(pass.dy).sum();
    HEDDLE_DISPATCH(device, embedding_backward(dy, here, weight));
    pass.contributed(weight);
  });
  return y;
}

}  // namespace heddle
