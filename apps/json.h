// Writes one JSON object on one line, keys in the order of the calls. Numbers are the shortest text
// that reads back as the same number; NaN and infinity, which JSON lacks, become null.
//
//   JsonObject().add("step", 5).add("loss", 0.25).text()   ->   {"step": 5, "loss": 0.25}
#pragma once

#include <cmath>
#include <concepts>
#include <string>
#include <string_view>
#include <vector>

#include "apps/flags.h"
#include "core/error.h"

namespace heddle {

inline std::string quote_json(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      constexpr char kHex[] = "0123456789abcdef";
      out += "\\u00";
      out += kHex[c >> 4];
      out += kHex[c & 15];
    } else {
      out += c;
    }
  }
  return out + '"';
}

class JsonObject {
 public:
  template <std::integral T>
  JsonObject& add(std::string_view key, T value) {
    if constexpr (std::same_as<T, bool>)
      return raw(key, value ? "true" : "false");
    else
      return raw(key, std::to_string(value));
  }
  JsonObject& add(std::string_view key, double value) {
    return raw(key, std::isfinite(value) ? format_number(value) : "null");
  }
  JsonObject& add(std::string_view key, std::string_view value) {
    return raw(key, quote_json(value));
  }
  JsonObject& add(std::string_view key, const char* value) { return raw(key, quote_json(value)); }
  JsonObject& add(std::string_view key, const std::vector<std::string>& values) {
    std::string list;
    for (const std::string& value : values) list += (list.empty() ? "" : ", ") + quote_json(value);
    return raw(key, concat("[", list, "]"));
  }
  JsonObject& add(std::string_view key, const JsonObject& value) { return raw(key, value.text()); }

  // A value that is JSON already.
  JsonObject& raw(std::string_view key, const std::string& json) {
    if (!body_.empty()) body_ += ", ";
    body_ += quote_json(key) + ": " + json;
    return *this;
  }
  std::string text() const { return concat("{", body_, "}"); }

 private:
  std::string body_;
};

}  // namespace heddle
