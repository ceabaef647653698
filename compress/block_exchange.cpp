#include "compress/block_exchange.h"

#include <algorithm>

#include "compress/codecs/magnitude.h"
#include "compress/codecs/sparse_kernels.h"
#include "core/kernels.h"
#include "core/shared_kernel.h"

namespace heddle {
namespace {

struct Run {
  CodedBlocks coded;          // at their offset in the owner's slot
  const CodedTensor* tensor;  // whose elements these are
  int owner;                  // rank that adds them up
  int64_t added;              // index of the first among all that this rank adds up
};

// Divides a bucket's blocks among their owners, in similar shares of the bytes.
struct Plan {
  std::vector<Run> runs;
  std::vector<PayloadPart> parts;
  std::vector<int64_t> used, added;  // bytes of each owner's slot, and elements

  Plan(const std::vector<CodedTensor>& tensors, int ranks) : used(to_size(ranks)), added(used) {
    int64_t elements = 0, bytes = 0, at = 0;
    for (const CodedTensor& t : tensors) elements += t.x.size();
    // Short enough that the owners get similar shares of a small bucket.
    const int64_t longest = std::max<int64_t>(elements / (128 * ranks) / 16 * 16, 16);
    std::vector<CodedBlocks> forms;
    for (const CodedTensor& t : tensors) {
      CodedBlocks& form = forms.emplace_back(t.form);
      form.x = t.x.data<float>();
      form.n = t.x.size();
      if (form.coding != Coding::levels) form.block = std::min(form.block, longest);
      bytes += form.bytes(4);
      const int64_t scales = form.coding == Coding::levels ? 4 * form.count() : 0;
      parts.push_back({t.name, kind_of(t.name), form.bytes(1) - scales});
      if (scales > 0) parts.push_back({t.name, PayloadKind::scales, scales});
    }
    for (size_t i = 0; i < tensors.size(); ++i)
      for (int64_t done = 0; done < forms[i].count(); done += runs.back().coded.count()) {
        const int64_t owner = at * ranks / bytes, next = ceil_div((owner + 1) * bytes, ranks);
        CodedBlocks some = forms[i].from(done, ceil_div(next - at, forms[i].stride()));
        some.offset = used[to_size(owner)];
        used[to_size(owner)] += some.bytes(4);
        at += some.bytes(4);
        runs.push_back({some, &tensors[i], to_int(owner), added[to_size(owner)]});
        added[to_size(owner)] += some.n;
      }
  }
};

// Returns blocks with their random numbers' key: step (28 bits), rank (12), layer (15) and round
// (1), so that the rounding errors of ranks are independent.
CodedBlocks keyed(const Run& b, const Exchange& e, uint64_t round) {
  CodedBlocks out = b.coded;
  const uint64_t step = static_cast<uint64_t>(e.step) << 28;
  const uint64_t rank = static_cast<uint64_t>(e.comm.rank()) << 16;
  out.stream = stream_id(Stream::codec, step | rank | b.tensor->layer << 1 | round);
  return out;
}

void encode(const char* phase, const std::vector<CodedBlocks>& runs, const Tensor& bytes) {
  const TraceRange range("compress", phase);
  HEDDLE_DISPATCH(bytes.device(), encode_blocks(runs, bytes.data<uint8_t>()));
}

}  // namespace

bool sum_blocks(Exchange& e, std::vector<CodedTensor> tensors, uint32_t most) {
  const int p = e.comm.size(), me = e.comm.rank();
  const Tensor flag = Tensor::empty_on(e.device, {1});
  write_flag(e, flag);
  tensors.push_back({"flag", flag, {}, 0});
  Plan plan(tensors, p);
  const int64_t slot = std::ranges::max(plan.used);
  int64_t rest = p * slot;  // flag and padding
  plan.parts.pop_back();
  for (const PayloadPart& part : plan.parts) rest -= part.bytes;
  plan.parts.push_back({"flag", PayloadKind::control, rest});
  const Tensor ours = Tensor::empty_on(e.device, {p, slot}, DType::u8);
  const Tensor theirs = Tensor::empty_on(e.device, {p, slot}, DType::u8);
  ours.fill_zero();
  const Tensor added = Tensor::empty_on(e.device, {plan.added[to_size(me)]});
  std::vector<CodedBlocks> all, owned;
  for (const Run& b : plan.runs) {
    all.push_back(keyed(b, e, 0));
    all.back().offset += b.owner * slot;
    if (b.owner != me) continue;
    owned.push_back(keyed(b, e, 1));
    owned.back().x = added.data<float>() + b.added;
  }
  encode("encode", all, ours);
  e.ledger.book(e.comm, plan.parts, [&] { e.comm.all_to_all(ours, theirs); });
  const Tensor sums = ours.slice(me, me + 1).reshape({slot});
  {
    const TraceRange range("compress", "add up");
    HEDDLE_DISPATCH(e.device, add_blocks(owned, theirs.data<uint8_t>(), slot, p));
  }
  encode("encode sums", owned, sums);
  e.ledger.book(
      e.comm, plan.parts, [&] { e.comm.all_gather(sums, theirs); }, true);
  const TraceRange range("compress", "decode");
  HEDDLE_DISPATCH(e.device, decode_blocks(all, theirs.data<uint8_t>()));
  for (const Run& b : plan.runs) {
    const Tensor& lost = b.tensor->lost;
    if (b.owner != me || !lost.defined()) continue;
    const int64_t begin = b.coded.begin, end = begin + b.coded.n;
    const Tensor sum = added.slice(b.added, b.added + b.coded.n);
    axpy(-1, b.tensor->x.slice(begin, end), sum);  // exact
    axpy(1, sum, lost.slice(begin, end));
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
    tensors.push_back({name, flat, {.coding = coding}, 0});
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
  return sum_blocks(e, std::move(tensors), magnitude(kMaxSum));
}

bool BlockExchange::exchange(Exchange& e) {
  std::vector<CodedTensor> tensors;
  tensors.reserve(e.compressed.size() + e.dense.size());
  for (const Item& item : e.compressed) {
    CodedBlocks form = form_;
    form.bits = to_int(item.layer->choice);
    tensors.push_back({item.name(), item.tensor, form, item.layer->index});
    explain("select", item.name(), [&] { return rounding(item); });
  }
  for (const auto& [name, x] : e.dense) tensors.push_back({name, x, {}, 0});
  // Infinite: beyond fp16, or beyond fp32 in the sum.
  return sum_blocks(e, std::move(tensors), kInfinite - 1);
}

int64_t BlockExchange::bytes(const Layer& layer, double bits) const {
  CodedBlocks form = form_;
  form.n = layer.size();
  form.bits = to_int(bits);
  return form.bytes(1);
}

Figures BlockExchange::rounding(const Item& item) const {
  return {{"elements", to_double(item.n()), Unit::count}, {"bits for each", 16}};
}

}  // namespace heddle
