// CompressSpec: the value of --compress, a family of algorithms and its settings. The table of
// families and keys is in families.cpp.
//
//   CompressSpec spec = parse_compress("scalecom:rate=100,beta=0.1");
//   spec.values.at("rate");   // 100
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/names.h"

namespace heddle {

struct SpecKey {
  std::string name;
  double initial;                       // default
  double low = 1, high = 0;             // range of numbers; low > high: words only
  bool whole = false;                   // integers only
  std::vector<std::string> words = {};  // allowed in place of a number; a word's value is its index
};

struct CompressSpec {
  std::string family = "none";
  std::map<std::string, double> values = {};  // one for every key of the family
};

// Parses "topk" or "qsgd:bits=4,rounding=nearest". Throws InputError for an unknown family or key,
// naming the nearest known one, and for a value that is not allowed.
CompressSpec parse_compress(const std::string& text);
// Parses "rate=50,beta=0.1" and returns the value of every key. Throws as parse_compress() does;
// `where` begins the message.
std::map<std::string, double> parse_settings(const std::string& text,
                                             const std::vector<SpecKey>& keys,
                                             const std::string& where);
// Returns the row of a table, of families or of settings, that has this name. Throws InputError,
// beginning with `where`, that suggests the nearest name.
template <class Table>
const typename Table::value_type& find_row(const Table& table, const std::string& name,
                                           const std::string& where) {
  std::vector<std::string> known;
  for (const auto& row : table) {
    if (row.name == name) return row;
    known.push_back(row.name);
  }
  throw InputError(concat(where, ": \"", name, "\" is not known; ",
                          known.empty() ? "nothing is expected here" : suggestion(name, known)));
}
// parse_compress() for a table of one's own, whose rows have a name and keys.
template <class Table>
CompressSpec parse_spec(const std::string& text, const Table& table, const std::string& where) {
  const size_t colon = std::min(text.find(':'), text.size());
  const auto& row = find_row(table, text.substr(0, colon), where);
  CompressSpec spec{row.name};
  if (colon < text.size())
    spec.values = parse_settings(text.substr(colon + 1), row.keys, concat(where, " ", row.name));
  for (const SpecKey& key : row.keys) spec.values.emplace(key.name, key.initial);
  return spec;
}
// Returns the text with all keys, in the order of the table; parse_compress() reads it back.
std::string to_string(const CompressSpec& spec);

// Throws InputError, beginning with `where`, unless the key allows the number or one of its words
// has it as its value.
void check_value(const SpecKey& key, double value, const std::string& where);

}  // namespace heddle
