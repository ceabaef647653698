// What somebody wrote behind --compress: a family of algorithms and its settings. Which families
// and keys there are stands in one table (families.cpp).
//
//   CompressSpec spec = parse_compress("scalecom:rate=100,beta=0.1");
//   spec.values.at("rate");   // 100
#pragma once

#include <map>
#include <string>
#include <vector>

namespace heddle {

struct SpecKey {
  std::string name;
  double initial;            // without this key
  double low = 1, high = 0;  // numbers that are allowed; none: words only
  bool whole = false;
  std::vector<std::string> words = {};  // allowed instead; a word's value is its place from 0
};

struct CompressSpec {
  std::string family = "none";
  std::map<std::string, double> values = {};  // of every key of the family
};

// "topk", "qsgd:bits=4,rounding=nearest". Throws InputError for an unknown family or key, naming
// the nearest known one, and for a value that is not allowed.
CompressSpec parse_compress(const std::string& text);
// "rate=50,beta=0.1": the value of every key. `where` begins the messages.
std::map<std::string, double> parse_settings(const std::string& text,
                                             const std::vector<SpecKey>& keys,
                                             const std::string& where);
// The text with all keys, in the order of the table.
std::string to_string(const CompressSpec& spec);

// Throws InputError unless the number is one that the key allows or stands for one of its words;
// `where` begins the message.
void check_value(const SpecKey& key, double value, const std::string& where);

}  // namespace heddle
