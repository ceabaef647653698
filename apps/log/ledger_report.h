// The ledger for people (a table at the end of a run) and for programs (a line of metrics.jsonl).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "comm/ledger.h"

namespace heddle {

// Bytes of this rank by layer and kind, the largest first, with both directions and the totals.
std::string ledger_table(const Ledger& ledger, const Traffic& counted);

// {"ledger": {layer: {kind: {"payload": n, "sent": n, "received": n}}}, "sent": …, "received": …}
nlohmann::ordered_json ledger_json(const Ledger& ledger);

}  // namespace heddle
