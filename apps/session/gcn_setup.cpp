#include "apps/session/gcn_setup.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "apps/cli/format.h"
#include "apps/cli/json.h"
#include "core/error.h"
#include "core/hash.h"
#include "core/names.h"
#include "core/parse_number.h"
#include "core/random.h"
#include "data/partition.h"
#include "layers/loss.h"

namespace heddle {
namespace {

template <class T>
uint64_t hash_of(const std::vector<T>& values) {
  return hash_bytes(values.data(), values.size() * sizeof(T));
}

uint64_t hash_number(const Graph& graph) {
  std::vector<uint64_t> hashes = {hash_of(graph.starts), hash_of(graph.ends), hash_of(graph.labels),
                                  hash_of(graph.splits), hash_of(graph.features)};
  for (const std::string& name : graph.classes)
    hashes.push_back(hash_bytes(name.data(), name.size()));
  return hash_of(hashes);
}

int64_t count(const Graph& graph, NodeSplit split) {
  return std::ranges::count(graph.splits, split);
}

}  // namespace

Graph open_data(const TrainGcnOptions& o) {
  Graph graph =
      is_block_model(o.data) ? block_graph(parse_block_model(o.data)) : open_graph(o.data);
  const auto expect = [&](NodeSplit split, const char* purpose) {
    check(count(graph, split) > 0, "--data ", o.data, ": expected nodes for ", purpose,
          " with labels, found none");
  };
  if (o.training) expect(NodeSplit::train, "training");
  if (o.training || o.evaluate) {
    expect(NodeSplit::valid, "validation");
    expect(NodeSplit::test, "tests");
  }
  return graph;
}

std::string graph_hash(const Graph& graph) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash_number(graph)));
  return text;
}

GraphCard read_card(TrainGcnOptions& o, FlagTable& flags) {
  if (o.init.empty()) return {};
  GraphCard card = read_graph_card(WeightsFile(o.init));
  const auto suggest = [&](const char* name, const std::string& value) {
    flags.suggest(name, value, o.init + ": " + name);
  };
  suggest("model", card.model);
  suggest("layers", std::to_string(card.layers));
  if (card.layers > 1) suggest("hidden", std::to_string(card.hidden));
  return card;
}

GraphCard make_card(const TrainGcnOptions& o, const GraphCard& loaded, const Graph& graph) {
  if (loaded.features > 0) {
    check(loaded.features == graph.feature_count, o.init, ": expects ", loaded.features,
          " features, and ", graph.name, " has ", graph.feature_count);
    const std::vector<std::string>&a = loaded.classes, &b = graph.classes;
    const size_t at =
        to_size(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
    const auto name = [at](const std::vector<std::string>& classes) {
      return at < classes.size() ? "'" + classes[at] + "'" : "missing";
    };
    check(a.empty() || a == b, o.init, " has other classes than ", graph.name, ": class ", at,
          " is ", name(a), " and ", name(b));
    check(loaded.class_count == std::ssize(b), o.init, " has ", loaded.class_count,
          " classes, and ", graph.name, " has ", b.size());
  }
  return {.model = o.model,
          .layers = o.layers,
          .hidden = o.hidden,
          .features = graph.feature_count,
          .class_count = std::ssize(graph.classes),
          .classes = graph.classes};
}

GraphNetOptions network_options(const TrainGcnOptions& o, const GraphCard& card) {
  return {.conv = card.model == "gcn" ? GraphConv::gcn : GraphConv::sage,
          .features = card.features,
          .hidden = card.hidden,
          .classes = card.class_count,
          .layers = card.layers,
          .dropout = to_float(o.dropout)};
}

std::vector<int32_t> divide(const TrainGcnOptions& o, const Graph& graph, int ranks) {
  std::vector<int32_t> owners =
      partition_graph(graph, o.partition, ranks, static_cast<uint64_t>(o.seed));
  std::vector<int64_t> training(to_size(ranks), 0);
  for (size_t v = 0; v < owners.size(); ++v)
    if (graph.splits[v] == NodeSplit::train) ++training[to_size(owners[v])];
  for (size_t rank = 0; rank < training.size() && o.training; ++rank)
    check(training[rank] > 0, "--partition ", o.partition, ": learner ", rank,
          " has no nodes for training");
  return owners;
}

void check_same_graph(const Graph& graph, const std::vector<int32_t>& owners, Communicator& comm) {
  if (comm.size() == 1) return;
  const auto all = gather_values(comm, std::vector{hash_number(graph), hash_of(owners)});
  for (size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank] != all[0])
      throw InputError(concat("--data: rank ", rank, " has another ",
                              all[rank][0] != all[0][0] ? "graph" : "partition", " than rank 0"));
}

NodeBatches::NodeBatches(const TrainGcnOptions& o, const Graph& graph,
                         const std::vector<int32_t>& owners, int rank)
    : seed_(static_cast<uint64_t>(o.seed)) {
  std::vector<int64_t> sizes;  // of the ranks
  for (size_t v = 0; v < owners.size(); ++v) {
    if (graph.splits[v] != NodeSplit::train) continue;
    const auto owner = to_size(owners[v]);
    if (owner >= sizes.size()) sizes.resize(owner + 1, 0);
    ++sizes[owner];
    if (owners[v] == rank) own_.push_back(static_cast<int32_t>(v));
  }
  check(!own_.empty(), "nodes for training: expected some, found none");
  size_ = std::max<int64_t>(1, std::ranges::min(sizes) / o.batch_size);
  nodes_ = std::min(o.batch_size, std::ssize(own_));
  for (const int64_t n : sizes)
    read_ += std::min(o.batch_size, n) * (size_ / o.accumulate * o.accumulate);
}

std::vector<int32_t> NodeBatches::batch(int64_t epoch, int64_t index) {
  check(index >= 0 && index < size_, "batch: expected a number below ", size_, ", found ", index);
  if (epoch != epoch_) {
    order_ = own_;
    shuffle(order_, 0, order_.size(),
            Philox(seed_, stream_id(Stream::shuffle, static_cast<uint64_t>(epoch))));
    epoch_ = epoch;
  }
  const auto begin = order_.begin() + index * nodes_;
  return {begin, begin + nodes_};
}

StepPlan plan_steps(const TrainGcnOptions& o, const NodeBatches& train) {
  return plan_updates(o, train.size(), concat("batches of ", o.batch_size, " nodes"));
}

nlohmann::ordered_json identity(const TrainGcnOptions& o, const Graph& graph) {
  return {{"program", "train_gcn"},  {"model", o.model},
          {"layers", o.layers},      {"hidden", o.hidden},
          {"data", graph.name},      {"nodes", graph.nodes()},
          {"edges", graph.edges()},  {"graph's hash", graph_hash(graph)},
          {"optimizer", o.optimizer}};
}

nlohmann::ordered_json node_score_json(const NodeScore& score) {
  if (score.nodes == 0) return {{"valid_loss", nullptr}};
  return {{"valid_loss", score.loss}, {"acc1", score.acc1}, {"nodes", score.nodes}};
}

NodeScore parse_node_score(const nlohmann::json& json, const char* loss_key) {
  return {.loss = number_at(json, loss_key),
          .acc1 = number_at(json, "acc1"),
          .nodes = whole_at(json, "nodes")};
}

std::string describe(const TrainGcnOptions& o, const ParameterStore& store, const Graph& graph,
                     const std::vector<int32_t>& owners, const Communicator& comm) {
  std::string out = concat(o.model, ", ", o.layers, " layers, ", describe_size(store), " | ",
                           graph.name, ", ", graph.nodes(), " nodes, ", graph.edges(), " edges, ",
                           graph.feature_count, " features, ", graph.classes.size(), " classes, ",
                           count(graph, NodeSplit::train), " + ", count(graph, NodeSplit::valid),
                           " + ", count(graph, NodeSplit::test), " nodes with labels");
  if (graph.loops + graph.repeated > 0)
    out += concat(", without ", graph.loops, " loops and ", graph.repeated, " repeated edges");
  if (o.training) {
    const NodeBatches batches(o, graph, owners, 0);
    const int64_t read = batches.nodes_read(), all = count(graph, NodeSplit::train);
    if (read < all - all / 4)
      out += concat(", of which an epoch reads ", 100 * read / all,
                    " %: full batches, as many as every learner has");
  }
  if (comm.size() > 1)
    out += concat(" | ", o.partition, ", ", decimals(100 * cut_share(graph, owners), 1),
                  " % of the edges cut, skew ", o.skew);
  return out + describe_machine_use(o, store, comm);
}

std::string describe_plan(const TrainGcnOptions& o, const Graph& graph, Context& context,
                          const GraphNet& model, ParameterStore& store, NeighbourSampler& sampler,
                          NodeBatches& train) {
  std::vector<int32_t> nodes = train.batch(0, 0);
  const auto step_bytes = [&](int64_t rows) {
    const auto used = std::span(nodes).first(to_size(std::min(rows, std::ssize(nodes))));
    SampledBatch batch = sampler.sample(used, 0);
    const Device device = context.device();
    for (SparseMatrix& a : batch.mix) a = a.to(device);
    const Tensor labels = Tensor::from_integers(std::vector<int32_t>(used.size()));
    const NodeFeatures x = node_features(graph, feature_rows(graph, batch.inputs), true).to(device);
    return measure_step_bytes(context, store, [&](Tape& tape) {
      return softmax_cross_entropy(tape, model.forward(tape, x, batch.mix), labels);
    });
  };
  return format_plan(
      o, store,
      {.steps = plan_steps(o, train),
       .model = "model",
       .model_name = o.model,
       .unit = "node",
       .rows = std::max<int64_t>(1, std::min<int64_t>(o.batch_size, std::ssize(nodes)) - 2),
       .most_rows = std::ssize(nodes),
       .step_bytes = step_bytes});
}

std::string config_text(const TrainGcnOptions& o, const FlagTable& flags) {
  return format_config("train_gcn", concat("default for ", o.optimizer), flags);
}

std::vector<int32_t> find_nodes(const TrainGcnOptions& o, const Graph& graph) {
  std::vector<int32_t> out;
  for (const std::string& text : o.predict) {
    const auto named = std::ranges::find(graph.names, text);
    int64_t node = named - graph.names.begin();
    if (named == graph.names.end()) {
      node = parse_number<int64_t>(text).value_or(-1);
      const std::string nearest = graph.names.empty() ? "" : nearest_name(text, graph.names);
      check(node >= 0 && node < graph.nodes(), "--predict ", printable(text), ": ", graph.name,
            " has no such node; expected ",
            graph.names.empty() ? "" : concat("a name, such as ", nearest, ", or "),
            "a number from 0 to ", graph.nodes() - 1);
    }
    out.push_back(static_cast<int32_t>(node));
  }
  return out;
}

}  // namespace heddle
