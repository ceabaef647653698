// BlockExchange: the exchange of QSGD (qsgd.cpp) and of the casts to 16 bits (cast.cpp), a
// scatter-reduce followed by an all-gather. A bucket's blocks are divided among the ranks,
// neighbours to the same one; every rank sends each block, encoded, to its owner (all-to-all); the
// owner decodes and adds them in fp32 in the order of ranks, encodes the sum once more, and sends
// it to all (all-gather). All ranks, the owner included, use what the second encoding decodes to. A
// rank sends 2 (P - 1) / P of the encoded gradients, as in a ring; dense layers are included as
// fp32 blocks.
//
//   std::make_unique<BlockExchange>(setup, CodedBlocks{.coding = Coding::bf16});
//
// sum_blocks() is that exchange for tensors of any algorithm, and all_reduce_bf16() sums the values
// that top-k's relatives and PowerSGD select, rounded to bf16 (values=bf16); what rounding loses
// can be kept in a residual.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "compress/codecs/blocks.h"
#include "compress/compressed_reducer.h"

namespace heddle {

// A tensor that is summed in coded blocks.
struct CodedTensor {
  std::string name;  // the ledger's
  Tensor x;          // f32, in place
  CodedBlocks form;  // how it is coded; codings without scales have shorter blocks in small buckets
  uint64_t layer;    // CompressedLayer::index, for random numbers
  // f32 of x's size, or undefined: gains what this rank, as an owner, lost by coding sums.
  Tensor lost = {};
};

// Sums the tensors over the ranks in place. Returns false on all ranks if a rank's gradients were
// non-finite, or a sum's magnitude (codecs/magnitude.h) is above `most`; the tensors then hold
// anything.
bool sum_blocks(Exchange& e, std::vector<CodedTensor> tensors, uint32_t most);

// all_reduce() (exchange.h) with `dense` as fp32 and `rounded` as bf16. lost[i], where there is
// one, receives what of rounded[i] did not reach the sum because of this rank: over all ranks,
// the tensors before equal the sum and all that is lost. The tensors hold anything after false.
bool all_reduce_bf16(Exchange& e, const NamedTensors& dense, const NamedTensors& rounded,
                     const std::vector<Tensor>& lost = {});

class BlockExchange : public CompressedReducer {
 public:
  // Encodes as `form` says: its coding, block (codings without scales have shorter ones in small
  // buckets) and stochastic, whether random numbers decide how levels are rounded.
  BlockExchange(const ReducerSetup& setup, const CodedBlocks& form)
      : CompressedReducer(setup), form_(form) {
    form_.seed = setup.options.seed;
  }

 protected:
  bool works_on_devices() const override { return true; }
  bool leaves_checks_to_sums() const override { return true; }
  bool exchange(Exchange& e) override;
  int64_t bytes(const Layer& layer, double bits) const override;
  // Returns what --explain-step says about an item's encoding.
  virtual Figures rounding(const Item& item) const;

  CodedBlocks form_;  // of no elements yet
};

}  // namespace heddle
