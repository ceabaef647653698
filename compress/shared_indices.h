// Sparse exchange in which all ranks send the elements at the same indices, so that the sum over
// ranks of what is sent is what is sent of the sum: one all-reduce of the values is enough, and a
// learner's traffic does not grow with their number. An algorithm derives from it and says which
// indices: ScaleCom (scalecom.cpp) asks a leader, random-k (random_k.cpp) draws them.
//
//   std::vector<Tensor> choose(Exchange& e) override;   // (k) i32 for each compressed item
#pragma once

#include <vector>

#include "compress/compressed_reducer.h"

namespace heddle {

class SharedIndices : public CompressedReducer {
 public:
  using CompressedReducer::CompressedReducer;

 protected:
  // Returns for each compressed item the indices to send, (k) i32 on the items' device, the same on
  // all ranks. May run collectives of its own.
  virtual std::vector<Tensor> choose(Exchange& e) = 0;

  bool works_on_devices() const override { return true; }
  bool exchange(Exchange& e) override;
};

}  // namespace heddle
