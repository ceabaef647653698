// Which elements of a layer to send. NaN counts as zero, ties go to the lower index, indices come
// out ascending, and their number follows from the arguments alone.
//
//   auto indices = select_chunks(x, 100);   // one of every hundred
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/random.h"
#include "core/tensor.h"

namespace heddle {

using Indices = std::vector<uint32_t>;

// Of a tensor f32 on the host.
inline std::span<const float> elements(const Tensor& x) {
  return {x.data<float>(), static_cast<size_t>(x.size())};
}

// The largest |x| of every chunk, a shorter last chunk included: ScaleCom's one pass in place of a
// sort (arXiv 2104.11125, section 4). chunk >= 1.
Indices select_chunks(std::span<const float> x, int64_t chunk);
// The k largest |x|, 0 <= k <= size; by a threshold that is found eleven bits at a time.
Indices select_top(std::span<const float> x, int64_t k);
// k of n, every subset as likely as any other; the same for equal random numbers.
Indices select_random(int64_t n, int64_t k, const Philox& rng);

// The number of elements that a density stands for: at least one of n.
int64_t kept_elements(double density, int64_t n);
// The share of ||x||^2 that the selected elements hold; 1 where x is zero.
double kept_energy(std::span<const float> x, const Indices& indices);
// The norm of the elements that were not selected.
double unsent_norm(const Tensor& x, const Indices& indices);

// How the indices of k elements of n travel. The number of bytes is known to the receiver.
struct IndexCode {
  int64_t n, k;
  int64_t chunk = 0;  // one index in every chunk, as an offset in it; 0: anywhere

  int64_t bytes() const;
  void encode(const Indices& indices, uint8_t* bytes) const;
  // Throws Error for an index that is not below n.
  Indices decode(const uint8_t* bytes) const;
  int width() const;       // bits of one index
  bool is_bitmap() const;  // anywhere: when one bit for each element is shorter than k indices
};

}  // namespace heddle
