#include "compress/spec.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "compress/families.h"
#include "core/parse_number.h"

namespace heddle {
namespace {

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (size_t begin = 0;;) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    if (end == text.size()) return parts;
    begin = end + 1;
  }
}

std::string allowed(const SpecKey& key) {
  std::string text;
  if (key.low <= key.high)
    text = concat(key.whole ? "a whole number" : "a number", " from ", key.low, " to ", key.high);
  for (const std::string& word : key.words) text += (text.empty() ? "" : " or ") + word;
  return text;
}

// Returns the shortest text that reads back as the same number.
std::string number_text(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

bool is_allowed(const SpecKey& key, double value) {
  return value >= key.low && value <= key.high && (!key.whole || value == std::floor(value));
}

double parse_value(const SpecKey& key, const std::string& text, const std::string& where) {
  if (auto word = std::ranges::find(key.words, text); word != key.words.end())
    return to_double(word - key.words.begin());
  const auto value = parse_number<double>(text);
  check(value && is_allowed(key, *value), where, ": expected ", allowed(key), ", found \"", text,
        "\"");
  return *value;
}

}  // namespace

const Family& find_family(const std::string& name) {
  return find_row(families(), name, "compress");
}

void check_value(const SpecKey& key, double value, const std::string& where) {
  const bool word = value >= 0 && value < to_double(key.words.size()) && value == std::floor(value);
  check(is_allowed(key, value) || word, where, ": ", key.name, ": expected ", allowed(key),
        ", found ", value);
}

std::map<std::string, double> parse_settings(const std::string& text,
                                             const std::vector<SpecKey>& keys,
                                             const std::string& where) {
  std::map<std::string, double> values;
  for (const std::string& item : split(text, ',')) {
    const size_t equals = std::min(item.find('='), item.size());
    const SpecKey& key = find_row(keys, item.substr(0, equals), where);
    const std::string given = item.substr(std::min(equals + 1, item.size()));
    const double value = parse_value(key, given, where + ": " + key.name);
    check(values.emplace(key.name, value).second, where, ": ", key.name, ": given twice");
  }
  for (const SpecKey& key : keys) values.emplace(key.name, key.initial);
  return values;
}

CompressSpec parse_compress(const std::string& text) {
  return parse_spec(text, families(), "compress");
}

std::string to_string(const CompressSpec& spec) {
  std::string text = spec.family;
  for (const SpecKey& key : find_family(spec.family).keys) {
    const double value = spec.values.at(key.name);
    const bool word = !is_allowed(key, value);
    text += (text == spec.family ? ":" : ",") + key.name + "=" +
            (word ? key.words.at(to_size(value)) : number_text(value));
  }
  return text;
}

}  // namespace heddle
