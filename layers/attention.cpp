#include "layers/attention.h"

#include <cmath>

#include "core/gemm.h"
#include "core/kernels.h"
#include "core/shared_kernel.h"
#include "core/trace.h"
#include "layers/backend.h"

namespace heddle {
namespace {

// Returns matrix i of (matrices, M, N).
Tensor matrix(const Tensor& all, int64_t i) {
  return all.slice(i, i + 1).reshape({all.shape()[1], all.shape()[2]});
}

// Returns (parts, batch, heads, steps, width) as matrices (parts * batch * heads, steps, width).
Tensor split_heads(const Tensor& x, const Heads& n) {
  Tensor out =
      Tensor::empty_on(x.device(), {n.parts * n.batch * n.heads, n.steps, n.width}, x.dtype());
  HEDDLE_DISPATCH(x.device(), permute_heads(x, n, false, out));
  return out;
}

// Returns the opposite of split_heads(), as (steps, batch, parts * heads * width).
Tensor merge_heads(const Tensor& x, const Heads& n) {
  Tensor out =
      Tensor::empty_on(x.device(), {n.steps, n.batch, n.parts * n.heads * n.width}, x.dtype());
  HEDDLE_DISPATCH(x.device(), permute_heads(x, n, true, out));
  return out;
}

}  // namespace

Var self_attention(Tape& tape, const Var& qkv, int64_t heads, bool causal) {
  TraceRange range("forward", "attention");
  check_floating(qkv.value(), "attention");
  auto [steps, batch, all] = dims<3>(qkv.value(), "attention");
  check(steps > 0 && batch > 0 && all > 0 && heads > 0 && all % (3 * heads) == 0,
        "attention: expected (T, B, 3 D) with D a multiple of ", heads, " heads, found ",
        to_string(qkv.shape()));
  const Device device = qkv.value().device();
  const DType type = qkv.value().dtype();
  const Heads inner{steps, batch, 3, heads, all / 3 / heads};
  Heads outer = inner;
  outer.parts = 1;
  const int64_t count = batch * heads;  // matrices of a part
  const float by = 1.0f / std::sqrt(to_float(inner.width));
  const Tensor parts = split_heads(qkv.value(), inner);
  const Tensor scores = Tensor::empty_on(device, {count, steps, steps});
  for (int64_t i = 0; i < count; ++i)
    gemm(matrix(parts, i), matrix(parts, count + i), matrix(scores, i), {.transpose_b = true});
  const Tensor weights = Tensor::empty_on(device, scores.shape(), type);
  const Shape rows{count * steps, steps};
  HEDDLE_DISPATCH(
      device, softmax_forward(scores.reshape(rows), by, causal ? steps : 0, weights.reshape(rows)));
  const Tensor mixed = Tensor::empty_on(device, {count, steps, inner.width}, type);
  for (int64_t i = 0; i < count; ++i)
    gemm(matrix(weights, i), matrix(parts, 2 * count + i), matrix(mixed, i));
  Var y(merge_heads(mixed, outer), qkv.needs_grad());
  tape.record("attention", y, {}, [=](BackwardPass& pass) {
    const Tensor dmixed = split_heads(std::move(pass.dy).sum(), outer);
    const Tensor dparts = Tensor::empty_like(parts);
    const Tensor dweights = Tensor::empty_on(device, weights.shape());
    for (int64_t i = 0; i < count; ++i) {
      gemm(matrix(dmixed, i), matrix(parts, 2 * count + i), matrix(dweights, i),
           {.transpose_b = true});
      gemm(matrix(weights, i), matrix(dmixed, i), matrix(dparts, 2 * count + i),
           {.transpose_a = true});
    }
    const Tensor dscores = Tensor::empty_like(weights);
    HEDDLE_DISPATCH(device, softmax_backward(weights.reshape(rows), dweights.reshape(rows), by,
                                             dscores.reshape(rows)));
    for (int64_t i = 0; i < count; ++i) {
      gemm(matrix(dscores, i), matrix(parts, count + i), matrix(dparts, i));
      gemm(matrix(dscores, i), matrix(parts, i), matrix(dparts, count + i), {.transpose_a = true});
    }
    qkv.add_grad(merge_heads(dparts, inner));
  });
  return y;
}

MultiHeadAttention::MultiHeadAttention(ParameterStore& store, const std::string& name,
                                       int64_t width, int64_t count)
    : heads(count) {
  check(width > 0 && heads > 0 && width % heads == 0, name,
        ": expected a width that is a multiple of ", heads, " heads, found ", width);
  const auto bound = [&](float columns) {
    return uniform_init(std::sqrt(columns / to_float(width)));
  };
  in_weight = &store.add(name + ".in_proj_weight", {3 * width, width}, bound(6.0f / 4.0f));
  in_bias = &store.add(name + ".in_proj_bias", {3 * width}, constant_init(0.0f), false);
  out_weight = &store.add(name + ".out_proj.weight", {width, width}, bound(1.0f));
  out_bias = &store.add(name + ".out_proj.bias", {width}, constant_init(0.0f), false);
}

Var MultiHeadAttention::forward(Tape& tape, const Var& x, bool causal) const {
  const Var mixed = self_attention(tape, linear(tape, x, *in_weight, in_bias), heads, causal);
  return linear(tape, mixed, *out_weight, out_bias);
}

}  // namespace heddle
