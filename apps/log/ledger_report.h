// Reports the ledger for people (a table at the end of a run) and for programs (a line of
// metrics.jsonl).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "comm/ledger.h"

namespace heddle {

// Returns the bytes of this rank by layer and kind, the largest layer first, with both directions
// and the totals. `counted`: what the collectives counted, from which the ledger should not differ.
std::string ledger_table(const Ledger& ledger, const Traffic& counted);

// Returns {"ledger": {layer: {kind: {"payload": n, "sent": n, "received": n}}}, "sent": …,
// "received": …}, in bytes.
nlohmann::ordered_json ledger_json(const Ledger& ledger);

}  // namespace heddle
