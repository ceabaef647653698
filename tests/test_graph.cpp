// Graphs: files, what is said about broken ones, the block model, and partitions.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "data/graph.h"
#include "data/partition.h"
#include "tests/data_files.h"

namespace heddle {
namespace {

Bytes bytes(const std::string& text) { return {text.begin(), text.end()}; }

struct Files {
  std::string labels = "b\na\n-\nb\n", features = "0 2\n\n1\n2\n", edges = "0 1\n1 2\n# 2 3\n";
  std::string split = {}, names = {};
};

Graph open(const Files& files) {
  TempFolder folder;
  folder.write("labels.txt", bytes(files.labels));
  folder.write("features.txt", bytes(files.features));
  folder.write("edges.txt", bytes(files.edges));
  if (!files.split.empty()) folder.write("split.txt", bytes(files.split));
  if (!files.names.empty()) folder.write("names.txt", bytes(files.names));
  return open_graph(folder.path());
}

std::string error(const Files& files) {
  return input_error([&] { (void)open(files); });
}

using Ints = std::vector<int32_t>;

Ints neighbours(const Graph& graph, int64_t node) {
  const auto all = graph.neighbours(node);
  return {all.begin(), all.end()};
}

float feature(const Graph& graph, int64_t node, int64_t index) {
  const std::byte* row = graph.features.data() + node * graph.row_bytes();
  if (graph.bits) return to_float(to_int(row[index / 8] >> index % 8 & std::byte{1}));
  float value = 0;
  std::memcpy(&value, row + 4 * index, sizeof value);
  return value;
}

// Two blocks of 500 nodes, with many edges inside and few between.
Graph two_blocks() {
  return block_graph({.nodes = 1000, .classes = 2, .degree = 16, .between = 0.03, .seed = 5});
}

}  // namespace

TEST_CASE("graph: a folder's files") {
  const Graph graph = open({});
  CHECK(graph.nodes() == 4);
  CHECK(graph.edges() == 2);
  CHECK(neighbours(graph, 0) == Ints{1});
  CHECK(neighbours(graph, 1) == Ints{0, 2});
  CHECK(neighbours(graph, 3).empty());
  CHECK(graph.classes == std::vector<std::string>{"a", "b"});
  CHECK(graph.labels == Ints{1, 0, -1, 1});
  CHECK(graph.feature_count == 3);
  CHECK(graph.bits);
  for (int64_t v = 0; v < 4; ++v)
    for (int64_t f = 0; f < 3; ++f)
      CHECK(feature(graph, v, f) ==
            ((v == 0 && f != 1) || (v == 2 && f == 1) || (v == 3 && f == 2)));
  // Half of three labelled nodes, rounded up; then a tenth, rounded up.
  CHECK(std::ranges::count(graph.splits, NodeSplit::train) == 2);
  CHECK(std::ranges::count(graph.splits, NodeSplit::valid) == 1);
  CHECK(graph.splits[2] == NodeSplit::none);
}

TEST_CASE("graph: values, names, a split, loops and repeated edges, Windows line ends") {
  const Graph graph = open({.labels = "x y\r\nz\r\n",
                            .features = "1:-2.5 0:1\r\n\r\n",
                            .edges = "0 0\r\n1 0\r\n0 1\r\n0\t1\r\n",
                            .split = "train\r\ntest\r\n",
                            .names = "first\nsecond one\n"});
  CHECK_FALSE(graph.bits);
  CHECK(feature(graph, 0, 0) == 1);
  CHECK(feature(graph, 0, 1) == -2.5f);
  CHECK(feature(graph, 1, 1) == 0);
  CHECK(graph.edges() == 1);
  CHECK(graph.loops == 1);
  CHECK(graph.repeated == 2);
  CHECK(graph.classes == std::vector<std::string>{"x y", "z"});
  CHECK(graph.splits == std::vector{NodeSplit::train, NodeSplit::test});
  CHECK(graph.names[1] == "second one");
}

TEST_CASE("graph: features of 0 and 1 stay bits; a byte order mark is no text") {
  const Graph graph = open({.labels = "\xef\xbb\xbf"
                                      "b\na\n",
                            .features = "0:0 1:1\n2\n",
                            .edges = "0 1\n"});
  CHECK(graph.bits);
  CHECK(graph.classes == std::vector<std::string>{"a", "b"});
  CHECK(feature(graph, 0, 0) == 0);
  CHECK(feature(graph, 0, 1) == 1);
  CHECK(feature(graph, 1, 2) == 1);
}

TEST_CASE("graph: errors name the file, the line and what was found") {
  const auto expect = [](const Files& files, const std::string& words) {
    const std::string message = error(files);
    CAPTURE(message);
    CHECK(message.find(words) != std::string::npos);
  };
  expect({.edges = "0 1\n1 4\n"},
         "edges.txt: line 2: expected a second node from 0 to 3, found '4'");
  expect({.edges = "-1 1\n"}, "edges.txt: line 1: expected a node from 0 to 3, found '-1'");
  expect({.edges = "0\n"}, "line 1: expected a second node from 0 to 3, found ''");
  expect({.edges = "0 1 2\n"}, "line 1: expected two nodes, found more");
  expect({.edges = "0 99999999999999999999\n"}, "expected a second node from 0 to 3");
  expect({.features = "0\n0\n0\n"}, "features.txt: expected 4 lines, as in labels.txt, found 3");
  expect({.features = "0\n0\n0\n0\n0\n"}, "features.txt: line 5: expected 4 lines");
  expect({.features = "0:nan\n\n\n\n"},
         "line 1: expected a finite number after ':', found '0:nan'");
  expect({.features = "\n0:inf\n\n\n"}, "line 2: expected a finite number");
  expect({.features = "0:\n\n\n\n"}, "line 1: expected a finite number");
  expect({.features = "0:1x\n\n\n\n"}, "line 1: expected a finite number");
  expect({.features = "1 2 1:3\n\n\n\n"}, "line 1: expected each feature once, found 1 twice");
  expect({.features = "1048576\n\n\n\n"}, "line 1: expected a feature's index from 0 to 1048575");
  expect({.features = "\n\n\n\n"}, "features.txt: expected features, found none");
  expect({.labels = "a\n\nb\na\n"},
         "labels.txt: line 2: expected a class or -, found an empty line");
  expect({.labels = "a\n\xe9t\xe9\nb\na\n"},
         "line 2: expected UTF-8 text without control characters, found byte 233");
  expect({.labels = "a\n\x1b[31mred\nb\na\n"}, "found byte 27");
  expect({.names = "a\nb\nc\nd\x01\n"}, "names.txt: line 4: expected UTF-8 text");
  CHECK(open({.labels = "\u00e9t\u00e9\na\n-\na\n"}).classes[1] == "\u00e9t\u00e9");
  expect({.labels = "a\na\na\na\n"}, "labels.txt: expected at least two classes, found 1");
  expect({.labels = ""}, "labels.txt: expected a line for each node");
  expect({.split = "train\nvalid\ntest\ntest\n"},
         "split.txt: line 3: expected -, because the node has no label, found test");
  expect({.split = "train\nvalid\n-\nTest\n"},
         "split.txt: line 4: expected train, valid, test or -");
  expect({.split = "train\n"}, "split.txt: expected 4 lines");
  expect({.split = "train\n-\n-\n-\n-\n"}, "split.txt: line 5: expected 4 lines");
  expect({.names = "a\n"}, "names.txt: expected 4 lines");
  TempFolder linked;  // a split that cannot be read is not replaced by another
  linked.write("labels.txt", bytes("a\nb\n"));
  linked.write("features.txt", bytes("0\n0\n"));
  linked.write("edges.txt", {});
  fs::create_symlink("nowhere", linked.path() / "split.txt");
  CHECK(input_error([&] { (void)open_graph(linked.path()); }).find("split.txt") !=
        std::string::npos);
  TempFolder folder;
  CHECK(input_error([&] { (void)open_graph(folder.path()); }).find("labels.txt") !=
        std::string::npos);
}

TEST_CASE(
    "graph: the block model has the shares that were asked for, and depends on its seed only") {
  const BlockGraphOptions options{.nodes = 4000, .classes = 5, .degree = 12, .between = 0.2};
  const Graph graph = block_graph(options), again = block_graph(options);
  CHECK(graph.ends == again.ends);
  CHECK(graph.features == again.features);
  CHECK(graph.splits == again.splits);
  CHECK(graph.edges() + graph.loops + graph.repeated == 24000);
  int64_t between = 0, words = 0, own = 0;
  for (int64_t v = 0; v < graph.nodes(); ++v) {
    const auto edges = graph.neighbours(v);
    CHECK(std::ranges::is_sorted(edges));
    CHECK(std::ranges::adjacent_find(edges) == edges.end());
    for (const int32_t u : edges) {
      CHECK(std::ranges::binary_search(graph.neighbours(u), v));  // both directions
      between += graph.labels[to_size(u)] != graph.labels[to_size(v)] ? 1 : 0;
    }
    for (int64_t f = 0; f < graph.feature_count; ++f) {
      words += feature(graph, v, f) == 1 ? 1 : 0;
      own += feature(graph, v, f) == 1 && f / 16 == graph.labels[to_size(v)] ? 1 : 0;
    }
  }
  CHECK(to_double(between) / to_double(2 * graph.edges()) == doctest::Approx(0.2).epsilon(0.05));
  // Own words: 0.3, and a fifth of the others.
  CHECK(to_double(own) / to_double(words) == doctest::Approx(0.3 + 0.7 / 5).epsilon(0.03));
  BlockGraphOptions other = options;
  other.seed = 1;
  CHECK(block_graph(other).ends != graph.ends);
  CHECK_THROWS_AS(block_graph({.nodes = 3, .classes = 2}), InputError);
  CHECK_THROWS_AS(block_graph({.between = 1.5}), InputError);
  CHECK_THROWS_AS(block_graph({.degree = -1}), InputError);
  CHECK_THROWS_AS(block_graph({.words = 17}), InputError);
}

TEST_CASE("partition: sizes, cuts, files") {
  const Graph blocks = two_blocks();
  const auto ldg = partition_graph(blocks, "ldg", 2, 1);
  // Blocks with few edges between them are found: hardly a node is in the other part.
  int64_t agree = 0;
  for (size_t v = 0; v < ldg.size(); ++v) agree += ldg[v] == blocks.labels[v] ? 1 : 0;
  CHECK(std::max(agree, 1000 - agree) >= 970);
  CHECK(ldg == partition_graph(blocks, "ldg", 2, 1));
  const Graph graph = block_graph({.nodes = 3001});
  for (const char* how : {"ldg", "random"}) {
    CAPTURE(how);
    const auto owners = partition_graph(graph, how, 4, 1);
    for (int32_t part = 0; part < 4; ++part) {
      const auto size = std::ranges::count(owners, part);
      CHECK(size >= (how == std::string("ldg") ? 600 : 750));
      CHECK(size <= (how == std::string("ldg") ? 788 : 751));  // 1.05 * 3001 / 4, rounded up
    }
    CHECK(owners != partition_graph(graph, how, 4, 2));
  }
  CHECK(cut_share(graph, partition_graph(graph, "random", 4, 1)) ==
        doctest::Approx(0.75).epsilon(0.03));
  CHECK(cut_share(graph, partition_graph(graph, "ldg", 4, 1)) < 0.55);
  CHECK(cut_share(graph, partition_graph(graph, "ldg", 1, 1)) == 0);

  const Graph four = open({});
  TempFolder folder;
  const auto from_file = [&](const std::string& text, int parts) {
    return partition_graph(four, folder.write("part", bytes(text)).string(), parts, 1);
  };
  CHECK(from_file("1\n0\n1\n1\n", 2) == Ints{1, 0, 1, 1});
  CHECK(cut_share(four, {1, 0, 1, 1}) == 1);
  CHECK(cut_share(four, {1, 1, 0, 1}) == 0.5);
  const auto said = [&](const std::string& text, int parts) {
    return input_error([&] { (void)from_file(text, parts); });
  };
  CHECK(said("1\n0\n1\n", 2).find("part: expected 4 lines") != std::string::npos);
  CHECK(said("1\n0\n2\n0\n", 2).find("line 3: expected a part from 0 to 1") != std::string::npos);
  CHECK(said("0\n0\n0\n0\n", 2).find("part 1 has no nodes") != std::string::npos);
  CHECK(said("0\n1\n0\n0\n1\n", 2).find("found more") != std::string::npos);
  CHECK(input_error([&] { (void)partition_graph(four, "ldg", 5, 1); }).find("as many nodes") !=
        std::string::npos);
}

}  // namespace heddle
