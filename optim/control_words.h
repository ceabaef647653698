// Control words: small numbers that the ranks sum without a collective of their own, as elements
// that travel at the end of the last bucket. A rank that was told to stop sets one, and all ranks
// read it after the same step.
//
//   words.set(kStop, 1);              // on one rank
//   words.write(elements);            // each rank, before the bucket is exchanged
//   words.read(elements);             // after: words.sum(kStop) is 1 on all ranks
#pragma once

#include <array>
#include <atomic>
#include <cstddef>

#include "comm/communicator.h"
#include "comm/ledger.h"
#include "core/parameters.h"
#include "core/tensor.h"

namespace heddle {

class ControlWords {
 public:
  static constexpr size_t kCount = ParameterStore::kExtra;

  // Sets this rank's value for every step from now on. From any thread.
  void set(size_t word, float value) { own_.at(word) = value; }
  // Returns the sum over the ranks in the last update. Not during an exchange.
  float sum(size_t word) const { return sums_.at(word); }

  // Writes this rank's values to `elements`, f32 (kCount), on any device: the end of
  // ParameterStore::grads_and_extra().
  void write(const Tensor& elements) const;
  // Copies the sums from the elements and sets those to zero, so that no norm counts them.
  void read(const Tensor& elements);
  // Sums by a separate collective, after the bucket was rejected: a rank's request to stop must
  // arrive all the same. Sets the elements to zero.
  void sum_separately(const Tensor& elements, Communicator& comm, Ledger& ledger);
  // Uses this rank's own values as the sums, where there is no other rank.
  void use_own();

 private:
  Tensor own_values() const;
  void set_sums(const Tensor& host);

  std::array<std::atomic<float>, kCount> own_{};
  std::array<float, kCount> sums_{};
};

}  // namespace heddle
