// Casts and QSGD on CUDA, one block of threads for each block of elements. The arithmetic is
// quantize.cpp's, operation by operation, and the compiler fuses none of it.
#include "compress/codecs/blocks.h"
#include "core/half.h"
#include "core/shared_kernel.h"

namespace heddle::HEDDLE_BACKEND {
namespace {

// Codes are packed by chunks of kChunk elements, which fill whole bytes.
constexpr int kBlockThreads = 128, kChunk = 2048;

__device__ uint32_t absolute_bits(float v) { return __builtin_bit_cast(uint32_t, v) & 0x7fffffffu; }

// The largest |x| of the block as bits; all threads get it.
__device__ uint32_t largest_bits(const CodedBlock& b, uint32_t (&shared)[kBlockThreads]) {
  const int thread = static_cast<int>(threadIdx.x);
  uint32_t largest = 0;
  for (int64_t i = thread; i < b.n; i += kBlockThreads) {
    const uint32_t m = absolute_bits(b.x[i]);
    largest = m > largest ? m : largest;
  }
  shared[thread] = largest;
  for (int half = kBlockThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (thread < half && shared[thread + half] > shared[thread])
      shared[thread] = shared[thread + half];
  }
  __syncthreads();
  return shared[0];
}

// Sign and level of one element; those of a block without numbers stand for zero.
__device__ uint32_t level_code(const CodedBlock& b, int64_t i, uint32_t largest) {
  const int levels = (1 << (b.bits - 1)) - 1;
  if (largest == 0 || largest >= 0x7f800000u) return static_cast<uint32_t>(levels);
  float threshold = 0.5f;
  if (b.stochastic) {
    const Philox rng(b.seed, b.stream);
    threshold = Philox::unit(rng.block(static_cast<uint64_t>(b.begin + i / 4)).word[i % 4]);
  }
  const float scale = __builtin_bit_cast(float, largest), x = b.x[i];
  const float exact =
      __builtin_bit_cast(float, absolute_bits(x)) / scale * static_cast<float>(levels);
  const int below = static_cast<int>(exact);
  const int level = below + (exact - static_cast<float>(below) > threshold ? 1 : 0);
  return static_cast<uint32_t>(levels + (x < 0 ? -level : level));
}

// Byte j of packed codes (codes[k] below 2^bits).
__device__ uint8_t packed_byte(const uint8_t* codes, int count, int bits, int j) {
  int i = 8 * j / bits, skip = 8 * j - i * bits, filled = 0;
  uint32_t out = 0;
  for (; filled < 8 && i < count; ++i, skip = 0) {
    out |= static_cast<uint32_t>(codes[i]) >> skip << filled;
    filled += bits - skip;
  }
  return static_cast<uint8_t>(out);
}

__device__ void encode_levels(const CodedBlock& b, uint8_t* bytes) {
  __shared__ uint32_t shared[kBlockThreads];
  __shared__ uint8_t codes[kChunk];
  const int thread = static_cast<int>(threadIdx.x);
  const uint32_t largest = largest_bits(b, shared);
  if (thread == 0) *reinterpret_cast<uint32_t*>(bytes) = largest;
  uint8_t* to = bytes + 4;
  for (int64_t begin = 0; begin < b.n; begin += kChunk) {
    const int count = static_cast<int>(b.n - begin < kChunk ? b.n - begin : kChunk);
    for (int i = thread; i < count; i += kBlockThreads)
      codes[i] = static_cast<uint8_t>(level_code(b, begin + i, largest));
    __syncthreads();
    const int filled = (count * b.bits + 7) / 8;
    for (int j = thread; j < filled; j += kBlockThreads)
      to[begin / 8 * b.bits + j] = packed_byte(codes, count, b.bits, j);
    __syncthreads();
  }
}

__device__ float decode_level(const uint8_t* bytes, int bits, int64_t i) {
  const int levels = (1 << (bits - 1)) - 1;
  const float scale = *reinterpret_cast<const float*>(bytes);
  const int64_t first = i * bits / 8;
  const int skip = static_cast<int>(i * bits - 8 * first);
  uint32_t window = bytes[4 + first];
  if (skip + bits > 8) window |= static_cast<uint32_t>(bytes[5 + first]) << 8;
  const int code = static_cast<int>(window >> skip & ((1u << bits) - 1));
  return static_cast<float>(code - levels) / static_cast<float>(levels) * scale;
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
      return decode_level(bytes, b.bits, i);
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

const CodedBlock* table_of(const Tensor& table) {
  return static_cast<const CodedBlock*>(table.raw());
}

}  // namespace

void encode_blocks(Device device, const std::vector<CodedBlock>& blocks, uint8_t* bytes) {
  if (blocks.empty()) return;
  const Tensor table = upload(device, blocks);
  launch("encode blocks", encode_kernel, static_cast<unsigned>(blocks.size()), kBlockThreads,
         table_of(table), bytes);
}

void decode_blocks(Device device, const std::vector<CodedBlock>& blocks, const uint8_t* bytes) {
  if (blocks.empty()) return;
  const Tensor table = upload(device, blocks);
  launch("decode blocks", decode_kernel, static_cast<unsigned>(blocks.size()), kBlockThreads,
         table_of(table), bytes);
}

void add_blocks(Device device, const std::vector<CodedBlock>& blocks, const uint8_t* bytes,
                int64_t part, int parts) {
  if (blocks.empty()) return;
  const Tensor table = upload(device, blocks);
  launch("add blocks", add_kernel, static_cast<unsigned>(blocks.size()), kBlockThreads,
         table_of(table), bytes, part, parts);
}

}  // namespace heddle::HEDDLE_BACKEND
