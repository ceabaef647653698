// Topologies: edges, weights, eigenvalues, files, and what is refused.
#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <set>
#include <vector>

#include "core/error.h"
#include "optim/topology.h"
#include "tests/data_files.h"

using namespace heddle;

namespace {

std::set<int> peers_of(const Topology& graph, int rank) {
  std::set<int> out;
  for (const auto& each : graph.neighbours(rank)) out.insert(each.rank);
  return out;
}

}  // namespace

TEST_CASE("topology: the neighbours of every kind of graph") {
  using Set = std::set<int>;
  CHECK(peers_of(Topology::parse("ring", 5), 0) == Set{1, 4});
  CHECK(peers_of(Topology::parse("ring", 2), 0) == Set{1});
  CHECK(peers_of(Topology::parse("ring", 1), 0).empty());
  CHECK(peers_of(Topology::parse("complete", 4), 2) == Set{0, 1, 3});
  CHECK(peers_of(Topology::parse("star", 4), 0) == Set{1, 2, 3});
  CHECK(peers_of(Topology::parse("star", 4), 3) == Set{0});
  CHECK(peers_of(Topology::parse("exp", 16), 0) == Set{1, 2, 4, 8, 12, 14, 15});
  CHECK(peers_of(Topology::parse("torus:3x4", 12), 5) == Set{1, 4, 6, 9});
  CHECK(peers_of(Topology::parse("torus:2x4", 8), 0) == Set{1, 3, 4});
  const auto first = Topology::parse("er:p=0.4,seed=1", 20),
             again = Topology::parse("er:p=0.4,seed=1", 20),
             other = Topology::parse("er:p=0.4,seed=2", 20);
  CHECK(first.hash() == again.hash());
  CHECK(first.hash() != other.hash());
  int degrees = 0;
  for (int r = 0; r < 20; ++r) degrees += first.degree(r);
  CHECK(degrees > 2 * 190 * 0.3);
  CHECK(degrees < 2 * 190 * 0.5);
}

TEST_CASE("topology: weights are symmetric, positive, and sum to one") {
  for (const std::string text :
       {"ring", "complete", "star", "exp", "torus:2x4", "er:p=0.4,seed=1"}) {
    CAPTURE(text);
    const Topology graph = Topology::parse(text, 8);
    std::vector<std::vector<double>> w(8, std::vector<double>(8));
    for (int r = 0; r < 8; ++r) {
      w[static_cast<size_t>(r)][static_cast<size_t>(r)] = graph.own_weight(r);
      for (const auto& [q, weight] : graph.neighbours(r))
        w[static_cast<size_t>(r)][static_cast<size_t>(q)] = weight;
    }
    for (size_t r = 0; r < 8; ++r) {
      double row = 0;
      for (size_t q = 0; q < 8; ++q) {
        CHECK(w[r][q] == w[q][r]);
        row += w[r][q];
      }
      CHECK(std::abs(row - 1) < 1e-15);
      CHECK(w[r][r] > 0.1);
    }
  }
  for (int r = 0; r < 8; ++r) {
    CHECK(Topology::parse("complete", 8).own_weight(r) == doctest::Approx(1.0 / 8));
    CHECK(Topology::parse("ring", 8).own_weight(r) == doctest::Approx(1.0 / 3));
  }
}

TEST_CASE("topology: second eigenvalues") {
  for (const int n : {3, 4, 8, 16, 64})
    CHECK(Topology::parse("ring", n).second_eigenvalue() ==
          doctest::Approx((1 + 2 * std::cos(2 * M_PI / n)) / 3).epsilon(1e-6));
  CHECK(Topology::parse("ring", 8).second_eigenvalue() == doctest::Approx(0.8047).epsilon(1e-4));
  CHECK(Topology::parse("complete", 8).second_eigenvalue() < 1e-7);
  CHECK(Topology::parse("ring", 1).second_eigenvalue() == 0);
  // The centre of a star of 8 has 7 neighbours of weight 1/8: its leaves keep 7/8.
  CHECK(Topology::parse("star", 8).second_eigenvalue() == doctest::Approx(0.875).epsilon(1e-6));
}

TEST_CASE("topology: graphs from files, and what is refused") {
  const TempFolder folder;
  const std::string path = (folder.path() / "graph").string();
  const auto with = [&](const std::string& text, int ranks) {
    std::ofstream(path) << text;
    return Topology::parse(path, ranks);
  };
  const auto complaint = [&](const std::string& text, int ranks) -> std::string {
    try {
      (void)with(text, ranks);
      return "";
    } catch (const InputError& error) {
      return error.what();
    }
  };
  const Topology path_graph = with("# a path\n0: 1\n 1 : 0 2\n\n2:1 3 # end\n3: 2\n", 4);
  CHECK(peers_of(path_graph, 1) == std::set<int>{0, 2});
  CHECK(path_graph.own_weight(0) == doctest::Approx(2.0 / 3));
  const auto has = [](const std::string& text, const char* part) {
    CAPTURE(text);
    CHECK(text.find(part) != std::string::npos);
  };
  has(complaint("0: 1\n1:\n", 2), "rank 0 has the neighbour 1, but 1 does not have 0");
  has(complaint("0: 1\n1: 0\n2: 3\n3: 2\n", 4), "cannot reach each other");
  has(complaint("0: 1\n1: 0\n", 3), "cannot reach each other");
  has(complaint("0: 0 1\n1: 0\n", 2), "line 1: rank 0 is a neighbour of itself");
  has(complaint("0: 1\n1: 0\n0: 1\n", 2), "line 3: rank 0 has a line already");
  has(complaint("0: 1\n1: 0 2\n", 2), "line 2: expected a rank below 2, found 2");
  has(complaint("0: one\n", 2), "expected a number, found \"one\"");
  has(complaint("0 1\n", 2), "expected \"rank: ranks\"");
  has(complaint(": 1\n", 2), "expected a rank before the colon");
  for (const char* text : {"rings", "torus:2x3", "torus:8", "torus:0x8", "torus:ax4", "er:0.4",
                           "er:p=0", "er:p=2", "er:p=0.4,sed=1", "er:p=0.4,seed=x", "ring:3", ""})
    CHECK_THROWS_AS(Topology::parse(text, 8), InputError);
  CHECK_THROWS_AS(Topology::parse("er:p=0.01,seed=1", 16), InputError);
  CHECK_THROWS_AS(Topology::parse("ring", 0), InputError);
}
