// Casts and QSGD on CUDA, one block of threads for each block of elements. The arithmetic is that
// of quantize.h; the compiler fuses none of it.
#include "compress/codecs/blocks.h"
#include "core/block_reduce.cuh"
#include "core/half.h"
#include "core/shared_kernel.h"

namespace heddle::HEDDLE_BACKEND {
namespace {

// A block's threads. Codes are packed in chunks of kChunk elements, which fill whole bytes.
constexpr int kCoders = 256, kChunk = 2048;

// Returns the sign and level of one element, or the code of zero if its block has no finite maximum
// above 0.
__device__ uint32_t code_of(const CodedBlocks& b, int64_t i, uint32_t largest) {
  const int s = level_count(b.bits);
  if (largest == 0 || largest >= kInfinite) return static_cast<uint32_t>(s);
  float threshold = 0.5f;
  if (b.stochastic) {
    const Philox rng(b.seed, b.stream);
    threshold = Philox::unit(rng.block(static_cast<uint64_t>(b.begin + i / 4)).word[i % 4]);
  }
  return level_code(b.x[i], __builtin_bit_cast(float, largest), s, threshold);
}

__device__ void encode_levels(const CodedBlocks& b, uint8_t* bytes) {
  __shared__ uint32_t shared[kCoders];
  __shared__ uint8_t codes[kChunk];
  const int thread = static_cast<int>(threadIdx.x);
  uint32_t largest = 0;
  for (int64_t i = thread; i < b.n; i += kCoders) largest = Larger()(largest, magnitude(b.x[i]));
  largest = block_reduce(largest, Larger(), shared);
  if (thread == 0) *reinterpret_cast<uint32_t*>(bytes) = largest;
  uint8_t* to = bytes + 4;
  for (int64_t begin = 0; begin < b.n; begin += kChunk) {
    const int count = static_cast<int>(b.n - begin < kChunk ? b.n - begin : kChunk);
    for (int i = thread; i < count; i += kCoders)
      codes[i] = static_cast<uint8_t>(code_of(b, begin + i, largest));
    __syncthreads();
    for (int j = thread; j < packed_bytes(count, b.bits); j += kCoders)
      to[begin / 8 * b.bits + j] =
          packed_byte(count, b.bits, j, [&](int64_t i) { return uint32_t{codes[i]}; });
    __syncthreads();
  }
}

__device__ float decode_element(const CodedBlocks& b, const uint8_t* bytes, int64_t i) {
  if (b.coding == Coding::levels)
    return level_value(unpacked_value(bytes + 4, b.bits, i), *reinterpret_cast<const float*>(bytes),
                       level_count(b.bits));
  float x;
  with_cast(b.coding, [&]<class T>() { x = to_float(reinterpret_cast<const T*>(bytes)[i]); });
  return x;
}

struct EncodeBlock {
  CodedBlocks run;
  uint8_t* bytes;
  __device__ void operator()(unsigned block) const {
    const CodedBlocks b = run.from(block, 1);
    uint8_t* to = bytes + b.offset;
    if (b.coding == Coding::levels) return encode_levels(b, to);
    with_cast(b.coding, [&]<class T>() {
      for (int64_t i = threadIdx.x; i < b.n; i += kCoders) reinterpret_cast<T*>(to)[i] = T(b.x[i]);
    });
  }
};

struct AddBlock {
  CodedBlocks run;
  const uint8_t* bytes;
  int64_t part;
  int parts;
  float first;
  __device__ void operator()(unsigned block) const {
    const CodedBlocks b = run.from(block, 1);
    for (int64_t i = threadIdx.x; i < b.n; i += kCoders) {
      float sum = first;
      for (int r = 0; r < parts; ++r) sum += decode_element(b, bytes + r * part + b.offset, i);
      b.x[i] = sum;
    }
  }
};

// Calls Each{run, arguments...}(block) for the blocks of all runs.
template <class Each, class... Arguments>
void for_runs(const std::vector<CodedBlocks>& runs, Arguments... arguments) {
  JoinedLaunches joined;
  for (const CodedBlocks& run : runs) for_blocks(run.count(), Each{run, arguments...});
  joined.launch();
}

}  // namespace

void encode_blocks(const std::vector<CodedBlocks>& runs, uint8_t* bytes) {
  for_runs<EncodeBlock>(runs, bytes);
}

void decode_blocks(const std::vector<CodedBlocks>& runs, const uint8_t* bytes) {
  for_runs<AddBlock>(runs, bytes, 0, 1, -0.0f);  // -0 + x is x for all x
}

void add_blocks(const std::vector<CodedBlocks>& runs, const uint8_t* bytes, int64_t part,
                int parts) {
  for_runs<AddBlock>(runs, bytes, part, parts, 0.0f);
}

}  // namespace heddle::HEDDLE_BACKEND
