#include "data/resample.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace heddle {
namespace {

// The weights with which `count` source positions from `first` on make one result.
struct Taps {
  int first, count, weights;  // weights: offset into Filter::weights
};

struct Filter {
  std::vector<Taps> taps;
  std::vector<float> weights;
};

// A triangle of half width max(1, scale) around each result's centre, normalised to 1.
void make_filter(float start, float length, int source, int size, Filter& filter) {
  const float scale = length / static_cast<float>(size), reach = std::max(1.0f, scale);
  filter.taps.clear();
  filter.weights.clear();
  for (int i = 0; i < size; ++i) {
    const float center = start + (static_cast<float>(i) + 0.5f) * scale;
    int first = std::clamp(static_cast<int>(std::ceil(center - reach - 0.5f)), 0, source - 1);
    const int last =
        std::clamp(static_cast<int>(std::floor(center + reach - 0.5f)), first, source - 1);
    const auto offset = static_cast<int>(filter.weights.size());
    float sum = 0;
    for (int k = first; k <= last; ++k) {
      const float weight =
          std::max(0.0f, 1 - std::abs(static_cast<float>(k) + 0.5f - center) / reach);
      filter.weights.push_back(weight);
      sum += weight;
    }
    for (int k = 0; k <= last - first; ++k) {
      float& weight = filter.weights[static_cast<size_t>(offset + k)];
      weight = sum > 0 ? weight / sum : 1.0f / static_cast<float>(last - first + 1);
    }
    filter.taps.push_back({first, last - first + 1, offset});
  }
}

}  // namespace

void resample(const Image& image, const Window& window, int size, bool flip, float* out) {
  thread_local Filter across, down;
  thread_local std::vector<float> line;
  make_filter(window.x, window.width, image.width, size, across);
  make_filter(window.y, window.height, image.height, size, down);
  const int first = across.taps.front().first;
  const int columns = across.taps.back().first + across.taps.back().count - first;
  line.resize(static_cast<size_t>(3) * columns);

  const int64_t plane = int64_t{size} * size;
  for (int row = 0; row < size; ++row) {
    const Taps& rows = down.taps[static_cast<size_t>(row)];
    std::fill(line.begin(), line.end(), 0.0f);
    float* sums = line.data();
    for (int k = 0; k < rows.count; ++k) {
      const float weight = down.weights[static_cast<size_t>(rows.weights + k)];
      const uint8_t* source =
          image.pixels.data() + 3 * (int64_t{rows.first + k} * image.width + first);
      for (int i = 0; i < 3 * columns; ++i) sums[i] += weight * static_cast<float>(source[i]);
    }
    for (int column = 0; column < size; ++column) {
      const Taps& taps = across.taps[static_cast<size_t>(column)];
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

void resample_bytes(const Image& image, const Window& window, int size, float* out) {
  thread_local Filter across;
  thread_local Image narrow;
  make_filter(window.x, window.width, image.width, size, across);
  narrow.width = size, narrow.height = image.height;
  narrow.pixels.clear();
  for (int row = 0; row < image.height; ++row)
    for (const Taps& taps : across.taps)
      for (int c = 0; c < 3; ++c) {
        const uint8_t* source = image.pixels.data() + 3 * (int64_t{row} * image.width + taps.first);
        float sum = 0.5f;
        for (int k = 0; k < taps.count; ++k)
          sum += across.weights[static_cast<size_t>(taps.weights + k)] * source[3 * k + c];
        narrow.pixels.push_back(static_cast<uint8_t>(sum));
      }
  resample(narrow, {0, window.y, static_cast<float>(size), window.height}, size, false, out);
  for (int64_t i = 0; i < int64_t{3} * size * size; ++i) out[i] = std::floor(out[i] + 0.5f);
}

}  // namespace heddle
