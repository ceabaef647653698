#include "optim/flooded_words.h"

#include <algorithm>

namespace heddle {

FloodedWords::FloodedWords(const Topology& topology, int rank) : rank_(rank) {
  diameter_ = 1;
  for (int r = 0; r < topology.ranks(); ++r) {
    distances_.push_back(topology.distances(r));
    diameter_ = std::max<int64_t>(diameter_, std::ranges::max(distances_.back()));
  }
  history_.assign(distances_.size(), std::vector<Words>(to_size(diameter_ + 1), Words{}));
}

// Has the words that each rank set as many steps ago as there are edges to it.
Tensor FloodedWords::message() {
  for (size_t i = 0; i < kCount; ++i) words(rank_, step_)[i] = own_[i];
  const auto ranks = std::ssize(history_);
  Tensor out = Tensor::empty_on(Device{}, {ranks, to_int64(kCount)});
  out.fill_zero();
  for (int r = 0; r < ranks; ++r)
    if (const int64_t at = step_ - distances_[to_size(rank_)][to_size(r)]; at >= 0)
      std::ranges::copy(words(r, at), out.data<float>() + r * to_int64(kCount));
  return out;
}

// Takes over what comes from a neighbour that is one edge nearer.
void FloodedWords::receive(int neighbour, const Tensor& message) {
  for (int r = 0; r < std::ssize(history_); ++r) {
    const int there = distances_[to_size(neighbour)][to_size(r)];
    if (there + 1 != distances_[to_size(rank_)][to_size(r)]) continue;
    if (step_ >= there)
      std::copy_n(message.data<float>() + r * to_int64(kCount), kCount,
                  words(r, step_ - there).begin());
  }
}

void FloodedWords::end_step() {
  sums_ = {};
  if (const int64_t known = step_ - delay(); known >= 0)
    for (int r = 0; r < std::ssize(history_); ++r)
      for (size_t i = 0; i < kCount; ++i) sums_[i] += words(r, known)[i];
  ++step_;
}

}  // namespace heddle
