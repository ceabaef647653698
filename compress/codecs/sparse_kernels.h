// The steps of sparse codecs on the tensors of a device, with the same results on the CPU and on
// CUDA, bit for bit. Indices are 32-bit, in tensors of i32; `bytes` are tensors of u8. Backend
// functions trust their arguments.
//
//   HEDDLE_DISPATCH(device, absorb_chunks(g, m, 100, places, magnitudes));
#pragma once

#include <cstdint>
#include <vector>

#include "compress/codecs/select.h"
#include "core/tensor.h"

namespace heddle {

// absorb_chunks: m = m + g and g = m as it was, (n) each, and of every chunk the place of the
// largest |m + g| (the lowest of equal ones) and its magnitude (magnitude.h), (ceil(n / chunk))
// both. largest_of_chunks: the same of x; `numbers`: NaN counts as zero.
// select_top: the places (k) of the k largest |x|, ascending, as select.h has it.
// encode_places, decode_places: as IndexCode's. The CPU throws Error for places beyond a layer, on
// CUDA they come out, and take() finds them.
// take: values[j] = x[places[j]]; a place beyond x, which no intact message holds, gives NaN.
// put: x[places[j]] = values[j], add_at: +=, put_value: = value; places beyond x are left out.
// filter: x = (1 - beta) m + beta x.
// copy_bytes: the bytes of `from` to `to`, whatever their types.
#define HEDDLE_CODEC                                                                         \
  void absorb_chunks(const Tensor& g, const Tensor& m, int64_t chunk, const Tensor& places,  \
                     const Tensor& magnitudes);                                              \
  void largest_of_chunks(const Tensor& x, int64_t chunk, bool numbers, const Tensor& places, \
                         const Tensor& magnitudes);                                          \
  void select_top(const Tensor& x, int64_t k, const Tensor& places);                         \
  void encode_places(const IndexCode& code, const Tensor& places, const Tensor& bytes);      \
  Tensor decode_places(const IndexCode& code, const Tensor& bytes);                          \
  void take(const Tensor& x, const Tensor& places, const Tensor& values);                    \
  void put(const Tensor& values, const Tensor& places, const Tensor& x);                     \
  void add_at(const Tensor& values, const Tensor& places, const Tensor& x);                  \
  void put_value(float value, const Tensor& places, const Tensor& x);                        \
  void filter(const Tensor& m, const Tensor& x, double beta);                                \
  void copy_bytes(const Tensor& from, const Tensor& to);

HEDDLE_BACKENDS(HEDDLE_CODEC)
#undef HEDDLE_CODEC

// Indices as a tensor on the host.
Tensor as_places(const Indices& indices);
// The places that select_chunks or, without chunks, select_top gives.
Tensor select_places(const IndexCode& code, const Tensor& x);
// The largest of all tensors (n) f32 and of those that hold magnitudes already, on the host. From a
// GPU in one copy.
uint32_t largest_magnitude_of(const std::vector<Tensor>& tensors,
                              const std::vector<Tensor>& magnitudes = {});

}  // namespace heddle
