#include <algorithm>
#include <optional>

#include "compress/codecs/blocks.h"
#include "core/parallel.h"

namespace heddle::cpu {
namespace {

void encode(const CodedBlocks& b, uint8_t* bytes) {
  if (b.coding == Coding::levels) {
    std::optional<Philox> noise;
    if (b.stochastic) noise.emplace(b.seed, b.stream);
    return quantize(b.x, b.n, b.bits, noise, b.begin, bytes);
  }
  with_cast(b.coding, [&]<class T>() { cast_elements(b.x, reinterpret_cast<T*>(bytes), b.n); });
}

void decode(const CodedBlocks& b, const uint8_t* bytes, float* x) {
  if (b.coding == Coding::levels) return dequantize(bytes, b.n, b.bits, x);
  with_cast(b.coding, [&]<class T>() { cast_elements(reinterpret_cast<const T*>(bytes), x, b.n); });
}

// Calls each(block) on several threads; a thread takes several small blocks at a time.
template <class Each>
void for_blocks(const std::vector<CodedBlocks>& runs, const Each& each) {
  if (runs.empty()) return;
  std::vector<int64_t> ends(runs.size());  // of the runs, among all blocks
  for (size_t i = 0; i < runs.size(); ++i) ends[i] = (i > 0 ? ends[i - 1] : 0) + runs[i].count();
  parallel_for(ends.back(), std::max<int64_t>(1, 16384 / runs.front().block),
               [&](int64_t begin, int64_t end) {
                 auto run = to_size(std::ranges::upper_bound(ends, begin) - ends.begin());
                 for (int64_t i = begin; i < end; ++i) {
                   while (i >= ends[run]) ++run;
                   each(runs[run].from(i - ends[run] + runs[run].count(), 1));
                 }
               });
}

}  // namespace

void encode_blocks(const std::vector<CodedBlocks>& runs, uint8_t* bytes) {
  for_blocks(runs, [=](const CodedBlocks& b) { encode(b, bytes + b.offset); });
}

void decode_blocks(const std::vector<CodedBlocks>& runs, const uint8_t* bytes) {
  for_blocks(runs, [=](const CodedBlocks& b) { decode(b, bytes + b.offset, b.x); });
}

void add_blocks(const std::vector<CodedBlocks>& runs, const uint8_t* bytes, int64_t part,
                int parts) {
  for_blocks(runs, [=](const CodedBlocks& b) {
    std::vector<float> decoded(to_size(b.n));
    std::fill(b.x, b.x + b.n, 0.0f);
    for (int r = 0; r < parts; ++r) {
      decode(b, bytes + r * part + b.offset, decoded.data());
      for (int64_t i = 0; i < b.n; ++i) b.x[i] += decoded[to_size(i)];
    }
  });
}

}  // namespace heddle::cpu
