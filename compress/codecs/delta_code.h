// DeltaCode: encodes ascending indices by the gaps between them, in Golomb's code of run lengths
// (1966) with a power of two as its parameter (Rice and Plaunt 1971). A gap g, the number of
// elements skipped since the last index, becomes g >> b zeros, a one, and the b low bits of g; the
// first bit is the lowest of its byte. b follows from n and k. The length depends on the indices.
//
//   const DeltaCode code{.n = 1000000, .k = 10000};
//   std::vector<uint8_t> bytes = code.encode(indices);
//   std::span<const uint8_t> rest = bytes;
//   Indices same = code.decode(rest);  // rest is empty now
//
// Bits per index if every choice of k of n elements is equally likely: the entropy of the gaps (no
// code is shorter on average), this code, whole bytes with a continuation bit (LEB128), and a plain
// index in a layer of a million elements:
//
//   k / n    entropy    Rice    LEB128    plain
//   10 %        4.69    4.76      8.00    10 (one bit for each element)
//    1 %        8.08    8.11     10.21    20
//   0.1 %      11.41   11.49     15.04    20
//
// Clustered indices take less: the zeros of all gaps together are no more than (n - k) >> b.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "compress/codecs/select.h"

namespace heddle {

struct DeltaCode {
  int64_t n, k;  // 0 <= k <= n < 2^32

  // Returns b: the largest with 2^b <= (n - k) / k, the mean gap; or 0.
  int shift() const;
  // Returns an upper bound on the encoded length of any k indices, in bytes.
  int64_t max_bytes() const;
  // Encodes k ascending indices below n.
  std::vector<uint8_t> encode(const Indices& indices) const;
  // Decodes k indices and removes their bytes from the front. Throws Error if bytes are missing and
  // for an index that is not below n.
  Indices decode(std::span<const uint8_t>& bytes) const;
};

}  // namespace heddle
