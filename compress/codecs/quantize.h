// QSGD's quantiser (Alistarh et al. 2017, arXiv 1610.02132, equation 4) with the maximum in place
// of the 2-norm, as its section 4 does in practice: a block is encoded as one fp32 scale, its
// largest |x|, and for each element a sign and a level from 0 to s = 2^(bits - 1) - 1, packed.
// Stochastic rounding is unbiased, with a variance of at most (scale / s)^2 / 4 per element;
// rounding to nearest is off by at most scale / s / 2. A block with NaN or Inf decodes to NaN.
//
//   quantize(x, 512, 4, rng, 0, bytes);   // quantized_bytes(512, 4) == 260
#pragma once

#include <cstdint>
#include <optional>

#include "compress/codecs/bits.h"
#include "compress/codecs/magnitude.h"
#include "core/random.h"

namespace heddle {

HEDDLE_HD constexpr int64_t quantized_bytes(int64_t n, int bits) {
  return 4 + packed_bytes(n, bits);
}
// Returns s, the number of levels of each sign.
HEDDLE_HD constexpr int level_count(int bits) { return (1 << (bits - 1)) - 1; }

// Returns the sign and level of x as a code from 0 to 2 s; scale is finite and above 0. The level
// is rounded up if its fraction is above the threshold.
HEDDLE_HD inline uint32_t level_code(float x, float scale, int s, float threshold) {
  const float exact = std::bit_cast<float>(magnitude(x)) / scale * to_float(s);
  const int below = to_int(exact);
  const int level = below + (exact - to_float(below) > threshold ? 1 : 0);
  return static_cast<uint32_t>(s + (x < 0 ? -level : level));
}
// Returns the value of a code.
HEDDLE_HD inline float level_value(uint32_t code, float scale, int s) {
  return to_float(to_int(code) - s) / to_float(s) * scale;
}

// Encodes x (n) in quantized_bytes(n, bits) bytes, bits from 2 to 8. Noise comes in blocks of four
// random numbers from block `first` on; without it values are rounded to the nearest level.
void quantize(const float* x, int64_t n, int bits, const std::optional<Philox>& noise,
              int64_t first, uint8_t* bytes);
void dequantize(const uint8_t* bytes, int64_t n, int bits, float* x);
// Returns ||x - dequantize(quantize(x))||^2, for stochastic rounding its mean over the noise; NaN
// for a block with NaN or Inf.
double quantization_loss(const float* x, int64_t n, int bits, bool stochastic);

}  // namespace heddle
