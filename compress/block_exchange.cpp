// Casts to 16 bits and QSGD, by scatter-reduce-all-gather: a bucket's blocks are divided among the
// ranks; every rank sends each block, encoded, to its owner (all-to-all), the owner decodes and
// adds them in fp32 in the order of ranks, encodes the sum once more, and sends it to all
// (all-gather). Everybody, the owner too, uses what the second encoding decodes to. A rank moves 2
// (P - 1) / P of the encoded gradients, as a ring would; dense layers travel along as fp32 blocks.
//
// In fp16 values from 65520 on are infinite, and the bucket counts as not finite.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "compress/cast.h"
#include "compress/compressed_reducer.h"
#include "compress/magnitude.h"
#include "compress/quantize.h"
#include "core/parallel.h"

namespace heddle {
namespace {

constexpr int64_t kBlock = 4096;  // elements, where no scale asks for fewer

// How a block's elements travel: cast to a type, or as levels of so many bits.
enum class Coding : uint8_t { fp32, bf16, fp16, levels };

struct Block {
  float* x;
  int64_t n, begin;  // elements, and where the first lies in its layer
  uint64_t layer;    // by index
  Coding coding;
  int bits;
  int owner;      // who adds it up
  int64_t place;  // in the owner's slot, bytes, a multiple of 4
};

int64_t encoded_bytes(Coding coding, int bits, int64_t n) {
  if (coding == Coding::levels) return quantized_bytes(n, bits);
  return n * (coding == Coding::fp32 ? 4 : 2);
}

void encode(const Block& b, const float* x, const std::optional<Philox>& noise, uint8_t* bytes) {
  if (b.coding == Coding::levels) return quantize(x, b.n, b.bits, noise, b.begin, bytes);
  if (b.coding == Coding::fp32) return cast_elements(x, reinterpret_cast<float*>(bytes), b.n);
  if (b.coding == Coding::bf16) return cast_elements(x, reinterpret_cast<bfloat16*>(bytes), b.n);
  cast_elements(x, reinterpret_cast<Half*>(bytes), b.n);
}

void decode(const Block& b, const uint8_t* bytes, float* x) {
  if (b.coding == Coding::levels) return dequantize(bytes, b.n, b.bits, x);
  if (b.coding == Coding::fp32) return cast_elements(reinterpret_cast<const float*>(bytes), x, b.n);
  if (b.coding == Coding::bf16)
    return cast_elements(reinterpret_cast<const bfloat16*>(bytes), x, b.n);
  cast_elements(reinterpret_cast<const Half*>(bytes), x, b.n);
}

// A bucket's blocks, each in the slot of its owner.
struct Plan {
  std::vector<Block> blocks;
  std::vector<PayloadPart> parts;
  std::vector<int64_t> used;  // bytes of each owner's slot, which begins with a flag

  void add(const std::string& name, const Tensor& x, Coding coding, int bits, uint64_t layer,
           int64_t length) {
    const int64_t scale = coding == Coding::levels ? 4 : 0;
    int64_t values = 0, scales = 0;
    for (int64_t begin = 0; begin < x.size(); begin += length) {
      const int64_t n = std::min(length, x.size() - begin);
      const int64_t bytes = encoded_bytes(coding, bits, n);
      const auto slot = std::ranges::min_element(used);
      blocks.push_back({x.data<float>() + begin, n, begin, layer, coding, bits,
                        static_cast<int>(slot - used.begin()), *slot});
      *slot += (bytes + 3) / 4 * 4;
      scales += scale;
      values += bytes - scale;
    }
    parts.push_back(
        {name, name == kControlWords ? PayloadKind::control : PayloadKind::values, values});
    if (scale > 0) parts.push_back({name, PayloadKind::scales, scales});
  }
};

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
    const int p = e.comm.size(), me = e.comm.rank();
    Plan plan;
    plan.used.assign(static_cast<size_t>(p), 4);
    // Short enough that the owners' shares of a small bucket are alike.
    int64_t elements = 0;
    for (const Item& item : e.compressed) elements += item.n();
    for (const auto& [name, x] : e.dense) elements += x.size();
    const int64_t length = std::clamp<int64_t>(elements / (4 * p) / 64 * 64, 64, kBlock);
    for (const Item& item : e.compressed)
      plan.add(item.name(), item.tensor, coding_, static_cast<int>(item.layer->choice),
               item.layer->index, coding_ == Coding::levels ? block_ : length);
    for (const auto& [name, x] : e.dense) plan.add(name, x, Coding::fp32, 0, 0, length);
    const int64_t slot = std::ranges::max(plan.used);
    int64_t rest = p * slot;  // flags, and what fills the slots up
    for (const PayloadPart& part : plan.parts) rest -= part.bytes;
    plan.parts.push_back({"flag", PayloadKind::control, rest});
    const Tensor ours = Tensor::empty_on(Device{}, {p, slot}, DType::u8);
    const Tensor theirs = Tensor::empty_on(Device{}, {p, slot}, DType::u8);
    ours.fill_zero();
    const auto slot_of = [&](const Tensor& all, int r) { return all.data<uint8_t>() + r * slot; };
    for (int r = 0; r < p; ++r) *slot_of(ours, r) = e.finite ? 0 : 1;
    for_blocks(plan.blocks, [&](const Block& b) {
      encode(b, b.x, noise_of(b, e, 0), slot_of(ours, b.owner) + b.place);
    });
    e.ledger.book(e.comm, plan.parts, [&] { e.comm.all_to_all(ours, theirs); });
    for (int r = 0; r < p; ++r)
      if (*slot_of(theirs, r) != 0) return false;  // every rank has got all flags

    const Tensor sums = ours.slice(me, me + 1).reshape({slot});
    for_blocks(plan.blocks, [&](const Block& b) {
      if (b.owner != me) return;
      std::vector<float> sum(static_cast<size_t>(b.n)), part(sum.size());
      for (int r = 0; r < p; ++r) {
        decode(b, slot_of(theirs, r) + b.place, part.data());
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
      }
      encode(b, sum.data(), noise_of(b, e, 1), sums.data<uint8_t>() + b.place);
    });
    e.ledger.book(
        e.comm, plan.parts, [&] { e.comm.all_gather(sums, theirs); }, true);
    for_blocks(plan.blocks,
               [&](const Block& b) { decode(b, slot_of(theirs, b.owner) + b.place, b.x); });
    return std::ranges::all_of(plan.blocks, [](const Block& b) {
      return largest_magnitude(b.x, b.n) < kInfinite;  // beyond fp16, or beyond fp32 in the sum
    });
  }

  std::vector<double> settings(const Layer& /*layer*/) const override {
    return {2, 3, 4, 5, 6, 7, 8};
  }
  int64_t bytes(const Layer& layer, double bits) const override {
    const int64_t n = layer.parameter->size(), rest = n % block_;
    const auto encoded = [&](int64_t m) {
      return encoded_bytes(coding_, static_cast<int>(bits), m);
    };
    return n / block_ * encoded(block_) + (rest > 0 ? encoded(rest) : 0);
  }
  // Of the rank's own encoding, not of the sum's.
  std::vector<double> lost_norms(const Layer& /*layer*/, const Tensor& x,
                                 const std::vector<double>& bits) const override {
    std::vector<double> lost;
    for (const double b : bits) {
      double squares = 0;
      for (int64_t begin = 0; begin < x.size(); begin += block_)
        squares += quantization_loss(x.data<float>() + begin, std::min(block_, x.size() - begin),
                                     static_cast<int>(b), stochastic_);
      lost.push_back(std::sqrt(squares));
    }
    return lost;
  }
  // A rank encodes its elements, decodes as many to add up its share, and decodes the sums.
  double codec_seconds(const Layer& layer, const Tensor& x, double setting) const override {
    const int bits = static_cast<int>(setting);
    std::optional<Philox> noise;
    if (stochastic_) noise.emplace(seed_, stream_id(Stream::codec, layer.index));
    std::vector<uint8_t> bytes(static_cast<size_t>(quantized_bytes(block_, bits)));
    std::vector<float> decoded(static_cast<size_t>(block_));
    return timed([&] {
      for (int64_t begin = 0; begin < x.size(); begin += block_) {
        const int64_t n = std::min(block_, x.size() - begin);
        quantize(x.data<float>() + begin, n, bits, noise, begin, bytes.data());
        for (int round = 0; round < 2; ++round) dequantize(bytes.data(), n, bits, decoded.data());
      }
    });
  }

 private:
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
                         static_cast<uint64_t>(e.comm.rank()) << 16 | b.layer << 1 | round;
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
