// Ledger: attributes every byte on the wire to a layer and a kind of payload. Each collective is
// booked with the parts of its payload; the bytes that the communicator counts during the call are
// divided among the parts in proportion to their sizes, without remainder, so that the ledger's
// total equals the communicator's.
//
//   ledger.book(comm, {{"conv1.weight", PayloadKind::values, 1728}}, [&] { comm.all_reduce(x); });
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"

namespace heddle {

// values: gradients, encoded or not. indices: which elements they are. scales: factors of a
// quantiser. control: flags, and everything other than gradients (losses, checks, initial weights).
// features: input that other ranks own, and the ids of its rows.
enum class PayloadKind : uint8_t { values, indices, scales, control, features };
constexpr size_t kPayloadKinds = 5;
const char* kind_name(PayloadKind kind);  // "values", "indices", …

struct PayloadPart {
  std::string layer;  // a parameter's name; for control, its purpose
  PayloadKind kind;
  int64_t bytes;  // of the payload, which may travel several times
  // Bytes of values as the algorithm's paper counts them, for ratio_layers; -1: as they are.
  int64_t counted = -1;
};

class Ledger {
 public:
  // Runs the call and books what it sent and received, even if it throws. `again` marks the second
  // trip of a payload (to its owner and back), which is not counted as payload again. If all parts
  // have 0 bytes, they get equal shares. `parts` is read after the call, which may extend it.
  // `file` and `line` of the caller appear in --explain-step. Throws InputError for no parts, and
  // what the call throws.
  void book(Communicator& comm, const std::vector<PayloadPart>& parts,
            const std::function<void()>& call, bool again = false,
            const char* file = __builtin_FILE(), int line = __builtin_LINE());

  struct Entry {
    int64_t payload = 0;             // bytes, counted once per collective
    int64_t sent = 0, received = 0;  // bytes of this rank on the wire
    int64_t counted = 0;             // the payload's, as in PayloadPart, while count(true)
  };
  void count(bool on) { counting_ = on; }  // true at first
  const std::map<std::pair<std::string, PayloadKind>, Entry>& entries() const { return entries_; }
  // Returns the seconds spent in collectives that carried gradients, by the communicator's clock.
  double seconds() const { return seconds_; }
  // Adds what an earlier process of a resumed run has booked.
  void restore(const std::map<std::pair<std::string, PayloadKind>, Entry>& entries);
  // Returns the sum over all entries, or over those of one kind.
  Entry total(std::optional<PayloadKind> kind = {}) const;

 private:
  std::map<std::pair<std::string, PayloadKind>, Entry> entries_;
  double seconds_ = 0;
  bool counting_ = true;
};

}  // namespace heddle
