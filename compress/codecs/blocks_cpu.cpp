#include <algorithm>
#include <optional>

#include "compress/codecs/blocks.h"
#include "core/parallel.h"

namespace heddle::cpu {
namespace {

void encode(const CodedBlock& b, uint8_t* bytes) {
  if (b.coding == Coding::levels) {
    std::optional<Philox> noise;
    if (b.stochastic) noise.emplace(b.seed, b.stream);
    return quantize(b.x, b.n, b.bits, noise, b.begin, bytes);
  }
  if (b.coding == Coding::fp32) return cast_elements(b.x, reinterpret_cast<float*>(bytes), b.n);
  if (b.coding == Coding::bf16) return cast_elements(b.x, reinterpret_cast<bfloat16*>(bytes), b.n);
  cast_elements(b.x, reinterpret_cast<Half*>(bytes), b.n);
}

void decode(const CodedBlock& b, const uint8_t* bytes, float* x) {
  if (b.coding == Coding::levels) return dequantize(bytes, b.n, b.bits, x);
  if (b.coding == Coding::fp32) return cast_elements(reinterpret_cast<const float*>(bytes), x, b.n);
  if (b.coding == Coding::bf16)
    return cast_elements(reinterpret_cast<const bfloat16*>(bytes), x, b.n);
  cast_elements(reinterpret_cast<const Half*>(bytes), x, b.n);
}

// Calls each(block) on several threads; a thread takes several small blocks at a time.
template <class Each>
void for_blocks(const std::vector<CodedBlock>& blocks, const Each& each) {
  if (blocks.empty()) return;
  parallel_for(std::ssize(blocks), std::max<int64_t>(1, 16384 / blocks.front().n),
               [&](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i) each(blocks[static_cast<size_t>(i)]);
               });
}

}  // namespace

void encode_blocks(Device, const std::vector<CodedBlock>& blocks, uint8_t* bytes) {
  for_blocks(blocks, [=](const CodedBlock& b) { encode(b, bytes + b.offset); });
}

void decode_blocks(Device, const std::vector<CodedBlock>& blocks, const uint8_t* bytes) {
  for_blocks(blocks, [=](const CodedBlock& b) { decode(b, bytes + b.offset, b.x); });
}

void add_blocks(Device, const std::vector<CodedBlock>& blocks, const uint8_t* bytes, int64_t part,
                int parts) {
  for_blocks(blocks, [=](const CodedBlock& b) {
    std::vector<float> decoded(static_cast<size_t>(b.n));
    std::fill(b.x, b.x + b.n, 0.0f);
    for (int r = 0; r < parts; ++r) {
      decode(b, bytes + r * part + b.offset, decoded.data());
      for (int64_t i = 0; i < b.n; ++i) b.x[i] += decoded[static_cast<size_t>(i)];
    }
  });
}

}  // namespace heddle::cpu
