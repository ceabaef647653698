// Encodes and decodes blocks of gradients for casts and QSGD, many at a time, with the same bytes
// on the CPU and on CUDA. All memory of a call is on the host in cpu::, on the GPU in cuda::.
// Arguments are not checked. Internal to compress and its tests.
#pragma once

#include <cstdint>
#include <vector>

#include "compress/codecs/quantize.h"
#include "core/half.h"
#include "core/tensor.h"

namespace heddle {

// Converts n elements of one floating type to another, rounding to nearest even. (A temporary in
// the loop itself would keep GCC from vectorising it.)
template <class From, class To>
void cast_elements(const From* from, To* to, int64_t n) {
  const auto convert = [](From x) { return static_cast<To>(to_float(x)); };
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) to[i] = convert(from[i]);
}

// How elements are encoded: cast to a type, or as levels of `bits` bits each (quantize.h).
enum class Coding : uint8_t { fp32, bf16, fp16, levels };

HEDDLE_HD constexpr int64_t encoded_bytes(Coding coding, int bits, int64_t n) {
  if (coding == Coding::levels) return quantized_bytes(n, bits);
  return n * (coding == Coding::fp32 ? 4 : 2);
}

// Calls f.template operator()<T>() for the type T of a cast.
template <class F>
HEDDLE_HD void with_cast(Coding coding, const F& f) {
  if (coding == Coding::fp32) return f.template operator()<float>();
  if (coding == Coding::bf16) return f.template operator()<bfloat16>();
  f.template operator()<Half>();
}

// Neighbouring blocks of a layer, coded one by one. Encoded they lie one after the other, each from
// a multiple of 4 bytes on.
struct CodedBlocks {
  float* x = nullptr;             // elements
  int64_t n = 0, begin = 0;       // number of elements; index of the first in its layer
  int64_t block = 4096;           // elements of a block; the last may have fewer
  int64_t offset = 0;             // where the first encoded block begins, in bytes
  uint64_t seed = 0, stream = 0;  // keys of the noise
  Coding coding = Coding::fp32;
  bool stochastic = false;  // noise decides how levels are rounded
  int32_t bits = 0;         // of a level

  HEDDLE_HD int64_t count() const { return (n + block - 1) / block; }
  // Returns the bytes of an encoded block, with its padding.
  HEDDLE_HD int64_t stride() const { return (encoded_bytes(coding, bits, block) + 3) / 4 * 4; }
  // Returns the bytes of all encoded blocks, each rounded up to a multiple of `to`.
  int64_t bytes(int64_t to) const {
    const auto one = [&](int64_t m) { return ceil_div(encoded_bytes(coding, bits, m), to) * to; };
    return n / block * one(block) + (n % block > 0 ? one(n % block) : 0);
  }
  // Returns `most` of these blocks, or as many as there are, from the i-th on.
  HEDDLE_HD CodedBlocks from(int64_t i, int64_t most) const {
    const int64_t skipped = i * block, rest = n - skipped;
    CodedBlocks some = *this;
    some.x += skipped;
    some.begin += skipped;
    some.offset += i * stride();
    some.n = rest < most * block ? rest : most * block;
    return some;
  }
};

// encode_blocks: writes each block, encoded, to bytes + offset.
// decode_blocks: x = what was encoded at bytes + offset.
// add_blocks: x = 0 + the sum over parts r = 0, 1, ... of what was encoded at bytes + r * part +
// offset.
namespace cpu {
void encode_blocks(const std::vector<CodedBlocks>& runs, uint8_t* bytes);
void decode_blocks(const std::vector<CodedBlocks>& runs, const uint8_t* bytes);
void add_blocks(const std::vector<CodedBlocks>& runs, const uint8_t* bytes, int64_t part,
                int parts);
}  // namespace cpu

namespace cuda {
void encode_blocks(const std::vector<CodedBlocks>& runs, uint8_t* bytes);
void decode_blocks(const std::vector<CodedBlocks>& runs, const uint8_t* bytes);
void add_blocks(const std::vector<CodedBlocks>& runs, const uint8_t* bytes, int64_t part,
                int parts);
}  // namespace cuda

}  // namespace heddle
