#include "compress/exchange.h"

#include <algorithm>
#include <limits>

#include "compress/block_exchange.h"
#include "compress/codecs/magnitude.h"
#include "compress/codecs/sparse_kernels.h"
#include "core/joined_launches.h"
#include "core/kernels.h"
#include "core/shared_kernel.h"
#include "core/trace.h"

namespace heddle {
namespace {

// Returns the lengths of all ranks' messages, by rank; waits for them.
std::vector<int64_t> gather_lengths(Communicator& comm, int64_t mine, int64_t least, int64_t most,
                                    const char* where) {
  std::vector<int64_t> lengths;
  for (const auto& length : gather_values(comm, std::vector{mine})) {
    if (length[0] < least || length[0] > most)
      throw Error(concat(where, ": rank ", lengths.size(), " announces ", length[0],
                         " bytes, expected ", least, " to ", most));
    lengths.push_back(length[0]);
  }
  return lengths;
}

}  // namespace

void explain_selection(const Exchange::Item& item, const Tensor& values, const char* file,
                       int line) {
  const auto figures = [&] {
    const double kept = squared_norm(values) / squared_norm(item.tensor);
    return Figures{{"chosen", to_double(values.size()), Unit::count},
                   {"elements", to_double(item.n()), Unit::count},
                   {"energy kept", 100 * kept, Unit::percent}};
  };
  explain("select", item.name(), figures, file, line);
}

PayloadKind kind_of(const std::string& name) {
  return name == kControlWords ? PayloadKind::control : PayloadKind::values;
}

void write_flag(const Exchange& e, const Tensor& flag) {
  if (e.unchecked.defined())
    HEDDLE_DISPATCH(e.device, flag_above(e.unchecked, magnitude(kMaxAddend), flag));
  else
    fill(flag, e.finite ? 0 : std::numeric_limits<float>::infinity());
}

bool all_reduce(Exchange& e, const NamedTensors& tensors) {
  std::vector<PayloadPart> parts;
  int64_t n = 0;
  for (const auto& [name, x] : tensors) {
    parts.push_back({name, kind_of(name), x.bytes()});
    n += x.size();
  }
  parts.push_back({"flag", PayloadKind::control, 4});
  const Tensor payload = Tensor::empty_on(e.device, {n + 1});
  write_flag(e, payload.slice(n, n + 1));
  const auto copy_all = [&](bool into) {
    JoinedLaunches joined;
    int64_t at = 0;
    for (const auto& [name, x] : tensors) {
      const Tensor part = payload.slice(at, at + x.size());
      HEDDLE_DISPATCH(e.device, copy_words(into ? x : part, into ? part : x));
      at += x.size();
    }
    joined.launch();
  };
  copy_all(true);
  e.ledger.book(e.comm, parts, [&] { e.comm.all_reduce(payload); });
  if (largest_magnitude_of({payload}) > magnitude(kMaxSum)) return false;
  copy_all(false);
  return true;
}

bool sum_values(Exchange& e, const NamedTensors& dense, const NamedTensors& values, Coding coding,
                const std::vector<Tensor>& lost) {
  if (coding == Coding::bf16) return all_reduce_bf16(e, dense, values, lost);
  NamedTensors all = dense;
  all.insert(all.end(), values.begin(), values.end());
  return all_reduce(e, all);
}

bool sum_at_indices(Exchange& e, ErrorFeedback& feedback, const std::vector<Tensor>& indices,
                    Coding coding) {
  NamedTensors sums;
  std::vector<Tensor> lost(indices.size());
  {
    const TraceRange range("compress", "gather values");
    JoinedLaunches joined;
    for (size_t i = 0; i < indices.size(); ++i) {
      const Tensor values = Tensor::empty_on(e.device, indices[i].shape());
      HEDDLE_DISPATCH(e.device, gather(e.compressed[i].tensor, indices[i], values));
      sums.emplace_back(e.compressed[i].name(), values);
      if (coding == Coding::bf16) lost[i] = Tensor::empty_like(values);
    }
    joined.launch();
    for (size_t i = 0; i < indices.size(); ++i) explain_selection(e.compressed[i], sums[i].second);
  }
  if (!sum_values(e, e.dense, sums, coding, lost)) return false;
  const TraceRange range("compress", "residuals, sums");
  JoinedLaunches joined;
  const auto remove_sent = [&] {
    for (size_t i = 0; i < indices.size(); ++i) {
      const Exchange::Item& item = e.compressed[i];
      feedback.remove_sent(item.name(), item.old_residual(), indices[i], lost[i]);
    }
  };
  if (feedback.beta() < 1) {  // the filter reads what is left
    remove_sent();
    joined.launch();
  }
  for (const Exchange::Item& item : e.compressed) feedback.renew(item.name(), item.old_residual());
  if (feedback.beta() == 1) remove_sent();
  for (size_t i = 0; i < indices.size(); ++i)  // where renew() clears the old residuals
    HEDDLE_DISPATCH(e.device, scatter(sums[i].second, indices[i], e.compressed[i].sum));
  joined.launch();
  return true;
}

Messages gather_messages(Exchange& e, const std::vector<MessagePart>& parts, int64_t least,
                         int64_t most, const char* where) {
  const int ranks = e.comm.size();
  const Tensor message = Tensor::empty_on(e.device, {most}, DType::u8);
  std::vector<PayloadPart> booked;
  int64_t length = 0;
  const auto append = [&](const MessagePart& part) {
    message.slice(length, length + part.data.bytes()).copy_from(part.data.as_bytes());
    length += part.data.bytes();
    booked.push_back({part.layer, part.kind, part.data.bytes(), part.counted});
  };
  {
    const TraceRange range("compress", "join parts");
    check(!e.unchecked.defined(), where, ": a message needs checked gradients");
    const Tensor flag = Tensor::empty_on(Device{}, {1}, DType::u8);
    *flag.data<uint8_t>() = e.finite ? 0 : 1;
    append({"flag", PayloadKind::control, flag});
    std::ranges::for_each(parts, append);
    message.slice(length, most).fill_zero();
  }
  Messages all{{}, std::vector<int64_t>(to_size(ranks), length), true};
  // Booked together: waiting for the others' lengths counts as time of this exchange.
  e.ledger.book(e.comm, booked, [&] {
    if (least < most) {
      all.lengths = gather_lengths(e.comm, length, least, most, where);
      booked.push_back({"lengths", PayloadKind::control, 8});
    }
    const int64_t longest = std::ranges::max(all.lengths);
    if (least < most) booked.push_back({"padding", PayloadKind::control, longest - length});
    all.bytes = Tensor::empty_on(e.device, {ranks, longest}, DType::u8);
    e.comm.all_gather(message.slice(0, longest), all.bytes);
  });
  for (int r = 0; r < ranks; ++r)
    all.finite &= *all.row(r).slice(0, 1).to(Device{}).data<uint8_t>() == 0;
  return all;
}

}  // namespace heddle
