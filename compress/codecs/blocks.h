// Blocks of gradients as they travel in casts and QSGD, on `device`, encoded and decoded many at a
// time, with the same bytes on the CPU and on CUDA. Backend functions trust their arguments.
#pragma once

#include <cstdint>
#include <vector>

#include "compress/codecs/quantize.h"
#include "core/tensor.h"

namespace heddle {

// How a block's elements travel: cast to a type, or as levels of so many bits.
enum class Coding : uint8_t { fp32, bf16, fp16, levels };

constexpr int64_t encoded_bytes(Coding coding, int bits, int64_t n) {
  if (coding == Coding::levels) return quantized_bytes(n, bits);
  return n * (coding == Coding::fp32 ? 4 : 2);
}

struct CodedBlock {
  float* x = nullptr;             // elements, on the device that works on them
  int64_t n = 0, begin = 0;       // their number, and where the first lies in its layer
  int64_t offset = 0;             // of the encoded block, bytes, a multiple of 4
  uint64_t seed = 0, stream = 0;  // of the noise
  Coding coding = Coding::fp32;
  bool stochastic = false;  // levels are rounded by noise
  int32_t bits = 0;         // of levels
};

// encode_blocks: each block's elements to bytes + offset. decode_blocks: x = what is found there;
// add_blocks: x = 0 + the sum over parts r = 0, 1, … of what is found at bytes + r * part + offset.
#define HEDDLE_BLOCKS                                                                             \
  void encode_blocks(Device device, const std::vector<CodedBlock>& blocks, uint8_t* bytes);       \
  void decode_blocks(Device device, const std::vector<CodedBlock>& blocks, const uint8_t* bytes); \
  void add_blocks(Device device, const std::vector<CodedBlock>& blocks, const uint8_t* bytes,     \
                  int64_t part, int parts);
HEDDLE_BACKENDS(HEDDLE_BLOCKS)
#undef HEDDLE_BLOCKS

}  // namespace heddle
