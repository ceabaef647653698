#include "data/partition.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"
#include "core/random.h"
#include "data/lines.h"

namespace heddle {
namespace {

constexpr int kSweeps = 3;
constexpr double kSlack = 1.05;

std::vector<int32_t> random_order(int64_t nodes, uint64_t seed, uint64_t key) {
  std::vector<int32_t> order(to_size(nodes));
  std::iota(order.begin(), order.end(), 0);
  shuffle(order, 0, order.size(), Philox(seed, stream_id(Stream::partition, key)));
  return order;
}

std::vector<int32_t> divide_greedily(const Graph& graph, int parts, uint64_t seed) {
  const double capacity = std::ceil(kSlack * to_double(graph.nodes()) / parts);
  std::vector<int32_t> owners(to_size(graph.nodes()), -1);
  std::vector<double> sizes(to_size(parts), 0.0), near(to_size(parts));
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    for (const int32_t v : random_order(graph.nodes(), seed, to_size(sweep))) {
      int32_t& owner = owners[to_size(v)];
      if (owner >= 0) --sizes[to_size(owner)];
      std::ranges::fill(near, 0.001);  // without neighbours: the smallest part
      for (const int32_t u : graph.neighbours(v))
        if (owners[to_size(u)] >= 0) ++near[to_size(owners[to_size(u)])];
      const auto score = [&](int part) {
        return near[to_size(part)] * (1 - sizes[to_size(part)] / capacity);
      };
      owner = 0;
      for (int part = 1; part < parts; ++part)
        if (score(part) > score(owner)) owner = part;
      ++sizes[to_size(owner)];
    }
  }
  return owners;
}

std::vector<int32_t> read_owners(const std::string& path, int64_t nodes, int parts) {
  std::vector<int32_t> owners;
  Lines lines(path);
  while (lines.next()) {
    owners.push_back(lines.index(lines.word(), parts, "a part"));
    lines.expect(lines.word().empty() && std::ssize(owners) <= nodes, "one number for each of ",
                 nodes, " nodes, found more");
  }
  lines.expect_count(nodes, "the graph's nodes");
  return owners;
}

}  // namespace

std::vector<int32_t> partition_graph(const Graph& graph, const std::string& how, int parts,
                                     uint64_t seed) {
  const int64_t nodes = graph.nodes();
  check(parts > 0 && nodes >= parts, "partition: expected at least as many nodes as parts, found ",
        nodes, " and ", parts);
  std::vector<int32_t> owners(to_size(nodes), 0);
  if (how == "random") {
    const std::vector<int32_t> order = random_order(nodes, seed, 0);
    for (int64_t i = 0; i < nodes; ++i)
      owners[to_size(order[to_size(i)])] = static_cast<int32_t>(i % parts);
  } else if (how == "ldg") {
    owners = divide_greedily(graph, parts, seed);
  } else if (parts > 1) {
    owners = read_owners(how, nodes, parts);
  }
  for (int part = 0; part < parts; ++part)
    check(std::ranges::find(owners, part) != owners.end(), "partition ", how, ": part ", part,
          " has no nodes");
  return owners;
}

double cut_share(const Graph& graph, const std::vector<int32_t>& owners) {
  int64_t cut = 0;
  for (int64_t v = 0; v < graph.nodes(); ++v)
    for (const int32_t u : graph.neighbours(v))
      cut += owners[to_size(u)] != owners[to_size(v)] ? 1 : 0;
  return graph.ends.empty() ? 0 : to_double(cut) / to_double(std::ssize(graph.ends));
}

}  // namespace heddle
