// Applies a graph network to a whole graph, exactly: all neighbours, none drawn. Layer by layer,
// each rank computes its own nodes and fetches its neighbours' values once.
//
//   WholeGraph whole(graph, owners, rank, sampler, features);
//   GraphEvaluation e = whole.evaluate(model, optimizer);
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "comm/feature_store.h"
#include "data/graph.h"
#include "data/neighbour_sampler.h"
#include "layers/graph_net.h"
#include "optim/learner_optimizer.h"

namespace heddle {

// Holds the mean over the nodes of a split. NaN (null in JSON): not evaluated.
struct NodeScore {
  double loss = NAN;  // mean cross-entropy in nats
  double acc1 = NAN;  // percent
  int64_t nodes = 0;
};
struct GraphEvaluation {
  NodeScore valid, test;
  double seconds = 0;
};

// Calls its argument with the communicator of all ranks.
using OnRanks = std::function<void(const std::function<void(Communicator&, Ledger&)>& call)>;

class WholeGraph {
 public:
  // All arguments must outlive this object.
  WholeGraph(const Graph& graph, const std::vector<int32_t>& owners, int rank,
             NeighbourSampler& sampler, const FeatureStore& features);

  // Returns the logits (own nodes, classes) of this rank's nodes, ascending, on the device.
  // Collective.
  Tensor logits(const GraphNet& model, const OnRanks& on_ranks) const;
  // Returns the logits (nodes, classes) of any nodes, on the host. Collective, with the same nodes.
  Tensor logits_of(const std::vector<int32_t>& nodes, const GraphNet& model,
                   const OnRanks& on_ranks) const;
  // Returns loss and accuracy over all ranks' nodes. Collective.
  GraphEvaluation evaluate(const GraphNet& model, const OnRanks& on_ranks) const;

 private:
  const Graph& graph_;
  const std::vector<int32_t>& owners_;
  int rank_;
  const FeatureStore& features_;
  std::vector<int32_t> own_, read_;  // read: own nodes, then those of others that they mix
  SparseMatrix mix_;                 // (own, read)
};

// Returns OnRanks over an optimizer's worker thread.
OnRanks on_ranks(LearnerOptimizer& learners);

// Returns the rows of a graph's features with these nodes, as it keeps them: u8 or f32.
Tensor feature_rows(const Graph& graph, const std::vector<int32_t>& nodes);
// Returns such rows as input of a network; `transposed`: for training.
NodeFeatures node_features(const Graph& graph, const Tensor& rows, bool transposed);
// Returns the nodes of a rank, ascending.
std::vector<int32_t> nodes_of(const std::vector<int32_t>& owners, int rank);
// Returns the labels of nodes, i32.
Tensor labels_of(const Graph& graph, const std::vector<int32_t>& nodes);

}  // namespace heddle
