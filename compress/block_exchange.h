// BlockExchange: the exchange of QSGD (qsgd.cpp) and of the casts to 16 bits (cast.cpp), a
// scatter-reduce followed by an all-gather. A bucket's blocks are divided among the ranks; every
// rank sends each block, encoded, to its owner (all-to-all); the owner decodes and adds them in
// fp32 in the order of ranks, encodes the sum once more, and sends it to all (all-gather). All
// ranks, the owner included, use what the second encoding decodes to. A rank sends 2 (P - 1) / P of
// the encoded gradients, as in a ring; dense layers are included as fp32 blocks.
//
//   std::make_unique<BlockExchange>(setup, Coding::bf16, BlockExchange::kBlock, false);
#pragma once

#include <cstdint>

#include "compress/codecs/blocks.h"
#include "compress/compressed_reducer.h"

namespace heddle {

class BlockExchange : public CompressedReducer {
 public:
  static constexpr int64_t kBlock = 4096;  // elements, for codings without scales

  // Encodes blocks of `block` elements, or of fewer in small buckets for codings without scales.
  // `stochastic`: random numbers decide how levels are rounded.
  BlockExchange(const ReducerSetup& setup, Coding coding, int64_t block, bool stochastic)
      : CompressedReducer(setup),
        coding_(coding),
        block_(block),
        stochastic_(stochastic),
        seed_(setup.options.seed) {}

 protected:
  bool works_on_devices() const override { return true; }
  bool exchange(Exchange& e) override;
  int64_t bytes(const Layer& layer, double bits) const override;
  // Returns what --explain-step says about an item's encoding.
  virtual Figures rounding(const Item& item) const;

  Coding coding_;
  int64_t block_;
  bool stochastic_;
  uint64_t seed_;
};

}  // namespace heddle
