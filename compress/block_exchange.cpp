// Casts to 16 bits and QSGD, by scatter-reduce-all-gather: a bucket's blocks are divided among the
// ranks; every rank sends each block, encoded, to its owner (all-to-all), the owner decodes and
// adds them in fp32 in the order of ranks, encodes the sum once more, and sends it to all
// (all-gather). Everybody, the owner too, uses what the second encoding decodes to. A rank moves 2
// (P - 1) / P of the encoded gradients, as a ring would; dense layers travel along as fp32 blocks.
//
// In fp16 values from 65520 on are infinite, and the bucket counts as not finite.
#include <algorithm>
#include <cstring>

#include "compress/compressed_reducer.h"
#include "compress/half.h"
#include "compress/magnitude.h"
#include "compress/quantize.h"
#include "core/parallel.h"

namespace heddle {
namespace {

constexpr int64_t kBlock = 4096;  // elements, where no scale asks for fewer

// How a block's elements travel: cast to a type, or as levels of so many bits.
enum class Coding : uint8_t { fp32, bf16, fp16, levels };

struct Block {
  const CompressedReducer::Item* item;
  int64_t begin, n;  // elements of the item
  uint64_t noise;    // the first of its random numbers
  Coding coding;
  int bits;
  int owner = 0;      // who adds it up
  int64_t place = 0;  // in the owner's slot, bytes, a multiple of 4
  float* x() const { return item->x + begin; }
};

int64_t padded(int64_t n) { return (n + 3) / 4 * 4; }

int64_t encoded_bytes(const Block& b) {
  if (b.coding == Coding::levels) return quantized_bytes(b.n, b.bits);
  return b.n * (b.coding == Coding::fp32 ? 4 : 2);
}

template <class From, class To>
void cast(const From* from, To* to, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) to[i] = static_cast<To>(static_cast<float>(from[i]));
}

void encode(const Block& b, const float* x, const std::optional<Philox>& noise, uint8_t* bytes) {
  switch (b.coding) {
    case Coding::fp32:
      return cast(x, reinterpret_cast<float*>(bytes), b.n);
    case Coding::bf16:
      return cast(x, reinterpret_cast<bfloat16*>(bytes), b.n);
    case Coding::fp16:
      return cast(x, reinterpret_cast<Half*>(bytes), b.n);
    case Coding::levels:
      return quantize(x, b.n, b.bits, noise, b.noise, bytes);
  }
}

void decode(const Block& b, const uint8_t* bytes, float* x) {
  switch (b.coding) {
    case Coding::fp32:
      return cast(reinterpret_cast<const float*>(bytes), x, b.n);
    case Coding::bf16:
      return cast(reinterpret_cast<const bfloat16*>(bytes), x, b.n);
    case Coding::fp16:
      return cast(reinterpret_cast<const Half*>(bytes), x, b.n);
    case Coding::levels:
      return dequantize(bytes, b.n, b.bits, x);
  }
}

class BlockExchange : public CompressedReducer {
 public:
  // `stochastic`: levels are rounded by random numbers.
  BlockExchange(const ReducerSetup& setup, Coding coding, int64_t block, bool stochastic)
      : CompressedReducer(setup),
        coding_(coding),
        block_(block),
        stochastic_(stochastic),
        seed_(setup.options.seed) {}

 protected:
  bool exchange(Exchange& e) override {
    std::vector<Block> blocks;
    std::vector<PayloadPart> parts;
    for (const Item& item : e.compressed) cut(item, coding_, block_, blocks, parts);
    for (const Item& item : e.dense) cut(item, Coding::fp32, kBlock, blocks, parts);
    const int p = e.comm.size(), me = e.comm.rank();
    const int64_t slot = place(blocks, p);
    int64_t rest = p * slot;  // flags, and what fills the slots up
    for (const PayloadPart& part : parts) rest -= part.bytes;
    parts.push_back({"flag", PayloadKind::control, rest});
    const Tensor ours = Tensor::empty_on(Device{}, {p, slot}, DType::u8);
    const Tensor theirs = Tensor::empty_on(Device{}, {p, slot}, DType::u8);
    ours.fill_zero();
    const auto slot_of = [&](const Tensor& all, int r) { return all.data<uint8_t>() + r * slot; };
    for (int r = 0; r < p; ++r) *slot_of(ours, r) = e.finite ? 0 : 1;
    for_blocks(blocks, [&](const Block& b) {
      encode(b, b.x(), noise_of(b, e, 0), slot_of(ours, b.owner) + b.place);
    });
    e.ledger.book(e.comm, parts, [&] { e.comm.all_to_all(ours, theirs); });
    for (int r = 0; r < p; ++r)
      if (*slot_of(theirs, r) != 0) return false;  // every rank has got all flags

    const Tensor sums = ours.slice(me, me + 1).reshape({slot});
    for_blocks(blocks, [&](const Block& b) {
      if (b.owner != me) return;
      std::vector<float> sum(static_cast<size_t>(b.n)), part(sum.size());
      for (int r = 0; r < p; ++r) {
        decode(b, slot_of(theirs, r) + b.place, part.data());
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
      }
      encode(b, sum.data(), noise_of(b, e, 1), sums.data<uint8_t>() + b.place);
    });
    e.ledger.book(e.comm, parts, [&] { e.comm.all_gather(sums, theirs); });
    for_blocks(blocks,
               [&](const Block& b) { decode(b, slot_of(theirs, b.owner) + b.place, b.x()); });
    return std::ranges::all_of(blocks, [](const Block& b) {
      return largest_magnitude(b.x(), b.n) < kInfinite;  // beyond fp16, or beyond fp32 in the sum
    });
  }

 private:
  static void cut(const Item& item, Coding coding, int64_t length, std::vector<Block>& blocks,
                  std::vector<PayloadPart>& parts) {
    const bool levels = coding == Coding::levels;
    const int bits = levels ? static_cast<int>(item.layer->choice) : 0;
    int64_t values = 0, scales = 0;
    uint64_t noise = 0;
    for (int64_t begin = 0; begin < item.n; begin += length) {
      blocks.push_back({&item, begin, std::min(length, item.n - begin), noise, coding, bits});
      noise += static_cast<uint64_t>(padded(length));
      scales += levels ? 4 : 0;
      values += encoded_bytes(blocks.back()) - (levels ? 4 : 0);
    }
    parts.push_back({item.name(), PayloadKind::values, values});
    if (levels) parts.push_back({item.name(), PayloadKind::scales, scales});
  }

  // Divides the blocks among the ranks in shares of like size; returns the bytes of a slot, which
  // begins with the flag.
  static int64_t place(std::vector<Block>& blocks, int p) {
    int64_t total = 0, begin = 0;
    for (const Block& b : blocks) total += padded(encoded_bytes(b));
    std::vector<int64_t> used(static_cast<size_t>(p), 4);
    for (Block& b : blocks) {
      b.owner = static_cast<int>(begin * p / total);
      b.place = std::exchange(used[static_cast<size_t>(b.owner)],
                              used[static_cast<size_t>(b.owner)] + padded(encoded_bytes(b)));
      begin += padded(encoded_bytes(b));
    }
    return *std::ranges::max_element(used);
  }

  template <class Each>
  void for_blocks(const std::vector<Block>& blocks, const Each& each) const {
    parallel_for(std::ssize(blocks), std::max<int64_t>(1, 16384 / block_),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t i = begin; i < end; ++i) each(blocks[static_cast<size_t>(i)]);
                 });
  }

  // Its own random numbers for each step (28 bits), rank (12), layer (15) and round (1), so that
  // the rounding errors of ranks are independent.
  std::optional<Philox> noise_of(const Block& b, const Exchange& e, uint64_t round) const {
    if (!stochastic_) return {};
    const uint64_t key = static_cast<uint64_t>(e.step) << 28 |
                         static_cast<uint64_t>(e.comm.rank()) << 16 | b.item->layer->index << 1 |
                         round;
    return Philox(seed_, stream_id(Stream::codec, key));
  }

  Coding coding_;
  int64_t block_;
  bool stochastic_;
  uint64_t seed_;
};

}  // namespace

std::unique_ptr<Reducer> make_cast(const ReducerSetup& setup) {
  const Coding coding = setup.family.name == "bf16" ? Coding::bf16 : Coding::fp16;
  return std::make_unique<BlockExchange>(setup, coding, kBlock, false);
}

std::unique_ptr<Reducer> make_qsgd(const ReducerSetup& setup) {
  const auto& values = setup.spec.values;
  return std::make_unique<BlockExchange>(
      setup, Coding::levels, static_cast<int64_t>(values.at("bucket")), values.at("rounding") == 0);
}

}  // namespace heddle
