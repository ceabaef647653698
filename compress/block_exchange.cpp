#include "compress/block_exchange.h"

#include <algorithm>

#include "compress/codecs/magnitude.h"
#include "compress/codecs/sparse_kernels.h"
#include "core/kernels.h"
#include "core/shared_kernel.h"

namespace heddle {
namespace {

// A bucket's blocks, each in the slot of its owner.
template <class Block>
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

}  // namespace

bool BlockExchange::exchange(Exchange& e) {
  const int p = e.comm.size(), me = e.comm.rank();
  Plan<Block> plan;
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

int64_t BlockExchange::bytes(const Layer& layer, double bits) const {
  const int64_t n = layer.parameter->size(), rest = n % block_;
  const auto encoded = [&](int64_t m) { return encoded_bytes(coding_, static_cast<int>(bits), m); };
  return n / block_ * encoded(block_) + (rest > 0 ? encoded(rest) : 0);
}

Figures BlockExchange::rounding(const Item& item) const {
  return {{"elements", static_cast<double>(item.n()), Unit::count}, {"bits for each", 16}};
}

void BlockExchange::encode(const Exchange& e, const std::vector<CodedBlock>& blocks,
                           const Tensor& bytes, const char* phase) {
  const TraceRange range("compress", phase);
  HEDDLE_DISPATCH(e.device, encode_blocks(e.device, blocks, bytes.data<uint8_t>()));
}

void BlockExchange::add_up(const Exchange& e, const std::vector<CodedBlock>& owned,
                           const Tensor& received, int64_t slot) {
  const TraceRange range("compress", "add up");
  const uint8_t* bytes = received.data<uint8_t>();
  HEDDLE_DISPATCH(e.device, add_blocks(e.device, owned, bytes, slot, e.comm.size()));
}

// With its own random numbers for each step (28 bits), rank (12), layer (15) and round (1), so
// that the rounding errors of ranks are independent.
CodedBlock BlockExchange::noisy(const Block& b, const Exchange& e, uint64_t round) const {
  CodedBlock out = b.coded;
  out.stochastic = stochastic_;
  out.seed = seed_;
  out.stream = stream_id(Stream::codec, static_cast<uint64_t>(e.step) << 28 |
                                            static_cast<uint64_t>(e.comm.rank()) << 16 |
                                            b.layer << 1 | round);
  return out;
}

}  // namespace heddle
