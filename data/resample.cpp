#include "data/resample.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/scalar.h"

namespace heddle {
namespace {

// One result is the weighted sum of `count` source pixels from `first` on.
struct Taps {
  int first, count, weights;  // weights: offset in Filter::weights
};

// Weights in the arithmetic of Pillow (src/libImaging/Resample.c): computed in double, then
// integers with kBits fractional bits.
struct Filter {
  std::vector<Taps> taps;
  std::vector<int> weights;
};

constexpr int kBits = 22, kHalf = 1 << (kBits - 1);

// Makes the filter of results [begin, begin + size) when `source` pixels are resized to `resized`:
// a triangle of half width max(1, scale) around each result's centre.
void make_filter(int source, int64_t resized, int64_t begin, int size, Filter& filter) {
  const double scale = to_double(source) / to_double(resized), reach = std::max(1.0, scale);
  filter.taps.clear();
  filter.weights.clear();
  for (int64_t i = begin; i < begin + size; ++i) {
    const double center = (to_double(i) + 0.5) * scale;
    const int first = std::max(0, to_int(center - reach + 0.5));
    const int count = std::min(source, to_int(center + reach + 0.5)) - first;
    const auto weight = [&](int k) {
      return std::max(0.0, 1 - std::abs((k + first - center + 0.5) * (1 / reach)));
    };
    double sum = 0;
    for (int k = 0; k < count; ++k) sum += weight(k);
    filter.taps.push_back({first, count, to_int(filter.weights.size())});
    for (int k = 0; k < count; ++k)
      filter.weights.push_back(to_int(0.5 + weight(k) / sum * (1 << kBits)));
  }
}

uint8_t to_byte(int sum) { return static_cast<uint8_t>(std::min(255, sum >> kBits)); }

// Resizes one row of pixels.
void resize_row(const uint8_t* source, const Filter& filter, uint8_t* out) {
  for (const Taps& taps : filter.taps) {
    const int* weights = filter.weights.data() + taps.weights;
    const uint8_t* pixel = source + int64_t{3} * taps.first;
    int red = kHalf, green = kHalf, blue = kHalf;
    for (int k = 0; k < taps.count; ++k, pixel += 3) {
      red += weights[k] * pixel[0];
      green += weights[k] * pixel[1];
      blue += weights[k] * pixel[2];
    }
    *out++ = to_byte(red);
    *out++ = to_byte(green);
    *out++ = to_byte(blue);
  }
}

}  // namespace

void resample(const Image& image, const Box& box, const PixelWindow& window, int size,
              uint8_t* out) {
  thread_local Filter across, down;
  thread_local std::vector<uint8_t> narrow;  // (rows, size, 3)
  thread_local std::vector<int> sums;        // (size, 3)
  make_filter(box.width, window.resized_width, window.left, size, across);
  make_filter(box.height, window.resized_height, window.top, size, down);
  const int first = down.taps.front().first;
  const int rows = down.taps.back().first + down.taps.back().count - first;
  const int64_t line = int64_t{3} * size;
  narrow.resize(to_size(rows * line));
  sums.resize(to_size(line));

  const uint8_t* corner = image.pixels.data() + 3 * (int64_t{box.top} * image.width + box.left);
  for (int64_t row = 0; row < rows; ++row)
    resize_row(corner + 3 * (first + row) * image.width, across, narrow.data() + row * line);
  for (const Taps& taps : down.taps) {
    std::ranges::fill(sums, kHalf);
    const int* weights = down.weights.data() + taps.weights;
    const uint8_t* from = narrow.data() + (taps.first - first) * line;
    for (int k = 0; k < taps.count; ++k, from += line)
      for (int64_t i = 0; i < line; ++i) sums[to_size(i)] += weights[k] * from[i];
    out = std::ranges::transform(sums, out, to_byte).out;
  }
}

}  // namespace heddle
