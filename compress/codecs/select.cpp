#include "compress/codecs/select.h"

#include <array>
#include <cmath>

#include "compress/codecs/bits.h"
#include "compress/codecs/chunks_cpu.h"
#include "compress/codecs/magnitude.h"
#include "core/error.h"
#include "core/kernels.h"

namespace heddle {
namespace {

uint32_t rank_of(float x) { return magnitude(x) > kInfinite ? 0 : magnitude(x); }

}  // namespace

Indices select_chunks(std::span<const float> x, int64_t chunk) {
  Indices indices(to_size(ceil_div(std::ssize(x), chunk)));
  find_in_chunks(std::ssize(x), chunk, indices.data(), nullptr, [&](int64_t begin, int64_t length) {
    return largest_of(x.data() + begin, length, true);
  });
  return indices;
}

Indices select_top(std::span<const float> x, int64_t k) {
  Indices indices;
  if (k <= 0) return indices;
  indices.reserve(to_size(k));
  uint32_t threshold = 0;  // the k-th largest, as far as its bits are known
  int64_t equal = k;       // how many of those that equal it so far are selected
  for (const auto& [shift, width] : {std::pair{20, 11}, {9, 11}, {0, 9}}) {
    std::array<int64_t, 2048> count{};
    const uint32_t mask = (1u << width) - 1;
    for (const float v : x)
      if (const uint32_t r = rank_of(v); r >> (shift + width) == threshold >> (shift + width))
        ++count[r >> shift & mask];
    uint32_t digit = mask;
    for (; digit > 0 && equal > count[digit]; --digit) equal -= count[digit];
    threshold |= digit << shift;
  }
  for (size_t i = 0; i < x.size(); ++i) {
    const uint32_t r = rank_of(x[i]);
    if (r > threshold || (r == threshold && equal-- > 0))
      indices.push_back(static_cast<uint32_t>(i));
  }
  return indices;
}

Indices select_random(int64_t n, int64_t k, const Philox& rng) {
  const bool inverted = k > n / 2;  // then the indices that are left out are drawn
  std::vector<bool> drawn(to_size(n));
  int64_t open = inverted ? n - k : k;
  for (uint64_t draw = 0; open > 0; ++draw) {
    const uint32_t i = rng.below(draw, static_cast<uint32_t>(n));
    if (drawn[i]) continue;
    drawn[i] = true;
    --open;
  }
  Indices indices;
  indices.reserve(to_size(k));
  for (uint32_t i = 0; i < drawn.size(); ++i)
    if (drawn[i] != inverted) indices.push_back(i);
  return indices;
}

int64_t kept_elements(double density, int64_t n) {
  return std::min(n, std::max<int64_t>(1, std::llround(density * to_double(n))));
}

double kept_energy(std::span<const float> x, const Indices& indices) {
  double all = 0, kept = 0;
  for (const float v : x) all += to_double(v) * v;
  for (const uint32_t i : indices) kept += to_double(x[i]) * x[i];
  return all == 0 ? 1 : kept / all;
}

double unsent_norm(const Tensor& x, const Indices& indices) {
  double unsent = squared_norm(x);
  for (const uint32_t i : indices) unsent -= to_double(elements(x)[i]) * elements(x)[i];
  return std::sqrt(std::max(0.0, unsent));
}

int IndexCode::width() const { return bits_below(chunk > 0 ? std::min(chunk, n) : n); }

bool IndexCode::is_bitmap() const {
  return chunk == 0 && packed_bytes(n, 1) < packed_bytes(k, width());
}

int64_t IndexCode::bytes() const {
  return is_bitmap() ? packed_bytes(n, 1) : packed_bytes(k, width());
}

void IndexCode::encode(const Indices& indices, uint8_t* bytes) const {
  if (is_bitmap()) {
    Indices present(to_size(n));
    for (const uint32_t i : indices) present[i] = 1;
    return pack_bits(present.data(), n, 1, bytes);
  }
  Indices offsets = indices;
  for (int64_t c = 0; c < k; ++c) offsets[to_size(c)] -= static_cast<uint32_t>(c * chunk);
  pack_bits(offsets.data(), k, width(), bytes);
}

Indices IndexCode::decode(const uint8_t* bytes) const {
  Indices indices(to_size(is_bitmap() ? n : k));
  unpack_bits(bytes, std::ssize(indices), is_bitmap() ? 1 : width(), indices.data());
  if (is_bitmap()) {
    size_t found = 0;
    for (uint32_t i = 0; i < indices.size(); ++i)
      if (indices[i] != 0) indices[found++] = i;
    indices.resize(found);
  }
  for (int64_t c = 0; c < std::ssize(indices); ++c)
    indices[to_size(c)] += static_cast<uint32_t>(c * chunk);
  const bool fits = std::ranges::all_of(indices, [&](uint32_t i) { return i < n; });
  if (!fits || std::ssize(indices) != k)
    throw Error(concat("indices do not fit a layer of ", n, " elements"));
  return indices;
}

}  // namespace heddle
