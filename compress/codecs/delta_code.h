// Ascending indices by the gaps between them, in Golomb's code of run lengths (1966) with a power
// of two as parameter (Rice and Plaunt 1971): g, the elements that are left out since the index
// before, as g >> b zeros, a one, and the b low bits of g, the first bit lowest in its byte. b
// follows from n and k. How long it is depends on the indices.
//
//   const DeltaCode code{.n = 1000000, .k = 10000};
//   std::vector<uint8_t> bytes = code.encode(indices);
//   std::span<const uint8_t> rest = bytes;
//   Indices same = code.decode(rest);  // rest is empty now
//
// Bits for an index where any k of n elements are equally likely, against the entropy of the gaps
// (no code is shorter on average), whole bytes with a bit that says whether another follows
// (LEB128), and a plain index of a layer of a million elements:
//
//   k / n    entropy    Rice    LEB128    plain
//   10 %        4.69    4.76      8.00    10 (one bit for each element)
//    1 %        8.08    8.11     10.21    20
//   0.1 %      11.41   11.49     15.04    20
//
// What clusters takes less: the zeros of all gaps together are no more than (n - k) >> b.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "compress/codecs/select.h"

namespace heddle {

struct DeltaCode {
  int64_t n, k;  // 0 <= k <= n < 2^32

  // b: the largest with 2^b <= (n - k) / k, the mean gap; or 0.
  int shift() const;
  // For any k indices.
  int64_t max_bytes() const;
  // k ascending indices below n.
  std::vector<uint8_t> encode(const Indices& indices) const;
  // Takes the bytes of k indices from the front. Throws Error where bytes are missing and for an
  // index that is not below n.
  Indices decode(std::span<const uint8_t>& bytes) const;
};

}  // namespace heddle
