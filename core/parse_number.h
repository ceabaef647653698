// Numbers in text, in the format of C++ and of no locale.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace heddle {

// Returns the number that the whole text is; nothing for any other text, and for a number that T
// cannot represent.
template <class T>
std::optional<T> parse_number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return value;
}

}  // namespace heddle
