// Numbers, sizes, durations and tables as text, for people.
//
//   format_bytes(1 << 20)     "1.0 MiB"
//   format_duration(3727)     "1:02:07"
//   scaled(1.62e6, "B")       "1.62 MB"
//
//   const TextTable table("case -10|ms 9.1");
//   print(table.heading() + table.row({"resnet20", 124.02}));
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle {

// Returns the shortest decimal text that reads back as the same number.
std::string format_number(double value);
// Returns KiB below 64 KiB, MiB from there on, with one digit after the point: "12.5 KiB".
std::string format_bytes(int64_t bytes);
// Returns minutes and seconds, or hours, minutes and seconds: "2:07", "1:02:07".
std::string format_duration(double seconds);
// Returns a duration in the unit that suits it, three significant digits: "3.4 s", "17 min",
// "2.1 h", "12 ms", "3.1 µs"; "–" for NaN.
std::string duration_text(double seconds);
// Returns exactly `digits` digits after the point: "3.50"; "nan", "inf" as printf has them.
std::string decimals(double value, int digits);
// Returns `digits` significant digits, without trailing zeros: "0.00123", "12300"; "–" for NaN.
std::string significant(double value, int digits = 4);
// Returns three significant digits with a prefix and a unit: "12.3 k", "15.2 G", "1.62 MB"; "–" for
// NaN.
std::string scaled(double value, const std::string& unit = "");

// Return `text` padded with spaces to `width` bytes, on the left or on the right; a longer text
// unchanged.
std::string pad_left(const std::string& text, size_t width);
std::string pad_right(const std::string& text, size_t width);

// A table whose columns have fixed widths, made line by line.
class TextTable {
 public:
  struct Cell {
    template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
    Cell(T value) : number(static_cast<double>(value)) {}
    Cell(std::string value) : text(std::move(value)), is_text(true) {}
    Cell(const char* value) : text(value), is_text(true) {}

    std::string text;
    double number = 0;
    bool is_text = false;
  };

  // `columns`: for each its title, a space, and its width in characters, negative to align left,
  // then for numbers a point and the number of decimals; separated by "|".
  explicit TextTable(const std::string& columns);
  // Each returns one line with its newline. A row may have fewer cells than there are columns;
  // texts that are too long make it longer.
  std::string heading() const;
  std::string row(const std::vector<Cell>& cells) const;

 private:
  struct Column {
    std::string title;
    int width, digits;
  };
  std::vector<Column> columns_;
};

// Returns the parts of a text between the characters `at`: one, empty, of an empty text.
std::vector<std::string> split(const std::string& text, char at);
// Returns the words that are not empty, with `between` between them.
std::string join(const std::vector<std::string>& words, const char* between);

// Returns the bytes in base 64 (RFC 4648), padded with "=".
std::string base64(const std::string& bytes);

}  // namespace heddle
