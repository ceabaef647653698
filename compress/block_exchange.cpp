#include "compress/block_exchange.h"

#include <algorithm>

#include "compress/codecs/magnitude.h"
#include "compress/codecs/sparse_kernels.h"
#include "core/kernels.h"
#include "core/shared_kernel.h"

namespace heddle {
namespace {

struct Block {
  CodedBlock coded;           // at its offset in the owner's slot
  const CodedTensor* tensor;  // whose elements these are
  int owner;                  // rank that adds it up
};

// Divides a bucket's blocks among their owners, each in the emptiest slot.
struct Plan {
  std::vector<Block> blocks;
  std::vector<PayloadPart> parts;
  std::vector<int64_t> used;  // bytes of each owner's slot, which begins with a flag

  // Adds the blocks of a tensor, of at most `length` elements.
  void add(const CodedTensor& tensor, int64_t length) {
    CodedBlock form = tensor.form;
    const int64_t scale = form.coding == Coding::levels ? 4 : 0;
    int64_t values = 0, scales = 0;
    for (form.begin = 0; form.begin < tensor.x.size(); form.begin += length) {
      form.x = tensor.x.data<float>() + form.begin;
      form.n = std::min(length, tensor.x.size() - form.begin);
      const auto slot = std::ranges::min_element(used);
      form.offset = *slot;
      blocks.push_back({form, &tensor, static_cast<int>(slot - used.begin())});
      const int64_t bytes = encoded_bytes(form.coding, form.bits, form.n);
      *slot += (bytes + 3) / 4 * 4;
      scales += scale;
      values += bytes - scale;
    }
    parts.push_back({tensor.name, kind_of(tensor.name), values});
    if (scale > 0) parts.push_back({tensor.name, PayloadKind::scales, scales});
  }
};

// Returns a block with its random numbers' key: step (28 bits), rank (12), layer (15) and round
// (1), so that the rounding errors of ranks are independent.
CodedBlock keyed(const Block& b, const Exchange& e, uint64_t round) {
  CodedBlock out = b.coded;
  const uint64_t step = static_cast<uint64_t>(e.step) << 28;
  const uint64_t rank = static_cast<uint64_t>(e.comm.rank()) << 16;
  out.stream = stream_id(Stream::codec, step | rank | b.tensor->layer << 1 | round);
  return out;
}

void encode(const char* phase, const std::vector<CodedBlock>& blocks, const Tensor& bytes) {
  const TraceRange range("compress", phase);
  const Device device = bytes.device();
  HEDDLE_DISPATCH(device, encode_blocks(device, blocks, bytes.data<uint8_t>()));
}

}  // namespace

bool sum_blocks(Exchange& e, const std::vector<CodedTensor>& tensors, uint32_t most) {
  const int p = e.comm.size(), me = e.comm.rank();
  Plan plan;
  plan.used.assign(static_cast<size_t>(p), 4);
  // Short enough that the owners get similar shares of a small bucket.
  int64_t elements = 0;
  for (const CodedTensor& t : tensors) elements += t.x.size();
  const int64_t length = std::max<int64_t>(elements / (4 * p) / 64 * 64, 64);
  for (const CodedTensor& t : tensors)
    plan.add(t, t.form.coding == Coding::levels ? t.block : std::min(t.block, length));
  const int64_t slot = std::ranges::max(plan.used);
  int64_t rest = p * slot;  // flags and padding
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
    all.push_back(keyed(b, e, 0));
    all.back().offset += b.owner * slot;
    if (b.owner == me) share += b.coded.n;
  }
  encode("encode", all, ours);
  e.ledger.book(e.comm, plan.parts, [&] { e.comm.all_to_all(ours, theirs); });
  for (int r = 0; r < p; ++r)  // every rank has received all flags
    if (*flag_of(theirs, r).to(Device{}).data<uint8_t>() != 0) return false;

  const Tensor added = Tensor::empty_on(e.device, {share});
  float* at = added.data<float>();
  for (const Block& b : plan.blocks) {
    if (b.owner != me) continue;
    owned.push_back(keyed(b, e, 1));
    owned.back().x = at;
    at += b.coded.n;
  }
  const Tensor sums = ours.slice(me, me + 1).reshape({slot});
  {
    const TraceRange range("compress", "add up");
    HEDDLE_DISPATCH(e.device, add_blocks(e.device, owned, theirs.data<uint8_t>(), slot, p));
  }
  encode("encode sums", owned, sums);
  e.ledger.book(
      e.comm, plan.parts, [&] { e.comm.all_gather(sums, theirs); }, true);
  const TraceRange range("compress", "decode");
  HEDDLE_DISPATCH(e.device, decode_blocks(e.device, all, theirs.data<uint8_t>()));
  int64_t begin = 0;
  for (const Block& b : plan.blocks) {
    if (b.owner != me) continue;
    const CodedBlock& coded = b.coded;
    if (const Tensor& lost = b.tensor->lost; lost.defined()) {
      const Tensor sum = added.slice(begin, begin + coded.n);
      axpy(-1, b.tensor->x.slice(coded.begin, coded.begin + coded.n), sum);  // exact
      axpy(1, sum, lost.slice(coded.begin, coded.begin + coded.n));
    }
    begin += coded.n;
  }
  std::vector<Tensor> values;
  values.reserve(tensors.size());
  for (const CodedTensor& t : tensors) values.push_back(t.x);
  return largest_magnitude_of(values) <= most;
}

bool all_reduce_bf16(Exchange& e, const NamedTensors& dense, const NamedTensors& rounded,
                     const std::vector<Tensor>& lost) {
  std::vector<CodedTensor> tensors;
  tensors.reserve(dense.size() + rounded.size());
  const auto add = [&](const std::string& name, const Tensor& x, Coding coding) {
    const Tensor flat = x.reshape({x.size()});
    tensors.push_back({name, flat, {.coding = coding}, BlockExchange::kBlock, 0});
  };
  for (const auto& [name, x] : dense) add(name, x, Coding::fp32);
  for (size_t i = 0; i < rounded.size(); ++i) {
    const auto& [name, x] = rounded[i];
    add(name, x, Coding::bf16);
    if (lost.empty() || !lost[i].defined()) continue;
    lost[i].copy_from(x);
    x.copy_from(converted(converted(x, DType::bf16, Layout::plain), DType::f32, Layout::plain));
    axpy(-1, x, lost[i]);
    tensors.back().lost = lost[i];
  }
  return sum_blocks(e, tensors, magnitude(kMaxSum));
}

bool BlockExchange::exchange(Exchange& e) {
  std::vector<CodedTensor> tensors;
  tensors.reserve(e.compressed.size() + e.dense.size());
  for (const Item& item : e.compressed) {
    const CodedBlock form{.seed = seed_,
                          .coding = coding_,
                          .stochastic = stochastic_,
                          .bits = static_cast<int>(item.layer->choice)};
    tensors.push_back({item.name(), item.tensor, form, block_, item.layer->index});
    explain("select", item.name(), [&] { return rounding(item); });
  }
  for (const auto& [name, x] : e.dense) tensors.push_back({name, x, {}, kBlock, 0});
  return sum_blocks(e, tensors, kInfinite - 1);  // beyond fp16, or beyond fp32 in the sum
}

int64_t BlockExchange::bytes(const Layer& layer, double bits) const {
  const int64_t n = layer.size(), rest = n % block_;
  const auto encoded = [&](int64_t m) { return encoded_bytes(coding_, static_cast<int>(bits), m); };
  return n / block_ * encoded(block_) + (rest > 0 ? encoded(rest) : 0);
}

Figures BlockExchange::rounding(const Item& item) const {
  return {{"elements", static_cast<double>(item.n()), Unit::count}, {"bits for each", 16}};
}

}  // namespace heddle
