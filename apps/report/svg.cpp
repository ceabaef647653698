#include "apps/report/svg.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace heddle {

std::string escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        if (static_cast<unsigned char>(c) >= 0x20 || c == '\n' || c == '\t') out += c;
    }
  }
  return out;
}

Scale Scale::linear(double first, double last, double from, double to) {
  Scale scale;
  constexpr double kMost = std::numeric_limits<double>::max();
  scale.first_ = std::clamp(first, -kMost, kMost);
  scale.last_ = std::clamp(last, -kMost, kMost);
  if (!(scale.last_ > scale.first_)) {  // to large values one adds nothing
    const double room = std::max(1.0, std::abs(scale.first_) * 1e-3);
    scale.last_ = std::min(scale.first_ + room, kMost);
    if (!(scale.last_ > scale.first_)) scale.first_ = scale.last_ - room;
  }
  scale.from_ = from;
  scale.to_ = to;
  return scale;
}

Scale Scale::logarithmic(double first, double last, double from, double to) {
  first = std::clamp(first, 1e-307, 1e307);  // as far as powers of ten go
  Scale scale = linear(first, last > first ? last : first * 10, from, to);
  scale.logarithmic_ = true;
  return scale;
}

double Scale::operator()(double value) const {
  const double part =
      logarithmic_ ? (std::log(value) - std::log(first_)) / (std::log(last_) - std::log(first_))
                   : (value / 2 - first_ / 2) / (last_ / 2 - first_ / 2);
  return from_ + part * (to_ - from_);
}

std::vector<double> Scale::ticks(int count) const {
  std::vector<double> out;
  if (logarithmic_ && last_ / first_ > 8) {
    const double decades = std::log10(last_) - std::log10(first_);
    const int every = std::max(1, static_cast<int>(std::ceil(decades / count)));
    const bool halves = decades < 2.2;  // then 1, 2, 5; else powers of ten alone
    for (int e = static_cast<int>(std::floor(std::log10(first_)));
         e <= 308 && std::pow(10, e) <= last_ * 1.0001; e += every)
      for (const double m : halves ? std::vector<double>{1, 2, 5} : std::vector<double>{1})
        if (const double tick = m * std::pow(10, e);
            std::isfinite(tick) && tick >= first_ * 0.9999 && tick <= last_ * 1.0001)
          out.push_back(tick);
    return out;
  }
  const double rough = (last_ / 2 - first_ / 2) / std::max(count, 1) * 2;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double m : {1.0, 2.0, 2.5, 5.0})
    if (m * power >= rough * 0.999) {
      step = m * power;
      break;
    }
  const double begin = std::ceil(first_ / step - 1e-9);
  const double steps = std::min(std::floor(last_ / step + 1e-9) - begin, 100.0);
  for (double i = 0; i <= steps; ++i) out.push_back((begin + i) * step);
  return out;
}

}  // namespace heddle
