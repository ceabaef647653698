// Selects the elements of a layer to send. NaN counts as zero, ties go to the lower index, indices
// are ascending, and their number follows from the arguments alone.
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

// Returns the elements of an f32 tensor on the host, as a view.
inline std::span<const float> elements(const Tensor& x) {
  return {x.data<float>(), to_size(x.size())};
}

// Returns the index of the largest |x| of every chunk, a shorter last chunk included: ScaleCom's
// single pass in place of a sort (arXiv 2104.11125, section 4). chunk >= 1.
Indices select_chunks(std::span<const float> x, int64_t chunk);
// Returns the indices of the k largest |x|, 0 <= k <= size, by a threshold that is found eleven
// bits at a time.
Indices select_top(std::span<const float> x, int64_t k);
// Returns k of n indices, every subset with equal probability; the same for equal random numbers.
Indices select_random(int64_t n, int64_t k, const Philox& rng);

// Returns the number of elements that a density stands for: at least one of n.
int64_t kept_elements(double density, int64_t n);
// Returns the fraction of ||x||^2 that is in the selected elements; 1 if x is zero.
double kept_energy(std::span<const float> x, const Indices& indices);
// Returns the norm of the elements of x (n) f32 that were not selected.
double unsent_norm(const Tensor& x, const Indices& indices);

// IndexCode: encodes k of n indices in a number of bytes that the receiver knows.
struct IndexCode {
  int64_t n, k;
  int64_t chunk = 0;  // elements per chunk, one index in each, sent as an offset; 0: no chunks

  int64_t bytes() const;
  void encode(const Indices& indices, uint8_t* bytes) const;
  // Throws Error for an index that is not below n.
  Indices decode(const uint8_t* bytes) const;
  int width() const;       // bits per index
  bool is_bitmap() const;  // one bit per element, where that is shorter than k indices
};

}  // namespace heddle
