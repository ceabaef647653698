#include "apps/log/ledger_report.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <vector>

#include "apps/cli/format.h"

namespace heddle {
namespace {

struct Row {
  std::string layer;
  std::array<int64_t, kPayloadKinds> sent{};
  int64_t all_sent = 0, all_received = 0;
};

}  // namespace

std::string ledger_table(const Ledger& ledger, const Traffic& counted) {
  std::vector<Row> rows;
  Row total{.layer = "all"};
  size_t width = sizeof "not in the ledger";
  for (const auto& [key, entry] : ledger.entries()) {  // by layer, then kind
    if (rows.empty() || rows.back().layer != key.first) rows.push_back({.layer = key.first});
    width = std::max(width, key.first.size());
    for (Row* row : {&rows.back(), &total}) {
      row->sent[to_size(key.second)] += entry.sent;
      row->all_sent += entry.sent;
      row->all_received += entry.received;
    }
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const Row& a, const Row& b) { return a.all_sent > b.all_sent; });
  rows.push_back(total);
  if (counted.sent != total.all_sent || counted.received != total.all_received)
    rows.push_back({.layer = "not in the ledger",
                    .all_sent = counted.sent - total.all_sent,
                    .all_received = counted.received - total.all_received});
  const auto column = [](const std::string& text) { return " " + pad_left(text, 14); };
  std::string out = pad_right("bytes sent", width);
  const size_t kinds = kPayloadKinds - (total.sent.back() == 0 ? 1 : 0);  // graphs have features
  for (size_t kind = 0; kind < kinds; ++kind)
    out += column(kind_name(PayloadKind{static_cast<uint8_t>(kind)}));
  out += column("all") + column("received") + '\n';
  for (const Row& row : rows) {
    out += pad_right(row.layer, width);
    for (size_t kind = 0; kind < kinds; ++kind) out += column(std::to_string(row.sent[kind]));
    out += column(std::to_string(row.all_sent)) + column(std::to_string(row.all_received)) + '\n';
  }
  return out;
}

nlohmann::ordered_json ledger_json(const Ledger& ledger) {
  nlohmann::ordered_json layers = nlohmann::ordered_json::object();
  for (const auto& [key, entry] : ledger.entries())
    layers[key.first][kind_name(key.second)] = {
        {"payload", entry.payload}, {"sent", entry.sent}, {"received", entry.received}};
  const Ledger::Entry total = ledger.total();
  return {{"ledger", layers}, {"sent", total.sent}, {"received", total.received}};
}

}  // namespace heddle
