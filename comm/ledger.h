// Ledger: what each byte on the wire was for, by layer and kind. A collective is booked with the
// parts that its payload is made of; the bytes that the communicator counted meanwhile are divided
// among the parts in proportion to their size, to the last byte, so that the ledger's total is the
// communicator's.
//
//   ledger.book(comm, {{"conv1.weight", PayloadKind::values, 1728}}, [&] { comm.all_reduce(x); });
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"

namespace heddle {

// values: gradients in whatever form. indices: where they belong. scales: factors of a quantiser.
// control: flags, and everything that is no gradient (losses, checks, initial weights).
enum class PayloadKind : uint8_t { values, indices, scales, control };
const char* kind_name(PayloadKind kind);

struct PayloadPart {
  std::string layer;  // a parameter's name; of control: what it is about
  PayloadKind kind;
  int64_t bytes;  // of the payload, not of the wire
};

class Ledger {
 public:
  // Runs the call and books what it sent and received, even when it throws. A payload that travels
  // twice, to its owner and back, counts as payload once: `again` is the second time. Parts of no
  // bytes at all share alike. Parts are read after the call, which may still add some. `file`,
  // `line`: of the call, for the narration of a step.
  void book(Communicator& comm, const std::vector<PayloadPart>& parts,
            const std::function<void()>& call, bool again = false,
            const char* file = __builtin_FILE(), int line = __builtin_LINE());

  struct Entry {
    int64_t payload = 0;             // bytes of payload, once for each collective
    int64_t sent = 0, received = 0;  // bytes of this rank
  };
  const std::map<std::pair<std::string, PayloadKind>, Entry>& entries() const { return entries_; }
  // Spent in the gradients' collectives (booked with any other kind than control alone), by the
  // communicator's clock.
  double seconds() const { return seconds_; }
  // What an earlier process has booked comes on top.
  void restore(const std::map<std::pair<std::string, PayloadKind>, Entry>& entries);
  // Over all entries, or those of one kind.
  Entry total() const;
  Entry total(PayloadKind kind) const;

 private:
  std::map<std::pair<std::string, PayloadKind>, Entry> entries_;
  double seconds_ = 0;
};

}  // namespace heddle
