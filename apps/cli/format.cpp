#include "apps/cli/format.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <sstream>

namespace heddle {

std::string format_number(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

std::string format_bytes(int64_t bytes) {
  char text[32];
  const bool small = bytes < 1 << 16;  // below 0.1 MiB
  std::snprintf(text, sizeof text, small ? "%.1f KiB" : "%.1f MiB",
                static_cast<double>(bytes) / (small ? 1 << 10 : 1 << 20));
  return text;
}

std::string format_duration(double seconds) {
  const auto total = static_cast<int>(std::lround(std::clamp(seconds, 0.0, 3.6e7)));
  char text[32];
  if (total >= 3600)
    std::snprintf(text, sizeof text, "%d:%02d:%02d", total / 3600, total / 60 % 60, total % 60);
  else
    std::snprintf(text, sizeof text, "%d:%02d", total / 60, total % 60);
  return text;
}

std::string duration_text(double seconds) {
  if (std::isnan(seconds)) return "–";
  if (seconds >= 5400) return significant(seconds / 3600, 3) + " h";
  if (seconds >= 120) return significant(seconds / 60, 3) + " min";
  if (seconds >= 1 || seconds == 0) return significant(seconds, 3) + " s";
  if (seconds >= 1e-3) return significant(seconds * 1e3, 3) + " ms";
  return significant(seconds * 1e6, 3) + " µs";
}

std::string decimals(double value, int digits) {
  char text[340];  // the largest double has 309 digits before the point
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

std::string significant(double value, int digits) {
  if (std::isnan(value)) return "–";
  if (std::isinf(value)) return value > 0 ? "∞" : "−∞";
  const double size = std::abs(value);
  if (size >= 1e15 || (size > 0 && size < 1e-6)) {
    char text[64];
    std::snprintf(text, sizeof text, "%.*g", digits, value);
    return text;
  }
  const int whole = size >= 1 ? static_cast<int>(std::floor(std::log10(size))) + 1
                              : static_cast<int>(std::ceil(std::log10(std::max(size, 1e-9))));
  std::string out = decimals(value, std::clamp(digits - whole, 0, 12));
  if (out.find('.') != std::string::npos) out.erase(out.find_last_not_of('0') + 1);
  if (out.back() == '.') out.pop_back();
  return out == "-0" ? "0" : out;
}

std::string scaled(double value, const std::string& unit) {
  if (std::isnan(value)) return "–";
  const char* prefix = "";
  for (const char* next : {"k", "M", "G", "T", "P"}) {
    if (std::abs(value) < 999.5) break;
    value /= 1000;
    prefix = next;
  }
  const std::string suffix = prefix + unit;
  return significant(value, 3) + (suffix.empty() ? "" : " " + suffix);
}

std::string pad_left(const std::string& text, size_t width) {
  return std::string(width - std::min(width, text.size()), ' ') + text;
}

std::string pad_right(const std::string& text, size_t width) {
  return text + std::string(width - std::min(width, text.size()), ' ');
}

TextTable::TextTable(const std::string& columns) {
  std::istringstream in(columns);
  for (std::string column; std::getline(in, column, '|');) {
    const size_t end = column.rfind(' ');
    int width = 0, digits = 0;
    std::sscanf(column.c_str() + end, "%d.%d", &width, &digits);
    columns_.push_back({column.substr(0, end), width, digits});
  }
}

std::string TextTable::heading() const {
  std::vector<Cell> titles;
  for (const Column& column : columns_) titles.emplace_back(column.title);
  return row(titles);
}

std::string TextTable::row(const std::vector<Cell>& cells) const {
  std::string line;
  for (size_t i = 0; i < cells.size(); ++i) {
    const auto& [title, width, digits] = columns_.at(i);
    const std::string text = cells[i].is_text ? cells[i].text : decimals(cells[i].number, digits);
    if (i > 0) line += ' ';
    const auto columns = static_cast<size_t>(std::abs(width));
    line += width < 0 ? pad_right(text, columns) : pad_left(text, columns);
  }
  return line + '\n';
}

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> out;
  std::istringstream in(text + at);
  for (std::string part; std::getline(in, part, at);) out.push_back(part);
  return out;
}

std::string join(const std::vector<std::string>& words, const char* between) {
  std::string out;
  for (const std::string& word : words)
    if (!word.empty()) out += (out.empty() ? "" : between) + word;
  return out;
}

std::string base64(const std::string& bytes) {
  constexpr const char* kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t word = 0;
    for (size_t k = 0; k < 3; ++k)
      word = word << 8 | (i + k < bytes.size() ? static_cast<uint8_t>(bytes[i + k]) : 0);
    for (size_t k = 0; k < 4; ++k)
      out += i + k <= bytes.size() ? kDigits[word >> (18 - 6 * k) & 63] : '=';
  }
  return out;
}

}  // namespace heddle
