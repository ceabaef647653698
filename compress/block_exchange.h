// The exchange of QSGD (qsgd.cpp) and of the casts to 16 bits (cast.cpp), by
// scatter-reduce-all-gather: a bucket's blocks are divided among the ranks; every rank sends each
// block, encoded, to its owner (all-to-all), the owner decodes and adds them in fp32 in the order
// of ranks, encodes the sum once more, and sends it to all (all-gather). Everybody, the owner too,
// uses what the second encoding decodes to. A rank moves 2 (P - 1) / P of the encoded gradients, as
// a ring would; dense layers travel along as fp32 blocks.
//
//   std::make_unique<BlockExchange>(setup, Coding::bf16, BlockExchange::kBlock, false);
#pragma once

#include <cstdint>
#include <vector>

#include "compress/codecs/blocks.h"
#include "compress/compressed_reducer.h"

namespace heddle {

class BlockExchange : public CompressedReducer {
 public:
  static constexpr int64_t kBlock = 4096;  // elements, where no scale asks for fewer

  // Encodes blocks of `block` elements (fewer in small buckets, where no scale depends on them).
  // `stochastic`: levels are rounded by random numbers.
  BlockExchange(const ReducerSetup& setup, Coding coding, int64_t block, bool stochastic)
      : CompressedReducer(setup),
        coding_(coding),
        block_(block),
        stochastic_(stochastic),
        seed_(setup.options.seed) {}

 protected:
  struct Block {
    CodedBlock coded;  // at its offset within the owner's slot, without noise
    uint64_t layer;    // by index
    int owner;         // who adds it up
  };

  bool works_on_devices() const override { return true; }
  bool exchange(Exchange& e) override;
  int64_t bytes(const Layer& layer, double bits) const override;
  // Returns what --explain-step says about an item's encoding.
  virtual Figures rounding(const Item& item) const;

  Coding coding_;
  int64_t block_;
  bool stochastic_;
  uint64_t seed_;

 private:
  static void encode(const Exchange& e, const std::vector<CodedBlock>& blocks, const Tensor& bytes,
                     const char* phase);
  static void add_up(const Exchange& e, const std::vector<CodedBlock>& owned,
                     const Tensor& received, int64_t slot);
  CodedBlock noisy(const Block& b, const Exchange& e, uint64_t round) const;
};

}  // namespace heddle
