#include "compress/codecs/delta_code.h"

#include <algorithm>
#include <bit>

#include "core/error.h"

namespace heddle {

int DeltaCode::shift() const {
  const int64_t mean = k > 0 ? (n - k) / k : 0;
  return mean > 0 ? std::bit_width(static_cast<uint64_t>(mean)) - 1 : 0;
}

int64_t DeltaCode::max_bytes() const {
  const int b = shift();
  return k == 0 ? 0 : (k * (b + 1) + ((n - k) >> b) + 7) / 8;
}

std::vector<uint8_t> DeltaCode::encode(const Indices& indices) const {
  const int b = shift();
  std::vector<uint8_t> bytes;
  bytes.reserve(to_size(max_bytes()));
  uint64_t window = 0;  // bits that wait for their byte to fill up
  int held = 0;
  const auto flush = [&] {
    for (; held >= 8; held -= 8, window >>= 8) bytes.push_back(static_cast<uint8_t>(window));
  };
  uint32_t next = 0;
  for (const uint32_t index : indices) {
    const uint32_t gap = index - next, high = gap >> b, low = gap - (high << b);
    next = index + 1;
    for (uint32_t zeros = high; zeros > 0; flush()) {
      const auto some = std::min(zeros, 32u);
      held += to_int(some);
      zeros -= some;
    }
    window |= (uint64_t{low} << 1 | 1) << held;
    held += b + 1;
    flush();
  }
  if (held > 0) bytes.push_back(static_cast<uint8_t>(window));
  return bytes;
}

Indices DeltaCode::decode(std::span<const uint8_t>& bytes) const {
  const int b = shift();
  const uint64_t mask = (uint64_t{1} << b) - 1;
  const auto refuse = [&](const char* what) {
    throw Error(
        concat("indices: ", what, " a layer of ", n, " elements, of which ", k, " were sent"));
  };
  uint64_t window = 0;  // the next `held` bits, zeros above
  int held = 0;
  size_t at = 0;
  const auto need = [&](int bits) {
    for (; held < bits; held += 8) {
      if (at == bytes.size()) refuse("bytes are missing for");
      window |= uint64_t{bytes[at++]} << held;
    }
  };
  Indices indices(to_size(k));
  int64_t next = 0;
  for (uint32_t& index : indices) {
    int64_t high = 0;
    need(1);
    while (window == 0) {
      high += held;
      held = 0;
      if (high > n >> b) refuse("beyond");
      need(1);
    }
    const int zeros = std::countr_zero(window);
    high += zeros;
    window >>= zeros + 1;
    held -= zeros + 1;
    need(b);
    next += (high << b) + to_int64(window & mask);
    window >>= b;
    held -= b;
    if (next >= n) refuse("beyond");
    index = static_cast<uint32_t>(next++);
  }
  bytes = bytes.subspan(at);
  return indices;
}

}  // namespace heddle
