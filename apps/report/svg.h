// The small parts that pictures and pages are made of: numbers as text, escaped text, and scales
// with ticks at round numbers.
//
//   const Scale x = Scale::linear(0, 9360, 48, 440);
//   for (double tick : x.ticks(5)) out += ... x(tick) ...
#pragma once

#include <string>
#include <vector>

namespace heddle {

// For HTML and SVG, in text and in attributes.
std::string escape(const std::string& text);
// With so many digits behind the point at most, without zeros at the end: "3.5", "12".
std::string fixed(double value, int digits);
// So many significant digits, "–" for NaN: "0.00123", "12300".
std::string significant(double value, int digits = 4);
// For people: "12.3 k", "1.62 M", "15.2 G"; with a unit behind it, "1.62 MB".
std::string scaled(double value, const std::string& unit = "");
// "3.4 s", "17 min", "2.1 h", "12 ms", "3.1 µs".
std::string duration_text(double seconds);

// From a range of values to a range of places.
class Scale {
 public:
  static Scale linear(double first, double last, double from, double to);
  static Scale logarithmic(double first, double last, double from, double to);  // 0 < first

  double operator()(double value) const;
  // Round values within the range, about as many.
  std::vector<double> ticks(int count) const;
  double first() const { return first_; }
  double last() const { return last_; }
  bool is_logarithmic() const { return logarithmic_; }

 private:
  double first_ = 0, last_ = 1, from_ = 0, to_ = 1;
  bool logarithmic_ = false;
};

}  // namespace heddle
