// Numbers, sizes and durations as text, for people.
//
//   format_bytes(1 << 20)     "1.0 MiB"
//   format_duration(3727)     "1:02:07"
//   scaled(1.62e6, "B")       "1.62 MB"
#pragma once

#include <cstdint>
#include <string>

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
// Returns at most `digits` digits after the point, without trailing zeros: "3.5", "12"; "0" for
// values that are not finite.
std::string fixed(double value, int digits);
// Returns exactly `digits` digits after the point: "3.50"; "nan", "inf" as printf has them.
std::string decimals(double value, int digits);
// Returns `digits` significant digits, without trailing zeros: "0.00123", "12300"; "–" for NaN.
std::string significant(double value, int digits = 4);
// Returns three significant digits with a prefix and a unit: "12.3 k", "15.2 G", "1.62 MB"; "–" for
// NaN.
std::string scaled(double value, const std::string& unit = "");

// Return `text` filled up with spaces to `width` bytes, on the left or on the right; a longer text
// unchanged.
std::string pad_left(const std::string& text, size_t width);
std::string pad_right(const std::string& text, size_t width);

}  // namespace heddle
