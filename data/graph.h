// Graph: nodes with features, some with labels, and undirected edges.
//
//   Graph graph = open_graph("debian");        // a folder
//   Graph drawn = block_graph({.nodes = 8000, .classes = 8});
//
// A folder holds text files with one line for each node, in the order of their numbers, and one
// line for each edge:
//
//   labels.txt     the class's name; "-": unknown
//   features.txt   what differs from 0: "3 17 200" or "3:0.5 17:-1" (index from 0, value or 1)
//   edges.txt      two nodes' numbers, from 0; lines that begin with # are comments
//   split.txt      optional: train, valid, test or "-"; without it half of the nodes with labels
//                  are for training and a tenth for validation, drawn from a fixed seed
//   names.txt      optional: the node's name
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/scalar.h"

namespace heddle {

enum class NodeSplit : uint8_t { none, train, valid, test };

struct Graph {
  std::string name;
  std::vector<int64_t> starts = {0};  // (nodes + 1), as in SparseMatrix
  std::vector<int32_t> ends;          // of edges, in both directions: ascending for each node
  // One row of row_bytes() for each node. bits: all features are 0 or 1, and bit f % 8 of byte f /
  // 8 is feature f; otherwise they are f32.
  std::vector<std::byte> features;
  int64_t feature_count = 0;
  bool bits = false;
  std::vector<int32_t> labels;  // index of the class; -1: unknown
  std::vector<NodeSplit> splits;
  std::vector<std::string> classes;  // names, sorted
  std::vector<std::string> names;    // of nodes; empty: they have numbers only
  int64_t loops = 0, repeated = 0;   // edges that were left out: from a node to itself, or again

  int64_t nodes() const { return std::ssize(starts) - 1; }
  int64_t edges() const { return std::ssize(ends) / 2; }
  int64_t row_bytes() const { return bits ? ceil_div(feature_count, 8) : 4 * feature_count; }
  int64_t degree(int64_t node) const { return starts[node + 1] - starts[node]; }
  std::span<const int32_t> neighbours(int64_t node) const {
    return {ends.data() + starts[node], to_size(degree(node))};
  }
};

// Opens a folder. An InputError names file and line, what was expected and what was found, for a
// file that is missing or has more or fewer lines, a number out of range, a feature that is given
// twice or is not finite, and a node of the split without a label. An edge from a node to itself or
// one that is given again, in either direction, is left out and counted.
Graph open_graph(const std::filesystem::path& folder);

// A stochastic block model with words: classes are blocks; an edge joins two random nodes of a
// block, or of two. Features are words, 16 for each class; a node has at most `words` of them, each
// of its own class with probability `own`, else of any. A function of the options.
struct BlockGraphOptions {
  int64_t nodes = 8000, classes = 8;
  double degree = 8;     // edges at a node, in the mean
  double between = 0.3;  // share of edges between two blocks
  int64_t words = 4;
  double own = 0.3;
  uint64_t seed = 0;
};
// Throws InputError for options out of range.
Graph block_graph(const BlockGraphOptions& options = {});

// Sets starts and ends from pairs of node numbers in [0, nodes), and counts what is left out.
void set_edges(Graph& graph, int64_t nodes, const std::vector<std::pair<int32_t, int32_t>>& edges);

}  // namespace heddle
