#include "layers/graph_net.h"

#include <cmath>

#include "core/error.h"
#include "layers/activation.h"
#include "layers/sparse.h"

namespace heddle {

GraphNet::GraphNet(ParameterStore& store, const GraphNetOptions& options) : options_(options) {
  for (const int64_t size : {options.features, options.hidden, options.classes, options.layers})
    check(size > 0, "graph network: expected positive sizes, found ", size);
  for (int64_t i = 0; i < options.layers; ++i) {
    const int64_t in = i == 0 ? options.features : options.hidden;
    const int64_t out = i + 1 == options.layers ? options.classes : options.hidden;
    const std::string name = concat("convs.", i);
    if (options.conv == GraphConv::sage) {
      const Linear mixed(store, name + ".lin_l", in, out);
      convs_.push_back(
          {mixed.weight, mixed.bias, Linear(store, name + ".lin_r", in, out, false).weight});
      continue;
    }
    const float bound = std::sqrt(6.0f / to_float(in + out));  // Glorot and Bengio, 2010
    Parameter& bias = store.add(name + ".bias", {out}, constant_init(0), false);
    convs_.push_back(
        {&store.add(name + ".lin.weight", {out, in}, uniform_init(bound)), &bias, nullptr});
  }
}

NodeFeatures NodeFeatures::to(Device device) const {
  if (dense.defined()) return {dense.to(device)};
  return {{}, sparse.to(device)};
}

// Adds the node's own part, if any; between layers ReLU and dropout follow.
Var GraphNet::finish(Tape& tape, int64_t index, const Var& mixed, const Var& self) const {
  Var y = convs_[to_size(index)].self != nullptr ? add(tape, mixed, self) : mixed;
  if (index + 1 == options_.layers) return y;
  y = relu(tape, y);
  return options_.dropout > 0 ? dropout(tape, y, options_.dropout) : y;
}

Var GraphNet::layer(Tape& tape, int64_t index, const Var& x, const SparseMatrix& mix) const {
  const Conv& conv = convs_[to_size(index)];
  const Var mixed = linear(tape, sparse_matmul(tape, mix, x), *conv.mixed, conv.bias);
  if (conv.self == nullptr) return finish(tape, index, mixed, {});
  return finish(tape, index, mixed,
                linear(tape, first_rows(tape, x, mix.rows()), *conv.self, nullptr));
}

// With sparse features A (X W) is cheaper than (A X) W: A X has more entries than X.
Var GraphNet::first_layer(Tape& tape, const NodeFeatures& x, const SparseMatrix& mix) const {
  if (x.dense.defined()) return layer(tape, 0, Var(x.dense), mix);
  const Conv& conv = convs_[0];
  const Var product = sparse_linear(tape, x.sparse, *conv.mixed);
  const Var mixed = add_bias(tape, sparse_matmul(tape, mix, product), *conv.bias);
  if (conv.self == nullptr) return finish(tape, 0, mixed, {});
  return finish(tape, 0, mixed,
                first_rows(tape, sparse_linear(tape, x.sparse, *conv.self), mix.rows()));
}

Var GraphNet::forward(Tape& tape, const NodeFeatures& x,
                      const std::vector<SparseMatrix>& mix) const {
  check(std::ssize(mix) == options_.layers, "graph network: expected ", options_.layers,
        " matrices, found ", mix.size());
  Var y = first_layer(tape, x, mix[0]);
  for (int64_t i = 1; i < options_.layers; ++i) y = layer(tape, i, y, mix[to_size(i)]);
  return y;
}

}  // namespace heddle
