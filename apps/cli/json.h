// JSON from files that other programs may have written. The library parses any depth, but copies
// and writes values by recursion: a file of brackets would exhaust the stack. So readers of files
// call parse_json() or check_json_depth() first.
//
//   const nlohmann::json state = parse_json(read_text_file(path), path);
#pragma once

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "core/error.h"
#include "core/files.h"

namespace heddle {

constexpr int kMaxJsonDepth = 100;

// Returns one line of JSON with its newline. Numbers read back as the same numbers; NaN and
// infinity, which JSON lacks, become null; bytes that are not UTF-8 are replaced.
std::string json_line(const nlohmann::ordered_json& value);

// Throws an InputError that begins with `where` for text nested deeper than kMaxJsonDepth.
void check_json_depth(std::string_view text, const std::string& where);

// Returns read(), which extracts values from JSON. Throws an InputError that begins with `where`
// for one that is missing or has another type.
template <class Read>
auto read_members(const std::string& where, const Read& read) {
  try {
    return read();
  } catch (const nlohmann::json::exception& error) {
    throw InputError(concat(where, ": ", printable(error.what(), 200)));
  }
}

// Returns the value of the text. Throws an InputError that begins with `where` for text that is not
// JSON or is nested too deeply.
template <class Json = nlohmann::json>
Json parse_json(std::string_view text, const std::string& where) {
  check_json_depth(text, where);
  return read_members(where + ": is not JSON", [&] { return Json::parse(text); });
}

// Reads members leniently from an object that others wrote. One that is missing or of another type
// reads as NaN (a number), 0 (an integer) or "" (a string).
template <class Json>
double number_at(const Json& object, const std::string& key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->template get<double>() : NAN;
}
template <class Json>
int64_t whole_at(const Json& object, const std::string& key) {
  const double value = number_at(object, key);
  return std::abs(value) < 1e15 ? static_cast<int64_t>(value) : 0;
}
template <class Json>
std::string text_at(const Json& object, const std::string& key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->template get<std::string>() : "";
}

// Returns a whole number. Throws as get() does for another type, and InputError for a number like
// 1e29, for which get() has undefined behaviour.
template <class Json>
int64_t whole(const Json& value) {
  if (value.is_number_float()) {
    const auto number = value.template get<double>();
    check(std::abs(number) < 1e18, "expected a whole number below 1e18, found ", number);
  }
  return value.template get<int64_t>();
}

}  // namespace heddle
