// The small parts that pictures and pages are made of: escaped text, and scales with ticks at round
// numbers.
//
//   const Scale x = Scale::linear(0, 9360, 48, 440);
//   for (double tick : x.ticks(5)) out += ... x(tick) ...
#pragma once

#include <string>
#include <vector>

#include "apps/cli/format.h"

namespace heddle {

// For HTML and SVG, in text and in attributes.
std::string escape(const std::string& text);

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
