// Innovations: what a learner's neighbours do not know yet of its weights, coded for the way to
// them (optim/decentralized.h). An innovation v shrinks as learners agree, so a coarse code C costs
// nothing in the end, if C(v) is nearer to v than zero is.
//
//   none                                      fp32
//   qsgd:bits=4,bucket=1024,rounding=nearest  a scale for each bucket, and a few bits per value
//   topk:density=0.1                          the largest values, and which they are
//   dyna:bits=1,bucket=64,scale=adaptive      the middle of one of 2^bits parts of [-s, s], clipped
//
// dyna is Dyna-COLD's quantiser (Zhang, You and Xie 2021, arXiv 2105.06697, known from its
// abstract). The paper scales by s = first * ratio^step (scale=geometric). scale=adaptive is this
// project's: s doubles when values exceed it, and shrinks when they no longer reach it. Small
// buckets, also ours, keep what is sent for small values near them: with more values the largest is
// farther above the rest.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "compress/spec.h"
#include "core/tensor.h"

namespace heddle {

// Parses one of the above; keys left out have the values above. Throws InputError.
CompressSpec parse_innovation(const std::string& text);
// Returns a step of mixing that was stable with a code of this kind, and its default bucket, on the
// problems of `bench peers`.
double default_mixing(const CompressSpec& innovation);

// Codes the layers of one rank. One object per rank, for one thread; host memory only.
class InnovationCoder {
 public:
  // `sizes`: elements of each layer; those below 16 are always sent as fp32. Ranks may differ in
  // their seeds: decoding needs none.
  InnovationCoder(CompressSpec spec, std::vector<int64_t> sizes, uint64_t seed);

  // Returns the length of a layer's code, which follows from its size.
  int64_t bytes(size_t layer) const;
  // Encodes v (n), finite, in bytes(layer) bytes.
  void encode(size_t layer, const float* v, int64_t step, uint8_t* bytes);
  // Writes a code that stands for zeros, and leaves the scales as they are.
  void encode_zero(size_t layer, uint8_t* bytes) const;
  // Decodes a code of any rank to q (n): the same bits on every rank. Throws Error for indices that
  // are out of range.
  void decode(size_t layer, const uint8_t* bytes, float* q) const;

  // Returns dyna's scales of all buckets, f32: its state, to copy from and into.
  const Tensor& scales() const { return scales_; }

 private:
  bool coded(size_t layer) const;
  float dyna_scale(int64_t bucket, std::span<const float> x, int64_t step);

  CompressSpec spec_;
  std::vector<int64_t> sizes_;
  uint64_t seed_;
  int bits_ = 0;
  int64_t bucket_ = 0;
  double density_ = 1;
  std::vector<int64_t> first_scale_;  // by layer
  Tensor scales_;
};

}  // namespace heddle
