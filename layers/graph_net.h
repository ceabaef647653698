// GraphNet: convolutions on a graph. A layer mixes the values of a node's neighbours by a sparse
// matrix A, one row for each node that it computes:
//
//   sage (Hamilton et al., 2017)   y = W_l (A x) + b + W_r x   A: mean over the neighbours
//   gcn (Kipf and Welling, 2017)   y = W (A x) + b             A: 1 / sqrt((d_i + 1) (d_j + 1))
//
// between layers ReLU, then dropout. Each layer computes fewer nodes than it reads: the nodes of a
// layer's output come first in its input, so the layers narrow from inputs to the batch.
//
//   GraphNet model(store, {.features = 512, .classes = 30});
//   Var logits = model.forward(tape, {x}, {outer, inner});   // outer (M, N), inner (B, M)
#pragma once

#include <cstdint>
#include <vector>

#include "core/sparse_matrix.h"
#include "core/tape.h"
#include "layers/linear.h"

namespace heddle {

enum class GraphConv : uint8_t { sage, gcn };

struct GraphNetOptions {
  GraphConv conv = GraphConv::sage;
  int64_t features = 0, hidden = 64, classes = 0;
  int64_t layers = 2;
  float dropout = 0;
};

// Holds the features of N nodes: dense (N, F) f32 or, if most of them are 0, sparse.
struct NodeFeatures {
  Tensor dense = {};  // undefined: they are sparse
  SparseMatrix sparse = {};
  NodeFeatures to(Device device) const;
};

class GraphNet {
 public:
  // Parameters have PyTorch Geometric's names: convs.0.lin_l.weight, convs.0.lin_l.bias,
  // convs.0.lin_r.weight; with gcn convs.0.lin.weight, convs.0.bias. Throws InputError for sizes
  // that are not positive.
  GraphNet(ParameterStore& store, const GraphNetOptions& options);

  // x: N nodes; mix: a matrix for each layer, the first (M, N) applied to x, the last (B, ...) ->
  // (B, classes). With gcn the matrix contains the node itself. All on one device; while training,
  // sparse matrices with their transposes.
  Var forward(Tape& tape, const NodeFeatures& x, const std::vector<SparseMatrix>& mix) const;
  // Apply the first layer, or another one from 1 to layers - 1, with what follows it. The nodes
  // that are computed come first in x.
  Var first_layer(Tape& tape, const NodeFeatures& x, const SparseMatrix& mix) const;
  Var layer(Tape& tape, int64_t index, const Var& x, const SparseMatrix& mix) const;
  const GraphNetOptions& options() const { return options_; }

 private:
  struct Conv {
    Parameter *mixed, *bias;
    Parameter* self;  // null with gcn
  };
  Var finish(Tape& tape, int64_t index, const Var& mixed, const Var& self) const;

  GraphNetOptions options_;
  std::vector<Conv> convs_;
};

}  // namespace heddle
