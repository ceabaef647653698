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

Var GraphNet::layer(Tape& tape, int64_t index, const Var& self, const Var& x,
                    const SparseMatrix& mix) const {
  const Conv& conv = convs_[to_size(index)];
  Var y = linear(tape, sparse_matmul(tape, mix, x), *conv.mixed, conv.bias);
  if (conv.self != nullptr) y = add(tape, y, linear(tape, self, *conv.self, nullptr));
  if (index + 1 == options_.layers) return y;
  y = relu(tape, y);
  return options_.dropout > 0 ? dropout(tape, y, options_.dropout) : y;
}

Var GraphNet::forward(Tape& tape, const Var& x, const std::vector<SparseMatrix>& mix) const {
  check(std::ssize(mix) == options_.layers, "graph network: expected ", options_.layers,
        " matrices, found ", mix.size());
  Var y = x;
  for (int64_t i = 0; i < options_.layers; ++i) {
    const SparseMatrix& a = mix[to_size(i)];
    y = layer(tape, i, first_rows(tape, y, a.rows()), y, a);
  }
  return y;
}

}  // namespace heddle
