// Makes graph, partition, batches and network from the options of train_gcn, and describes them for
// the first line, --dry-run and checkpoints.
//
//   const Graph graph = open_data(o);
//   const NodeBatches batches(o, graph, owners, comm.rank());
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "apps/cli/gcn_options.h"
#include "apps/models/evaluate_graph.h"
#include "apps/models/graph_card.h"
#include "apps/session/run_plan.h"
#include "comm/communicator.h"
#include "core/context.h"
#include "core/parameters.h"

namespace heddle {

// Opens the graph that --data names. Throws InputError.
Graph open_data(const TrainGcnOptions& o);

// Reads how the network of --init is built, so that no flag has to be repeated; an empty card
// without --init. Throws InputError.
GraphCard read_card(TrainGcnOptions& o, FlagTable& flags);
// Returns the card of the network for this graph. Throws InputError if `loaded` has other classes
// or another number of features.
GraphCard make_card(const TrainGcnOptions& o, const GraphCard& loaded, const Graph& graph);
GraphNetOptions network_options(const TrainGcnOptions& o, const GraphCard& card);

// Returns the hash of edges, features, classes, labels and split, 16 hexadecimal digits.
std::string graph_hash(const Graph& graph);

// Divides the nodes among ranks, by --partition. Throws InputError for a rank without nodes for
// training.
std::vector<int32_t> divide(const TrainGcnOptions& o, const Graph& graph, int ranks);
// Throws Error unless all ranks have the same graph and partition. Collective.
void check_same_graph(const Graph& graph, const std::vector<int32_t>& owners, Communicator& comm);

// The nodes for training that a rank owns, in batches, shuffled anew in each epoch.
class NodeBatches {
 public:
  NodeBatches(const TrainGcnOptions& o, const Graph& graph, const std::vector<int32_t>& owners,
              int rank);
  // Returns the batches of an epoch: the fewest that a rank can fill, at least one.
  int64_t size() const { return size_; }
  int64_t nodes_read() const { return read_; }  // in an epoch, by all ranks
  // Returns the nodes of a batch. Throws InputError for an index that is not below size().
  std::vector<int32_t> batch(int64_t epoch, int64_t index);

 private:
  std::vector<int32_t> own_, order_;
  uint64_t seed_;
  int64_t size_, nodes_, read_ = 0, epoch_ = -1;  // nodes_: in a batch of this rank
};

StepPlan plan_steps(const TrainGcnOptions& o, const NodeBatches& train);
// Returns what must be equal for a run to resume: network and graph.
nlohmann::ordered_json identity(const TrainGcnOptions& o, const Graph& graph);
// Returns the last validation, as a checkpoint keeps it.
nlohmann::ordered_json node_score_json(const NodeScore& score);
// Reads a score back, from a checkpoint ("valid_loss") or a line of metrics ("loss").
NodeScore parse_node_score(const nlohmann::json& json, const char* loss_key);

// Returns the first line of every run: network, graph, partition, device, threads, seed.
std::string describe(const TrainGcnOptions& o, const ParameterStore& store, const Graph& graph,
                     const std::vector<int32_t>& owners, const Communicator& comm);
// Returns the text of --dry-run, or one JSON object with --json.
std::string describe_plan(const TrainGcnOptions& o, const Graph& graph, Context& context,
                          const GraphNet& model, ParameterStore& store, NeighbourSampler& sampler,
                          NodeBatches& train);
// Returns the resolved configuration as TOML, with a remark on each default.
std::string config_text(const TrainGcnOptions& o, const FlagTable& flags);

// Returns the numbers of the nodes that --predict names. Throws InputError for a name or number
// that the graph lacks.
std::vector<int32_t> find_nodes(const TrainGcnOptions& o, const Graph& graph);

}  // namespace heddle
