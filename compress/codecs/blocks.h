// Encodes and decodes blocks of gradients for casts and QSGD, many at a time, with the same bytes
// on the CPU and on CUDA. All memory is on `device`. Arguments are not checked. Internal to
// compress and its tests.
#pragma once

#include <cstdint>
#include <vector>

#include "compress/codecs/quantize.h"
#include "core/half.h"
#include "core/tensor.h"

namespace heddle {

// Converts n elements of one floating type to another, rounding to nearest even.
template <class From, class To>
void cast_elements(const From* from, To* to, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) to[i] = static_cast<To>(static_cast<float>(from[i]));
}

// How elements are encoded: cast to a type, or as levels of `bits` bits each (quantize.h).
enum class Coding : uint8_t { fp32, bf16, fp16, levels };

constexpr int64_t encoded_bytes(Coding coding, int bits, int64_t n) {
  if (coding == Coding::levels) return quantized_bytes(n, bits);
  return n * (coding == Coding::fp32 ? 4 : 2);
}

struct CodedBlock {
  float* x = nullptr;             // elements
  int64_t n = 0, begin = 0;       // number of elements; index of the first in its layer
  int64_t offset = 0;             // where the encoded block begins, in bytes, a multiple of 4
  uint64_t seed = 0, stream = 0;  // keys of the noise
  Coding coding = Coding::fp32;
  bool stochastic = false;  // noise decides how levels are rounded
  int32_t bits = 0;         // of a level
};

// encode_blocks: writes each block, encoded, to bytes + offset.
// decode_blocks: x = what was encoded at bytes + offset.
// add_blocks: x = 0 + the sum over parts r = 0, 1, ... of what was encoded at bytes + r * part +
// offset.
namespace cpu {
void encode_blocks(Device device, const std::vector<CodedBlock>& blocks, uint8_t* bytes);
void decode_blocks(Device device, const std::vector<CodedBlock>& blocks, const uint8_t* bytes);
void add_blocks(Device device, const std::vector<CodedBlock>& blocks, const uint8_t* bytes,
                int64_t part, int parts);
}  // namespace cpu

namespace cuda {
void encode_blocks(Device device, const std::vector<CodedBlock>& blocks, uint8_t* bytes);
void decode_blocks(Device device, const std::vector<CodedBlock>& blocks, const uint8_t* bytes);
void add_blocks(Device device, const std::vector<CodedBlock>& blocks, const uint8_t* bytes,
                int64_t part, int parts);
}  // namespace cuda

}  // namespace heddle
