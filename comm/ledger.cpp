#include "comm/ledger.h"

#include "core/error.h"
#include "core/streams.h"
#include "core/trace.h"

namespace heddle {
namespace {

void add(Ledger::Entry& into, const Ledger::Entry& from) {
  into.payload += from.payload;
  into.sent += from.sent;
  into.received += from.received;
  into.counted += from.counted;
}

// Returns the share of `bytes` for the interval [begin, end) of `total`; the shares of intervals
// that partition `total` add up to `bytes`.
int64_t share(int64_t bytes, int64_t begin, int64_t end, int64_t total) {
  __extension__ using Wide = __int128;
  const auto at = [&](int64_t x) { return to_int64(Wide{bytes} * x / total); };
  return at(end) - at(begin);
}

}  // namespace

const char* kind_name(PayloadKind kind) {
  constexpr const char* kNames[] = {"values", "indices", "scales", "control", "features"};
  return kNames[to_size(kind)];
}

void Ledger::book(Communicator& comm, const std::vector<PayloadPart>& parts,
                  const std::function<void()>& call, bool again, const char* file, int line) {
  check(!parts.empty(), "ledger: expected at least one part of a payload");
  const Traffic before = comm.total_traffic();
  if (comm.size() > 1) wait_for_stream();  // a GPU's pending encoding is not part of the exchange
  const double begin_s = comm.now();
  const auto close = [&] {
    const Traffic after = comm.total_traffic();
    const int64_t sent = after.sent - before.sent, received = after.received - before.received;
    if (parts.size() > 1 || parts[0].kind < PayloadKind::control) seconds_ += comm.now() - begin_s;
    int64_t total = 0, begin = 0;
    for (const PayloadPart& part : parts) total += part.bytes;
    const int64_t even = total == 0;  // each part then counts as one byte
    if (even) total = std::ssize(parts);
    for (const PayloadPart& part : parts) {
      const int64_t end = begin + (even ? 1 : part.bytes);
      const int64_t payload = again ? 0 : part.bytes;
      add(entries_[{part.layer, part.kind}],
          {payload, share(sent, begin, end, total), share(received, begin, end, total),
           !counting_         ? 0
           : part.counted < 0 ? payload
                              : part.counted});
      begin = end;
    }
    const auto figures = [&] {
      std::map<PayloadKind, int64_t> payload;
      for (const PayloadPart& part : parts) payload[part.kind] += part.bytes;
      Figures out;
      for (const auto& [kind, bytes] : payload)
        out.push_back({kind_name(kind), to_double(bytes), Unit::bytes});
      out.push_back({"sent", to_double(sent), Unit::bytes});
      out.push_back({"received", to_double(received), Unit::bytes});
      out.push_back({"took", comm.now() - begin_s, Unit::seconds});
      return out;
    };
    explain("exchange", comm.tag(), figures, file, line);
  };
  try {
    call();
  } catch (...) {
    close();
    throw;
  }
  close();
}

void Ledger::restore(const std::map<std::pair<std::string, PayloadKind>, Entry>& entries) {
  for (const auto& [key, entry] : entries) add(entries_[key], entry);
}

Ledger::Entry Ledger::total(std::optional<PayloadKind> kind) const {
  Entry sum;
  for (const auto& [key, entry] : entries_)
    if (!kind || key.second == *kind) add(sum, entry);
  return sum;
}

}  // namespace heddle
