// NeighbourSampler: draws a few neighbours of each node of a batch, of these again, and so on, with
// a preference for neighbours on this rank, whose features need not travel.
//
//   NeighbourSampler sampler(graph, owners, rank, {.fanout = {5, 5}, .variance_budget = 1.5});
//   SampledBatch batch = sampler.sample(nodes, step);
//   Var logits = model.forward(tape, rows_of(batch.inputs), batch.mix);
//
// A node with neighbours j has the mean, or weighted sum, mu = sum_j a_j x_j, and k draws with
// replacement estimate it. p_j is proportional to a_j, and q_j to s p_j for neighbours on this rank
// and to p_j for others; c_j is how often j was drawn:
//
//   unbiased     sum_j c_j / (k q_j) a_j x_j
//   normalised   sum_j w_j a_j x_j with w_j = c_j / q_j, times sum_j a_j / sum_j w_j a_j
//   plain        sum_j c_j / k x_j, times sum_j a_j: biased towards this rank's neighbours
//
// With P_L the sum of p over this rank's neighbours and P_R = 1 - P_L, the skew s lowers the share
// of draws that travel from P_R to P_R / (P_R + s P_L) and raises the second moment of one unbiased
// draw, where all terms a_j |x_j| / p_j are equal, by 1 + P_L P_R (s - 1)^2 / s; that of the mean
// of k draws less, because a part of it, |mean|^2, does not depend on s. The idea of preferring
// local neighbours is that of Jiang and Rumi (arXiv 2101.07706), of which only the abstract was
// available: these formulas are our own.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/random.h"
#include "core/sparse_matrix.h"
#include "data/graph.h"

namespace heddle {

enum class SkewWeights : uint8_t { unbiased, normalised, plain };

// Names what a_j is. mean: 1 / degree. symmetric: 1 / sqrt((d_i + 1) (d_j + 1)), to which the node
// itself belongs with 1 / (d_i + 1), never drawn.
enum class Mixing : uint8_t { mean, symmetric };

struct SamplerOptions {
  std::vector<int64_t> fanout = {5, 5};  // draws for a node of the batch, of its neighbours, …;
                                         // 0: all neighbours, not drawn
  double skew = 1;                       // s; infinity: neighbours of other ranks only where a node
                                         // has no others; needs plain
  double variance_budget = 0;  // above 1: each node's own s, at most 64, for a draw's second moment
  SkewWeights weights = SkewWeights::unbiased;
  Mixing mixing = Mixing::mean;
  uint64_t seed = 0;
};

struct SampledBatch {
  std::vector<SparseMatrix> mix;  // for each layer of GraphNet, from the first; with transposes
  std::vector<int32_t> inputs;    // nodes whose features the first layer reads
  int64_t draws = 0, remote_draws = 0;  // remote: of other ranks' nodes
  int64_t drawn_nodes = 0;              // that have draws, by a finite skew
  double inflation = 0;                 // of their second moments, by the formula: the sum
};

class NeighbourSampler {
 public:
  // graph must outlive the sampler. owners: the rank of each node. Throws InputError for options
  // out of range.
  NeighbourSampler(const Graph& graph, const std::vector<int32_t>& owners, int rank,
                   const SamplerOptions& options);

  // Draws neighbours for different nodes in [0, graph.nodes()). Draw i of a node depends on the
  // seed, the step, the hop and the node, not on the rank or the batch. All neighbours of a node
  // are taken, each once, if they are no more than the draws and s is 1. For one thread at a time.
  SampledBatch sample(std::span<const int32_t> nodes, int64_t step);
  // Returns the matrix that mixes all neighbours of [begin, end) of `rows`; its columns are nodes'
  // positions in `columns`, which contains them all.
  SparseMatrix exact(std::span<const int32_t> rows, std::span<const int32_t> columns);

  // Returns the skew of a node.
  double skew(int64_t node) const;

 private:
  struct Entry {
    int32_t node;
    float weight;
  };
  // A node's edges. Masses are proportional to a_j, which is `scale` times the mass of j.
  struct Node {
    int64_t first = 0, degree = 0;
    double all = 0, local = 0, scale = 0;  // masses: their sum, and that of this rank's neighbours
    double s = 1, total = 0;  // total: their sum, those of this rank's neighbours times s
  };
  Node look_up(int64_t node) const;
  double mass(int64_t node) const;
  bool few_local(const Node& node, int64_t most) const;
  void take_all(const Node& node, std::vector<Entry>& out) const;
  void draw(const Node& node, const Philox& rng, uint64_t first, int64_t count,
            std::vector<Entry>& out);
  SparseMatrix mix(std::span<const int32_t> rows, int64_t columns,
                   const std::vector<int32_t>& starts, const std::vector<Entry>& entries) const;

  const Graph& graph_;
  SamplerOptions options_;
  std::vector<uint8_t> here_;        // of each node: 1 if it is this rank's
  std::vector<double> all_, local_;  // masses of a node's edges up to each one; local ones
  std::vector<int32_t> position_;    // of each node in the layer's inputs; -1: not there
  std::vector<int32_t> picks_;
};

// Returns s for a second moment of `budget` times that of s = 1: at most 64; 1 where all or no
// neighbours are local.
double skew_for_budget(double local_share, double budget);

}  // namespace heddle
