#include "data/graph.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/parse_number.h"
#include "core/pool.h"
#include "core/random.h"
#include "data/lines.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxNodes = 1 << 30, kMaxFeatures = 1 << 20;
constexpr int64_t kWordsOfClass = 16;

void read_labels(const fs::path& path, Graph& graph) {
  std::vector<std::string> words;
  std::map<std::string, int32_t> ids;
  for (Lines lines(path.string()); lines.next();) {
    lines.expect(std::ssize(words) < kMaxNodes, "at most ", kMaxNodes, " nodes");
    lines.expect(!lines.line().empty(), "a class or -, found an empty line");
    lines.expect_text();
    words.emplace_back(lines.line());
    if (words.back() != "-") ids.emplace(words.back(), 0);
  }
  check(!words.empty(), path.string(), ": expected a line for each node, found none");
  check(ids.size() > 1, path.string(), ": expected at least two classes, found ", ids.size());
  for (auto& [name, id] : ids) {
    id = to_int(graph.classes.size());
    graph.classes.push_back(name);
  }
  for (const std::string& word : words) graph.labels.push_back(word == "-" ? -1 : ids.at(word));
}

struct Feature {
  int32_t node, index;
  float value;
};

// Fills graph.features from what differs from 0.
void set_features(Graph& graph, int64_t nodes, const std::vector<Feature>& given) {
  graph.bits =
      std::ranges::all_of(given, [](const Feature& f) { return f.value == 0 || f.value == 1; });
  check(nodes * graph.row_bytes() <= available_memory(), graph.name, ": ", nodes, " nodes of ",
        graph.feature_count, " features need more memory than this machine has left");
  graph.features.assign(to_size(nodes * graph.row_bytes()), std::byte{0});
  for (const Feature& f : given) {
    std::byte* row = graph.features.data() + f.node * graph.row_bytes();
    if (graph.bits)
      row[f.index / 8] |= std::byte{f.value != 0} << f.index % 8;
    else
      std::memcpy(row + 4 * to_int64(f.index), &f.value, sizeof f.value);
  }
}

void read_features(const fs::path& path, Graph& graph) {
  const int64_t nodes = std::ssize(graph.labels);
  std::vector<Feature> given;
  Lines lines(path.string());
  for (int32_t node = 0; lines.next(); ++node) {
    lines.expect(node < nodes, nodes, " lines, as in labels.txt");
    const auto first = std::ssize(given);
    for (std::string_view word = lines.word(); !word.empty(); word = lines.word()) {
      const size_t colon = std::min(word.find(':'), word.size());
      Feature f{node, lines.index(word.substr(0, colon), kMaxFeatures, "a feature's index"), 1};
      if (colon < word.size()) {
        f.value = parse_number<float>(word.substr(colon + 1)).value_or(NAN);
        lines.expect(std::isfinite(f.value), "a finite number after ':', found '",
                     printable(word, 40), "'");
      }
      graph.feature_count = std::max<int64_t>(graph.feature_count, f.index + 1);
      given.push_back(f);
    }
    std::sort(given.begin() + first, given.end(),
              [](const Feature& a, const Feature& b) { return a.index < b.index; });
    const auto twice =
        std::adjacent_find(given.begin() + first, given.end(),
                           [](const Feature& a, const Feature& b) { return a.index == b.index; });
    lines.expect(twice == given.end(), "each feature once, found ",
                 twice == given.end() ? 0 : twice->index, " twice");
  }
  lines.expect_count(nodes, "as in labels.txt");
  check(graph.feature_count > 0, path.string(), ": expected features, found none");
  set_features(graph, nodes, given);
}

void read_edges(const fs::path& path, Graph& graph) {
  const int64_t nodes = std::ssize(graph.labels);
  std::vector<std::pair<int32_t, int32_t>> edges;
  for (Lines lines(path.string()); lines.next();) {
    if (lines.line().empty() || lines.line()[0] == '#') continue;
    const int32_t from = lines.index(lines.word(), nodes, "a node");
    const int32_t to = lines.index(lines.word(), nodes, "a second node");
    lines.expect(lines.word().empty(), "two nodes, found more");
    edges.emplace_back(from, to);
  }
  set_edges(graph, nodes, edges);
}

// Half of the nodes with labels for training, a tenth for validation, the rest for tests.
void draw_split(Graph& graph, uint64_t seed) {
  std::vector<int32_t> known;
  for (int32_t v = 0; v < std::ssize(graph.labels); ++v)
    if (graph.labels[to_size(v)] >= 0) known.push_back(v);
  shuffle(known, 0, known.size(), Philox(seed, stream_id(Stream::shuffle)));
  graph.splits.assign(graph.labels.size(), NodeSplit::none);
  const size_t train = (known.size() + 1) / 2, valid = train + (known.size() + 9) / 10;
  for (size_t i = 0; i < known.size(); ++i)
    graph.splits[to_size(known[i])] = i < train   ? NodeSplit::train
                                      : i < valid ? NodeSplit::valid
                                                  : NodeSplit::test;
}

void read_split(const fs::path& path, Graph& graph) {
  const std::map<std::string_view, NodeSplit> kinds = {{"train", NodeSplit::train},
                                                       {"valid", NodeSplit::valid},
                                                       {"test", NodeSplit::test},
                                                       {"-", NodeSplit::none}};
  const auto nodes = graph.labels.size();
  Lines lines(path.string());
  while (lines.next()) {
    const auto kind = kinds.find(lines.line());
    lines.expect(kind != kinds.end(), "train, valid, test or -, found '",
                 printable(lines.line(), 40), "'");
    lines.expect(graph.splits.size() < nodes, nodes, " lines, as in labels.txt");
    lines.expect(kind->second == NodeSplit::none || graph.labels[graph.splits.size()] >= 0,
                 "-, because the node has no label, found ", kind->first);
    graph.splits.push_back(kind->second);
  }
  lines.expect_count(to_int64(nodes), "as in labels.txt");
}

void read_names(const fs::path& path, Graph& graph) {
  Lines lines(path.string());
  while (lines.next()) {
    lines.expect_text();
    graph.names.emplace_back(lines.line());
  }
  lines.expect_count(std::ssize(graph.labels), "as in labels.txt");
}

}  // namespace

void set_edges(Graph& graph, int64_t nodes, const std::vector<std::pair<int32_t, int32_t>>& edges) {
  std::vector<std::pair<int32_t, int32_t>> both;
  both.reserve(2 * edges.size());
  for (const auto& [from, to] : edges) {
    if (from == to) continue;
    both.emplace_back(from, to);
    both.emplace_back(to, from);
  }
  graph.loops = std::ssize(edges) - std::ssize(both) / 2;
  std::ranges::sort(both);
  const auto again = std::unique(both.begin(), both.end());
  graph.repeated = (both.end() - again) / 2;
  both.erase(again, both.end());
  graph.starts.assign(to_size(nodes) + 1, 0);
  graph.ends.clear();
  graph.ends.reserve(both.size());
  for (const auto& [from, to] : both) {
    ++graph.starts[to_size(from) + 1];
    graph.ends.push_back(to);
  }
  for (size_t v = 0; v < to_size(nodes); ++v) graph.starts[v + 1] += graph.starts[v];
}

Graph open_graph(const fs::path& folder) {
  Graph graph;
  graph.name = fs::absolute(folder).lexically_normal().filename().string();
  if (graph.name.empty()) graph.name = folder.parent_path().filename().string();
  read_labels(folder / "labels.txt", graph);
  read_features(folder / "features.txt", graph);
  read_edges(folder / "edges.txt", graph);
  const auto is_there = [&](const char* name) {  // a link that leads nowhere is there
    std::error_code error;
    return fs::symlink_status(folder / name, error).type() != fs::file_type::not_found;
  };
  if (is_there("split.txt"))
    read_split(folder / "split.txt", graph);
  else
    draw_split(graph, 0);
  if (is_there("names.txt")) read_names(folder / "names.txt", graph);
  return graph;
}

Graph block_graph(const BlockGraphOptions& o) {
  check(o.classes >= 2 && o.nodes >= 2 * o.classes && o.nodes <= kMaxNodes,
        "block graph: expected at least 2 classes of 2 nodes, found ", o.nodes, " nodes, ",
        o.classes, " classes");
  check(o.degree >= 0 && o.degree <= 1000 && o.between >= 0 && o.between <= 1,
        "block graph: expected a degree from 0 to 1000 and a share from 0 to 1, found ", o.degree,
        " and ", o.between);
  check(o.words >= 0 && o.words <= kWordsOfClass && o.own >= 0 && o.own <= 1,
        "block graph: expected 0 to ", kWordsOfClass, " words and a probability, found ", o.words,
        " and ", o.own);
  Graph graph;
  graph.name = "sbm";
  graph.feature_count = o.classes * kWordsOfClass;
  // Blocks are nodes v with equal v mod classes.
  const auto size = [&](int64_t block) { return (o.nodes - block + o.classes - 1) / o.classes; };
  const Philox edge_rng(o.seed, stream_id(Stream::shapes, 1)),
      word_rng(o.seed, stream_id(Stream::shapes, 2));
  uint64_t next = 0;
  const auto below = [&](const Philox& rng, int64_t bound) {
    return to_int64(rng.below(next++, static_cast<uint32_t>(bound)));
  };
  std::vector<std::pair<int32_t, int32_t>> edges(
      to_size(std::llround(o.degree * to_double(o.nodes) / 2)));
  for (auto& [from, to] : edges) {
    const int64_t v = below(edge_rng, o.nodes);
    int64_t block = v % o.classes;
    if (edge_rng.uniform(next++) < o.between)
      block = (block + 1 + below(edge_rng, o.classes - 1)) % o.classes;
    from = static_cast<int32_t>(v);
    to = static_cast<int32_t>(block + o.classes * below(edge_rng, size(block)));
  }
  set_edges(graph, o.nodes, edges);

  next = 0;
  std::vector<Feature> given;
  for (int64_t v = 0; v < o.nodes; ++v) {
    graph.labels.push_back(static_cast<int32_t>(v % o.classes));
    for (int64_t i = 0; i < o.words; ++i) {
      const bool own = word_rng.uniform(next++) < o.own;
      const int64_t of = own ? v % o.classes : below(word_rng, o.classes);
      const int64_t word = of * kWordsOfClass + below(word_rng, kWordsOfClass);
      given.push_back({static_cast<int32_t>(v), static_cast<int32_t>(word), 1});
    }
  }
  set_features(graph, o.nodes, given);
  for (int64_t c = 0; c < o.classes; ++c) graph.classes.push_back(concat("block ", c));
  draw_split(graph, o.seed);
  return graph;
}

}  // namespace heddle
