// FloodedWords: control words (control_words.h) for ranks that talk to neighbours only. Each passes
// on what it knows of all, so that a rank's words reach another after as many steps as the graph
// has edges between them; delay() steps after a step all ranks know the words of all in it. A
// message has 16 bytes for each rank of the graph.
//
//   FloodedWords words(topology, rank);
//   words.set(kStop, 1);                       // on one rank
//   Tensor mine = words.message();             // in each step, for all neighbours
//   words.receive(neighbour, theirs); ...
//   words.end_step();                          // words.sum(kStop) is 1 on all ranks in one step
//
// set() may be called from any thread, everything else from one at a time.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "core/parameters.h"
#include "core/tensor.h"
#include "optim/topology.h"

namespace heddle {

class FloodedWords {
 public:
  static constexpr size_t kCount = ParameterStore::kExtra;

  FloodedWords(const Topology& topology, int rank);

  // Returns the steps between setting a word and reading its sum, less one: the largest number of
  // edges between two ranks minus one.
  int64_t delay() const { return diameter_ - 1; }
  // Sets this rank's value for every step from now on. From any thread.
  void set(size_t word, float value) { own_.at(word) = value; }
  // Returns the sum over the ranks of their values delay() steps before the last one; 0 before
  // there are so many. In the order of ranks: the same on all.
  float sum(size_t word) const { return sums_.at(word); }

  // Returns what this rank sends to all its neighbours in this step, f32 (P, kCount).
  Tensor message();
  void receive(int neighbour, const Tensor& message);
  void end_step();

 private:
  using Words = std::array<float, kCount>;
  // Returns the words of a rank in a step, kept for as long as they are passed on.
  Words& words(int rank, int64_t step) {
    return history_[to_size(rank)][to_size(step % (diameter_ + 1))];
  }

  int rank_;
  std::vector<std::vector<int>> distances_;  // of every rank to every rank
  int64_t diameter_;
  std::array<std::atomic<float>, kCount> own_{};
  std::vector<std::vector<Words>> history_;  // by rank, step
  Words sums_{};
  int64_t step_ = 0;
};

}  // namespace heddle
