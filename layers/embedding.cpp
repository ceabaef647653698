#include "layers/embedding.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "core/shared_kernel.h"
#include "core/trace.h"

namespace heddle {
namespace {

// The places of each token that occurs: token rows[i] stands at places[starts[i] … starts[i + 1]).
struct Segments {
  std::vector<int32_t> rows, starts, places;
};

Segments sort_tokens(const Tensor& tokens) {
  const int32_t* token = tokens.data<int32_t>();
  Segments s;
  s.places.resize(static_cast<size_t>(tokens.size()));
  std::iota(s.places.begin(), s.places.end(), 0);
  std::stable_sort(s.places.begin(), s.places.end(),
                   [token](int32_t a, int32_t b) { return token[a] < token[b]; });
  for (size_t i = 0; i < s.places.size(); ++i) {
    const int32_t row = token[s.places[i]];
    if (!s.rows.empty() && s.rows.back() == row) continue;
    s.rows.push_back(row);
    s.starts.push_back(static_cast<int32_t>(i));
  }
  s.starts.push_back(static_cast<int32_t>(s.places.size()));
  return s;
}

Tensor on_device(const std::vector<int32_t>& values, Device device) {
  const Tensor host = Tensor::empty_on(Device{}, {std::ssize(values)}, DType::i32);
  std::copy(values.begin(), values.end(), host.data<int32_t>());
  return host.to(device);
}

// Makes the gradient one that is zero outside of known rows, or, when another layer has written
// into it in this step (tied weights), leaves it dense; either way it may be added to.
void prepare(Parameter& weight, const std::vector<int32_t>& rows) {
  const Device device = weight.grad.device();
  if (weight.written && !weight.touched_rows) return;
  std::vector<int32_t> known;
  if (weight.written)
    known = *weight.touched_rows;
  else if (!weight.touched_rows)
    weight.grad.fill_zero();
  else if (!weight.touched_rows->empty())
    HEDDLE_DISPATCH(device, clear_rows(on_device(*weight.touched_rows, device), weight.grad));
  weight.written = true;
  std::vector<int32_t> both;
  std::set_union(known.begin(), known.end(), rows.begin(), rows.end(), std::back_inserter(both));
  weight.touched_rows = std::move(both);
}

}  // namespace

Var embedding(Tape& tape, const Tensor& tokens, Parameter& weight, DType dtype) {
  TraceRange range("forward", weight.name);
  const int64_t vocabulary = weight.shape()[0], width = weight.shape()[1];
  check(weight.shape().rank() == 2 && vocabulary > 0 && width > 0, weight.name,
        ": expected a weight (V, E), found ", to_string(weight.shape()));
  check(tokens.dtype() == DType::i32 && !tokens.device().is_cuda(), weight.name,
        ": expected i32 tokens on the host, found ", dtype_name(tokens.dtype()));
  for (int64_t i = 0; i < tokens.size(); ++i) {
    const int32_t token = tokens.data<int32_t>()[i];
    check(token >= 0 && token < vocabulary, weight.name, ": token at place ", i,
          ": expected below ", vocabulary, ", found ", token);
  }
  const Device device = weight.value.device();
  std::vector<int64_t> shape(tokens.shape().begin(), tokens.shape().end());
  shape.push_back(width);
  const Tensor output = Tensor::empty_on(device, Shape(shape), dtype);
  HEDDLE_DISPATCH(device, embedding_forward(tokens.to(device), weight.value, output));
  Var y(output, true);
  tape.record(weight.name, y, {&weight}, [tokens, &weight, device](BackwardPass& pass) {
    const Tensor dy = std::move(pass.dy).sum();
    const Segments s = sort_tokens(tokens);
    prepare(weight, s.rows);
    HEDDLE_DISPATCH(device,
                    embedding_backward(dy, on_device(s.rows, device), on_device(s.starts, device),
                                       on_device(s.places, device), weight.grad));
    pass.contributed(weight);
  });
  return y;
}

}  // namespace heddle
