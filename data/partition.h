// Divides the nodes of a graph among the ranks that train on it.
//
//   std::vector<int32_t> owners = partition_graph(graph, "ldg", 4, seed);
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/graph.h"

namespace heddle {

// Returns the part of each node, in [0, parts), the same for equal arguments. `how`:
//   random   parts of equal size
//   ldg      linear deterministic greedy (Stanton and Kliot, 2012), three sweeps in random order:
//            a node goes where most of its neighbours are, times the part's free share; a part
//            has at most 1.05 times its share of the nodes
//   a path   a file with one number for each node and line, as METIS writes
// Throws InputError for fewer nodes than parts, a file that does not fit the graph, and a part
// without nodes.
std::vector<int32_t> partition_graph(const Graph& graph, const std::string& how, int parts,
                                     uint64_t seed);

// Returns the share of edges between two parts; 0 without edges.
double cut_share(const Graph& graph, const std::vector<int32_t>& owners);

}  // namespace heddle
