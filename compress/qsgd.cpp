// Casts to 16 bits and QSGD, by scatter-reduce-all-gather: a bucket's blocks are divided among the
// ranks; every rank sends each block, encoded, to its owner (all-to-all), the owner decodes and
// adds them in fp32 in the order of ranks, encodes the sum once more, and sends it to all
// (all-gather). Everybody, the owner too, uses what the second encoding decodes to. A rank moves 2
// (P - 1) / P of the encoded gradients, as a ring would; dense layers travel along as fp32 blocks.
//
// In fp16 values from 65520 on are infinite, and the bucket counts as not finite.
#include <algorithm>
#include <cmath>

#include "compress/codecs/blocks.h"
#include "compress/codecs/magnitude.h"
#include "compress/codecs/sparse_kernels.h"
#include "compress/compressed_reducer.h"
#include "core/kernels.h"
#include "core/shared_kernel.h"

namespace heddle {
namespace {

constexpr int64_t kBlock = 4096;  // elements, where no scale asks for fewer

struct Block {
  CodedBlock coded;  // at its offset within the owner's slot, without noise
  uint64_t layer;    // by index
  int owner;         // who adds it up
};

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
      blocks.push_back({{.x = x.data<float>() + begin,
                         .n = n,
                         .begin = begin,
                         .offset = *slot,
                         .coding = coding,
                         .bits = bits},
                        layer,
                        static_cast<int>(slot - used.begin())});
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
  bool works_on_devices() const override { return true; }
  bool exchange(Exchange& e) override {
    const int p = e.comm.size(), me = e.comm.rank();
    Plan plan;
    plan.used.assign(static_cast<size_t>(p), 4);
    // Short enough that the owners' shares of a small bucket are alike.
    int64_t elements = 0;
    for (const Item& item : e.compressed) elements += item.n();
    for (const auto& [name, x] : e.dense) elements += x.size();
    const int64_t length = std::clamp<int64_t>(elements / (4 * p) / 64 * 64, 64, kBlock);
    for (const Item& item : e.compressed) {
      plan.add(item.name(), item.tensor, coding_, static_cast<int>(item.layer->choice),
               item.layer->index, coding_ == Coding::levels ? block_ : length);
      explain("select", item.name(), [&] { return rounding(item); });
    }
    for (const auto& [name, x] : e.dense) plan.add(name, x, Coding::fp32, 0, 0, length);
    const int64_t slot = std::ranges::max(plan.used);
    int64_t rest = p * slot;  // flags, and what fills the slots up
    for (const PayloadPart& part : plan.parts) rest -= part.bytes;
    plan.parts.push_back({"flag", PayloadKind::control, rest});
    const Tensor ours = Tensor::empty_on(e.device, {p, slot}, DType::u8);
    const Tensor theirs = Tensor::empty_on(e.device, {p, slot}, DType::u8);
    ours.fill_zero();
    const Tensor flag = Tensor::empty_on(Device{}, {1}, DType::u8);
    *flag.data<uint8_t>() = e.finite ? 0 : 1;
    const auto flag_of = [](const Tensor& all, int r) {
      return all.slice(r, r + 1).reshape({all.shape()[1]}).slice(0, 1);
    };
    for (int r = 0; r < p; ++r) flag_of(ours, r).copy_from(flag);
    std::vector<CodedBlock> all, owned;
    int64_t share = 0;  // elements that this rank adds up
    for (const Block& b : plan.blocks) {
      all.push_back(noisy(b, e, 0));
      all.back().offset += b.owner * slot;
      if (b.owner == me) share += b.coded.n;
    }
    encode(e, all, ours, "encode");
    e.ledger.book(e.comm, plan.parts, [&] { e.comm.all_to_all(ours, theirs); });
    for (int r = 0; r < p; ++r)  // every rank has got all flags
      if (*flag_of(theirs, r).to(Device{}).data<uint8_t>() != 0) return false;

    const Tensor added = Tensor::empty_on(e.device, {share});
    float* at = added.data<float>();
    for (const Block& b : plan.blocks) {
      if (b.owner != me) continue;
      owned.push_back(noisy(b, e, 1));
      owned.back().x = at;
      at += b.coded.n;
    }
    const Tensor sums = ours.slice(me, me + 1).reshape({slot});
    add_up(e, owned, theirs, slot);
    encode(e, owned, sums, "encode sums");
    e.ledger.book(
        e.comm, plan.parts, [&] { e.comm.all_gather(sums, theirs); }, true);
    const TraceRange range("compress", "decode");
    HEDDLE_DISPATCH(e.device, decode_blocks(e.device, all, theirs.data<uint8_t>()));
    std::vector<Tensor> values;
    for (const Item& item : e.compressed) values.push_back(item.tensor);
    for (const auto& [name, x] : e.dense) values.push_back(x);
    return largest_magnitude_of(values) < kInfinite;  // beyond fp16, or beyond fp32 in the sum
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
  static void encode(const Exchange& e, const std::vector<CodedBlock>& blocks, const Tensor& bytes,
                     const char* phase) {
    const TraceRange range("compress", phase);
    HEDDLE_DISPATCH(e.device, encode_blocks(e.device, blocks, bytes.data<uint8_t>()));
  }
  static void add_up(const Exchange& e, const std::vector<CodedBlock>& owned,
                     const Tensor& received, int64_t slot) {
    const TraceRange range("compress", "add up");
    const uint8_t* bytes = received.data<uint8_t>();
    HEDDLE_DISPATCH(e.device, add_blocks(e.device, owned, bytes, slot, e.comm.size()));
  }

  Figures rounding(const Item& item) const {
    const auto n = static_cast<double>(item.n());
    if (coding_ != Coding::levels) return {{"elements", n, Unit::count}, {"bits for each", 16}};
    const Tensor x = item.tensor.to(Device{});
    const double lost = lost_norms(*item.layer, x, {item.layer->choice})[0];
    return {{"elements", n, Unit::count},
            {"bits for each", item.layer->choice},
            {"rounding error over the norm", 100 * lost / norm(x), Unit::percent}};
  }

  // With its own random numbers for each step (28 bits), rank (12), layer (15) and round (1), so
  // that the rounding errors of ranks are independent.
  CodedBlock noisy(const Block& b, const Exchange& e, uint64_t round) const {
    CodedBlock out = b.coded;
    out.stochastic = stochastic_;
    out.seed = seed_;
    out.stream = stream_id(Stream::codec, static_cast<uint64_t>(e.step) << 28 |
                                              static_cast<uint64_t>(e.comm.rank()) << 16 |
                                              b.layer << 1 | round);
    return out;
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
