#include "compress/codecs/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace heddle {

void quantize(const float* x, int64_t n, int bits, const std::optional<Philox>& noise,
              int64_t first, uint8_t* bytes) {
  const int s = level_count(bits);
  const uint32_t largest = largest_magnitude(x, n);
  const auto scale = std::bit_cast<float>(largest);
  std::memcpy(bytes, &scale, 4);
  std::vector<uint32_t> codes(to_size(n), static_cast<uint32_t>(s));
  if (largest > 0 && largest < kInfinite) {
    std::vector<float> thresholds(to_size(n + 3), 0.5f);
    if (noise)
      for (int64_t i = 0; i < n; i += 4) {
        const Philox::Block block = noise->block(static_cast<uint64_t>(first + i / 4));
        for (int64_t j = 0; j < 4; ++j) thresholds[to_size(i + j)] = Philox::unit(block.word[j]);
      }
    const float* threshold = thresholds.data();
    uint32_t* code = codes.data();
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) code[i] = level_code(x[i], scale, s, threshold[i]);
  }
  pack_bits(codes.data(), n, bits, bytes + 4);
}

double quantization_loss(const float* x, int64_t n, int bits, bool stochastic) {
  const uint32_t largest = largest_magnitude(x, n);
  if (largest == 0) return 0;
  if (largest >= kInfinite) return NAN;
  const auto scale = std::bit_cast<float>(largest);
  const auto s = to_float(level_count(bits));
  double loss = 0;  // in squares of the distance between two levels
  for (int64_t i = 0; i < n; ++i) {
    const double exact = std::fabs(x[i]) / scale * s, above = exact - std::floor(exact);
    const double nearest = std::min(above, 1 - above);
    loss += stochastic ? above * (1 - above) : nearest * nearest;
  }
  const double step = to_double(scale) / s;
  return loss * step * step;
}

void dequantize(const uint8_t* bytes, int64_t n, int bits, float* x) {
  const int s = level_count(bits);
  float scale;
  std::memcpy(&scale, bytes, 4);
  std::vector<uint32_t> codes(to_size(n));
  unpack_bits(bytes + 4, n, bits, codes.data());
  const uint32_t* code = codes.data();
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) x[i] = level_value(code[i], scale, s);
}

}  // namespace heddle
