// Casts and QSGD on CUDA, one block of threads for each block of elements. The arithmetic is that
// of quantize.h; the compiler fuses none of it.
#include "compress/codecs/blocks.h"
#include "core/block_reduce.cuh"
#include "core/half.h"
#include "core/shared_kernel.h"

namespace heddle::HEDDLE_BACKEND {
namespace {

// Codes are packed in chunks of kChunk elements, which fill whole bytes.
constexpr int kBlockThreads = 128, kChunk = 2048;

// Returns the sign and level of one element, or the code of zero if its block has no finite maximum
// above 0.
__device__ uint32_t code_of(const CodedBlock& b, int64_t i, uint32_t largest) {
  const int s = level_count(b.bits);
  if (largest == 0 || largest >= kInfinite) return static_cast<uint32_t>(s);
  float threshold = 0.5f;
  if (b.stochastic) {
    const Philox rng(b.seed, b.stream);
    threshold = Philox::unit(rng.block(static_cast<uint64_t>(b.begin + i / 4)).word[i % 4]);
  }
  return level_code(b.x[i], __builtin_bit_cast(float, largest), s, threshold);
}

__device__ void encode_levels(const CodedBlock& b, uint8_t* bytes) {
  __shared__ uint32_t shared[kBlockThreads];
  __shared__ uint8_t codes[kChunk];
  const int thread = static_cast<int>(threadIdx.x);
  uint32_t largest = 0;
  for (int64_t i = thread; i < b.n; i += kBlockThreads)
    largest = Larger()(largest, magnitude(b.x[i]));
  largest = block_reduce(largest, Larger(), shared);
  if (thread == 0) *reinterpret_cast<uint32_t*>(bytes) = largest;
  uint8_t* to = bytes + 4;
  for (int64_t begin = 0; begin < b.n; begin += kChunk) {
    const int count = static_cast<int>(b.n - begin < kChunk ? b.n - begin : kChunk);
    for (int i = thread; i < count; i += kBlockThreads)
      codes[i] = static_cast<uint8_t>(code_of(b, begin + i, largest));
    __syncthreads();
    for (int j = thread; j < packed_bytes(count, b.bits); j += kBlockThreads)
      to[begin / 8 * b.bits + j] =
          packed_byte(count, b.bits, j, [&](int64_t i) { return uint32_t{codes[i]}; });
    __syncthreads();
  }
}

__device__ float decode_element(const CodedBlock& b, const uint8_t* bytes, int64_t i) {
  switch (b.coding) {
    case Coding::fp32:
      return reinterpret_cast<const float*>(bytes)[i];
    case Coding::bf16:
      return static_cast<float>(reinterpret_cast<const bfloat16*>(bytes)[i]);
    case Coding::fp16:
      return static_cast<float>(reinterpret_cast<const Half*>(bytes)[i]);
    case Coding::levels:
      return level_value(unpacked_value(bytes + 4, b.bits, i),
                         *reinterpret_cast<const float*>(bytes), level_count(b.bits));
  }
  return 0;
}

__global__ void encode_kernel(const CodedBlock* blocks, uint8_t* bytes) {
  const CodedBlock b = blocks[blockIdx.x];
  uint8_t* to = bytes + b.offset;
  if (b.coding == Coding::levels) {
    encode_levels(b, to);
    return;
  }
  for (int64_t i = threadIdx.x; i < b.n; i += kBlockThreads) {
    if (b.coding == Coding::fp32)
      reinterpret_cast<float*>(to)[i] = b.x[i];
    else if (b.coding == Coding::bf16)
      reinterpret_cast<bfloat16*>(to)[i] = bfloat16(b.x[i]);
    else
      reinterpret_cast<Half*>(to)[i] = Half(b.x[i]);
  }
}

__global__ void decode_kernel(const CodedBlock* blocks, const uint8_t* bytes) {
  const CodedBlock b = blocks[blockIdx.x];
  for (int64_t i = threadIdx.x; i < b.n; i += kBlockThreads)
    b.x[i] = decode_element(b, bytes + b.offset, i);
}

__global__ void add_kernel(const CodedBlock* blocks, const uint8_t* bytes, int64_t part,
                           int parts) {
  const CodedBlock b = blocks[blockIdx.x];
  for (int64_t i = threadIdx.x; i < b.n; i += kBlockThreads) {
    float sum = 0;
    for (int r = 0; r < parts; ++r) sum += decode_element(b, bytes + r * part + b.offset, i);
    b.x[i] = sum;
  }
}

// Runs a kernel with one block of threads for each block.
template <class... Parameters, class... Arguments>
void launch_for(const char* name, void (*kernel)(const CodedBlock*, Parameters...), Device device,
                const std::vector<CodedBlock>& blocks, Arguments... arguments) {
  if (blocks.empty()) return;
  const Tensor table = upload(device, blocks);
  launch(name, kernel, static_cast<unsigned>(blocks.size()), kBlockThreads,
         static_cast<const CodedBlock*>(table.raw()), arguments...);
}

}  // namespace

void encode_blocks(Device device, const std::vector<CodedBlock>& blocks, uint8_t* bytes) {
  launch_for("encode blocks", encode_kernel, device, blocks, bytes);
}

void decode_blocks(Device device, const std::vector<CodedBlock>& blocks, const uint8_t* bytes) {
  launch_for("decode blocks", decode_kernel, device, blocks, bytes);
}

void add_blocks(Device device, const std::vector<CodedBlock>& blocks, const uint8_t* bytes,
                int64_t part, int parts) {
  launch_for("add blocks", add_kernel, device, blocks, bytes, part, parts);
}

}  // namespace heddle::HEDDLE_BACKEND
