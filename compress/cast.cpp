// Casts: every value as bfloat16 or as IEEE half precision, exchanged block by block
// (block_exchange.h). In fp16 values of 65520 or more become infinite, and the bucket is rejected.
#include "compress/block_exchange.h"

namespace heddle {

std::unique_ptr<Reducer> make_cast(const ReducerSetup& setup) {
  const Coding coding = setup.family.name == "bf16" ? Coding::bf16 : Coding::fp16;
  return std::make_unique<BlockExchange>(setup, CodedBlocks{.coding = coding});
}

}  // namespace heddle
