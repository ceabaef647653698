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

struct Filter {
  std::vector<Taps> taps;
  std::vector<float> weights;
};

// Makes a triangle filter of half width max(1, scale) around each result's centre, with sum 1.
void make_filter(float start, float length, int source, int size, Filter& filter) {
  const float scale = length / to_float(size), reach = std::max(1.0f, scale);
  filter.taps.clear();
  filter.weights.clear();
  for (int i = 0; i < size; ++i) {
    const float center = start + (to_float(i) + 0.5f) * scale;
    int first = std::clamp(to_int(std::ceil(center - reach - 0.5f)), 0, source - 1);
    const int last = std::clamp(to_int(std::floor(center + reach - 0.5f)), first, source - 1);
    const auto offset = to_int(filter.weights.size());
    float sum = 0;
    for (int k = first; k <= last; ++k) {
      const float weight = std::max(0.0f, 1 - std::abs(to_float(k) + 0.5f - center) / reach);
      filter.weights.push_back(weight);
      sum += weight;
    }
    for (int k = 0; k <= last - first; ++k) {
      float& weight = filter.weights[to_size(offset + k)];
      weight = sum > 0 ? weight / sum : 1.0f / to_float(last - first + 1);
    }
    filter.taps.push_back({first, last - first + 1, offset});
  }
}

// The same in the arithmetic of Pillow (src/libImaging/Resample.c): weights in double, then as
// integers with kBits fractional bits.
constexpr int kBits = 22;

struct ByteFilter {
  std::vector<Taps> taps;
  std::vector<int> weights;
};

// Makes the filter of results [begin, begin + size) when `source` pixels are resized to `resized`.
void make_filter(int source, int64_t resized, int64_t begin, int size, ByteFilter& filter) {
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

// Returns the weighted sum of the taps' pixels, which start at `source`, `stride` bytes apart.
uint8_t weigh(const uint8_t* source, int64_t stride, const Taps& taps, const ByteFilter& filter) {
  const int* weights = filter.weights.data() + taps.weights;
  int sum = 1 << (kBits - 1);
  for (int k = 0; k < taps.count; ++k) sum += weights[k] * source[k * stride];
  return static_cast<uint8_t>(std::min(255, sum >> kBits));
}

}  // namespace

void resample(const Image& image, const Window& window, int size, bool flip, float* out) {
  thread_local Filter across, down;
  thread_local std::vector<float> line;
  make_filter(window.x, window.width, image.width, size, across);
  make_filter(window.y, window.height, image.height, size, down);
  const int first = across.taps.front().first;
  const int columns = across.taps.back().first + across.taps.back().count - first;
  line.resize(to_size(3) * columns);

  const int64_t plane = int64_t{size} * size;
  for (int row = 0; row < size; ++row) {
    const Taps& rows = down.taps[to_size(row)];
    std::fill(line.begin(), line.end(), 0.0f);
    float* sums = line.data();
    for (int k = 0; k < rows.count; ++k) {
      const float weight = down.weights[to_size(rows.weights + k)];
      const uint8_t* source =
          image.pixels.data() + 3 * (int64_t{rows.first + k} * image.width + first);
      for (int i = 0; i < 3 * columns; ++i) sums[i] += weight * to_float(source[i]);
    }
    for (int column = 0; column < size; ++column) {
      const Taps& taps = across.taps[to_size(column)];
      const float* weights = across.weights.data() + taps.weights;
      const float* source = sums + 3 * (taps.first - first);
      float red = 0, green = 0, blue = 0;
      for (int k = 0; k < taps.count; ++k) {
        red += weights[k] * source[3 * k];
        green += weights[k] * source[3 * k + 1];
        blue += weights[k] * source[3 * k + 2];
      }
      float* target = out + int64_t{row} * size + (flip ? size - 1 - column : column);
      target[0] = red;
      target[plane] = green;
      target[2 * plane] = blue;
    }
  }
}

void resample_bytes(const Image& image, const PixelWindow& window, int size, float* out) {
  thread_local ByteFilter across, down;
  thread_local std::vector<uint8_t> narrow;  // (rows, size, 3)
  make_filter(image.width, window.resized_width, window.left, size, across);
  make_filter(image.height, window.resized_height, window.top, size, down);
  const int first = down.taps.front().first;
  const int rows = down.taps.back().first + down.taps.back().count - first;
  narrow.resize(size_t{3} * to_size(rows) * to_size(size));

  uint8_t* next = narrow.data();
  for (int row = first; row < first + rows; ++row)
    for (const Taps& taps : across.taps) {
      const uint8_t* source = image.pixels.data() + 3 * (int64_t{row} * image.width + taps.first);
      for (int c = 0; c < 3; ++c) *next++ = weigh(source + c, 3, taps, across);
    }
  for (int c = 0; c < 3; ++c)
    for (const Taps& taps : down.taps)
      for (int column = 0; column < size; ++column)
        *out++ = weigh(narrow.data() + 3 * (int64_t{taps.first - first} * size + column) + c,
                       int64_t{3} * size, taps, down);
}

}  // namespace heddle
