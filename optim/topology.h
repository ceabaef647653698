// Topology: which learners talk to each other, and how much they count for each other: a connected
// undirected graph with symmetric weights w_ij whose rows sum to 1, by Metropolis' rule (Xiao, Boyd
// and Kim 2007): w_ij = 1 / (1 + max(degree i, degree j)) between neighbours, w_ii the rest.
//
//   ring              torus:2x4                star            exp, as rank 0 sees it
//   0 - 1 - 2 - 3     0 - 1 - 2 - 3  (each     1   2   3       0 and 1, 2, 4, 8, ... steps away,
//    \_________/      |   |   |   |   row and   \  |  /        both ways
//                     4 - 5 - 6 - 7   column       0
//                                     a ring)
//
//   const Topology graph = Topology::parse("ring", 8);
//   for (const auto& [rank, weight] : graph.neighbours(3)) ...   // 2 and 4, a third each
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace heddle {

class Topology {
 public:
  // Parses "ring", "complete", "star", "exp", "torus:RxC" with R C = ranks, "er:p=0.4,seed=1"
  // (Erdős and Rényi: each pair with probability p) or the name of a file, which has a line for
  // each rank, as "3: 2 4". Throws InputError for another text, and for a graph that is not
  // symmetric or not connected.
  static Topology parse(const std::string& text, int ranks);

  struct Neighbour {
    int rank;
    double weight;
  };
  int ranks() const { return static_cast<int>(edges_.size()); }
  // Returns a rank's neighbours, without itself, by rank.
  std::vector<Neighbour> neighbours(int rank) const;
  double own_weight(int rank) const;
  int degree(int rank) const {
    return static_cast<int>(edges_.at(static_cast<size_t>(rank)).size());
  }
  // Returns the largest modulus of an eigenvalue of W but the first, which is 1: the smaller, the
  // sooner neighbours' values spread. 0 for one rank; too small for rings of more than some 200.
  double second_eigenvalue() const;
  // Returns the number of edges from a rank to every other, by rank.
  std::vector<int> distances(int rank) const;
  // Returns the same number for the same graph.
  uint64_t hash() const;

 private:
  explicit Topology(int ranks) : edges_(static_cast<size_t>(ranks)) {}
  void connect(int a, int b);
  bool is_connected() const;
  void read(const std::string& file);

  std::vector<std::set<int>> edges_;  // by rank
};

}  // namespace heddle
