#include "apps/models/evaluate_graph.h"

#include <algorithm>
#include <cstring>

#include "core/context.h"
#include "core/error.h"
#include "core/trace.h"
#include "layers/loss.h"

namespace heddle {
namespace {

// Copies rows of `bytes` each.
template <class Places>
void copy_rows(const void* from, int64_t bytes, const Places& places, const Tensor& to) {
  for (size_t i = 0; i < places.size(); ++i)
    std::memcpy(static_cast<char*>(to.raw()) + to_int64(i) * bytes,
                static_cast<const char*>(from) + places[i] * bytes, to_size(bytes));
}

}  // namespace

OnRanks on_ranks(LearnerOptimizer& learners) {
  return [&learners](const auto& call) {
    learners.post("evaluation", call);
    learners.wait();
  };
}

std::vector<int32_t> nodes_of(const std::vector<int32_t>& owners, int rank) {
  std::vector<int32_t> out;
  for (size_t v = 0; v < owners.size(); ++v)
    if (owners[v] == rank) out.push_back(static_cast<int32_t>(v));
  return out;
}

Tensor feature_rows(const Graph& graph, const std::vector<int32_t>& nodes) {
  const int64_t width = graph.bits ? graph.row_bytes() : graph.feature_count;
  Tensor out =
      Tensor::empty_on(Device{}, {std::ssize(nodes), width}, graph.bits ? DType::u8 : DType::f32);
  copy_rows(graph.features.data(), graph.row_bytes(), nodes, out);
  return out;
}

NodeFeatures node_features(const Graph& graph, const Tensor& rows, bool transposed) {
  if (!graph.bits) return {rows};
  const SparseMatrix x = SparseMatrix::from_bits(rows, graph.feature_count);
  return {{}, transposed ? x.with_transpose() : x};
}

Tensor labels_of(const Graph& graph, const std::vector<int32_t>& nodes) {
  Tensor out = Tensor::empty_on(Device{}, {std::ssize(nodes)}, DType::i32);
  for (size_t i = 0; i < nodes.size(); ++i)
    out.data<int32_t>()[i] = graph.labels[to_size(nodes[i])];
  return out;
}

WholeGraph::WholeGraph(const Graph& graph, const std::vector<int32_t>& owners, int rank,
                       NeighbourSampler& sampler, const FeatureStore& features)
    : graph_(graph),
      owners_(owners),
      rank_(rank),
      features_(features),
      own_(nodes_of(owners, rank)) {
  std::vector<int32_t> others;
  for (const int32_t v : own_)
    for (const int32_t u : graph.neighbours(v))
      if (owners[to_size(u)] != rank) others.push_back(u);
  std::ranges::sort(others);
  others.erase(std::unique(others.begin(), others.end()), others.end());
  read_ = own_;
  read_.insert(read_.end(), others.begin(), others.end());
  mix_ = sampler.exact(own_, read_);
}

Tensor WholeGraph::logits(const GraphNet& model, const OnRanks& on_ranks) const {
  const Device device = Context::current().device();
  const SparseMatrix mix = mix_.to(device);
  Tensor own;  // of this rank's nodes, after the last layer
  for (int64_t layer = 0; layer < model.options().layers; ++layer) {
    Tensor x;
    on_ranks([&](Communicator& comm, Ledger& ledger) {
      if (layer == 0)
        x = features_.fetch(read_, comm, ledger, "evaluation");
      else
        x = FeatureStore(owners_, rank_, own.to(Device{})).fetch(read_, comm, ledger, "evaluation");
    });
    Tape tape({.training = false});
    own = (layer == 0 ? model.first_layer(tape, node_features(graph_, x, false).to(device), mix)
                      : model.layer(tape, layer, Var(x.to(device)), mix))
              .value();
  }
  return own;
}

Tensor WholeGraph::logits_of(const std::vector<int32_t>& nodes, const GraphNet& model,
                             const OnRanks& on_ranks) const {
  const Tensor all = logits(model, on_ranks).to(Device{});
  Tensor out = Tensor::empty_on(Device{}, {std::ssize(nodes), all.shape()[1]});
  out.fill_zero();
  for (int64_t i = 0; i < std::ssize(nodes); ++i) {
    const auto own = std::ranges::lower_bound(own_, nodes[to_size(i)]);
    if (own == own_.end() || *own != nodes[to_size(i)]) continue;
    const int64_t at = own - own_.begin();
    out.slice(i, i + 1).copy_from(all.slice(at, at + 1));
  }
  on_ranks([&](Communicator& comm, Ledger& ledger) {
    ledger.book(comm, {{"predictions", PayloadKind::control, out.bytes()}},
                [&] { comm.all_reduce(out); });
  });
  return out;
}

GraphEvaluation WholeGraph::evaluate(const GraphNet& model, const OnRanks& on_ranks) const {
  const double begin = steady_seconds();
  const Tensor out = logits(model, on_ranks).to(Device{});
  std::vector<double> sums;  // loss, correct, nodes of valid, then of test
  for (const NodeSplit split : {NodeSplit::valid, NodeSplit::test}) {
    std::vector<int64_t> places;
    std::vector<int32_t> nodes;
    for (size_t i = 0; i < own_.size(); ++i) {
      if (graph_.splits[to_size(own_[i])] != split) continue;
      places.push_back(to_int64(i));
      nodes.push_back(own_[i]);
    }
    const auto n = to_double(nodes.size());
    double loss = 0, correct = 0;
    if (!nodes.empty()) {
      const Tensor rows = Tensor::empty_on(Device{}, {std::ssize(nodes), out.shape()[1]});
      copy_rows(out.raw(), 4 * out.shape()[1], places, rows);
      const Tensor labels = labels_of(graph_, nodes);
      Tape tape({.training = false});
      loss = n * to_double(softmax_cross_entropy(tape, Var(rows), labels).value().item());
      correct = to_double(count_top_k(rows, labels, 1));
    }
    sums.insert(sums.end(), {loss, correct, n});
  }
  on_ranks([&](Communicator& comm, Ledger& ledger) {
    ledger.book(comm, {{"evaluation", PayloadKind::control, 0}}, [&] {
      const auto all = gather_values(comm, sums);
      std::ranges::fill(sums, 0.0);
      for (const std::vector<double>& of_rank : all)
        for (size_t i = 0; i < sums.size(); ++i) sums[i] += of_rank[i];
    });
  });
  const auto score = [&](size_t at) {
    const double n = sums[at + 2];
    return NodeScore{n > 0 ? sums[at] / n : NAN, n > 0 ? 100 * sums[at + 1] / n : NAN, to_int64(n)};
  };
  return {score(0), score(3), steady_seconds() - begin};
}

}  // namespace heddle
