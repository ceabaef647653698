// QSGD's quantiser (Alistarh et al. 2017, arXiv 1610.02132, equation 4) with the maximum in place
// of the 2-norm, as its section 4 does in practice: of a block's elements travel one fp32 scale,
// the largest |x|, and for each element a sign and a level from 0 to s = 2^(bits - 1) - 1, packed.
// Stochastic rounding is unbiased, with a variance of at most (scale / s)^2 / 4 for each element;
// nearest rounding is at most scale / s / 2 away. A block with NaN or Inf decodes to NaN.
//
//   quantize(x, 512, 4, rng, 0, bytes);   // quantized_bytes(512, 4) == 260
#pragma once

#include <cstdint>
#include <optional>

#include "compress/codecs/bits.h"
#include "core/random.h"

namespace heddle {

constexpr int64_t quantized_bytes(int64_t n, int bits) { return 4 + packed_bytes(n, bits); }

// bits from 2 to 8. Noise: blocks of four random numbers from block `first` on; without it values
// are rounded to the nearest level.
void quantize(const float* x, int64_t n, int bits, const std::optional<Philox>& noise,
              int64_t first, uint8_t* bytes);
// The square of what that loses, ||x - dequantize(quantize(x))||^2: for stochastic rounding its
// mean over the noise. NaN for a block with NaN or Inf.
double quantization_loss(const float* x, int64_t n, int bits, bool stochastic);
void dequantize(const uint8_t* bytes, int64_t n, int bits, float* x);

}  // namespace heddle
