// Arbitrary files of a graph: each is read, or refused with an InputError that names it; in an
// accepted graph every edge has its reverse, and all of its nodes can be sampled. A byte of 0 to 4
// says which file the bytes up to the next such byte belong to; files without bytes are sound.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>

#include "core/context.h"
#include "core/error.h"
#include "data/graph.h"
#include "data/neighbour_sampler.h"
#include "data/partition.h"

namespace {

using namespace heddle;

void require(bool ok) {
  if (!ok) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Context context({.threads = 1});
  static const std::filesystem::path folder = "/tmp/fuzz_graph-" + std::to_string(std::rand());
  std::filesystem::create_directories(folder);
  constexpr std::array kFiles = {"labels.txt", "features.txt", "edges.txt", "split.txt", "parts"};
  std::array<std::string, kFiles.size()> text = {};
  size_t file = 2;
  for (size_t i = 0; i < size; ++i)
    if (data[i] < kFiles.size())
      file = data[i];
    else
      text[file] += static_cast<char>(data[i]);
  if (text[0].empty()) text[0] = "a\nb\n-\na\n";
  if (text[1].empty()) text[1] = "0\n1 2\n\n2\n";
  for (size_t i = 0; i < kFiles.size(); ++i) {
    if (i == 3 && text[i].empty())
      std::filesystem::remove(folder / kFiles[i]);
    else
      std::ofstream(folder / kFiles[i], std::ios::binary) << text[i];
  }
  try {
    const Graph graph = open_graph(folder);
    std::vector<int32_t> nodes(static_cast<size_t>(graph.nodes()));
    std::iota(nodes.begin(), nodes.end(), 0);
    for (const int32_t v : nodes)
      for (const int32_t u : graph.neighbours(v))
        require(u != v && std::ranges::binary_search(graph.neighbours(u), v));
    const std::string how = text[4].empty() ? "ldg" : (folder / kFiles[4]).string();
    const std::vector<int32_t> owners = partition_graph(graph, how, 2, 1);
    NeighbourSampler sampler(graph, owners, 0, {.fanout = {2, 1}, .variance_budget = 1.5});
    require(sampler.sample(nodes, 0).inputs.size() == nodes.size());
  } catch (const InputError& error) {
    const std::string what = error.what();
    require(what.find("fuzz_graph-") != std::string::npos || what.starts_with("partition"));
  }
  return 0;
}
