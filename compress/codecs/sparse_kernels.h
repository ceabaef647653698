// The steps of sparse codecs on the tensors of a device, with the same results on the CPU and on
// CUDA, bit for bit. Indices are 32-bit, in tensors of i32; `bytes` are tensors of u8. Backend
// functions trust their arguments.
//
//   HEDDLE_DISPATCH(device, accumulate_residual(g, m, 100, indices, magnitudes));
#pragma once

#include <cstdint>
#include <vector>

#include "compress/codecs/select.h"
#include "core/tensor.h"

namespace heddle {

// accumulate_residual: m = m + g and g = the old m, (n) each; for every chunk the index of the
//   largest |m + g| (the lowest of equal ones) and its magnitude (magnitude.h), (ceil(n / chunk)).
// largest_of_chunks: the same for x; `numbers`: NaN counts as zero.
// select_top: the indices (k) of the k largest |x|, ascending, as in select.h.
// encode_indices, decode_indices: as in IndexCode. The CPU throws Error for an index beyond the
//   layer; CUDA returns it, and gather() turns it into NaN.
// gather: values[j] = x[indices[j]]; an index beyond x, which no intact message holds, gives NaN.
// scatter: x[indices[j]] = values[j]; scatter_add: +=; scatter_value: = value; indices beyond x are
//   left out.
// low_pass: x = (1 - beta) m + beta x.
// copy_bytes: copies the bytes of `from` to `to`, whatever their types.
#define HEDDLE_CODEC                                                                               \
  void accumulate_residual(const Tensor& g, const Tensor& m, int64_t chunk, const Tensor& indices, \
                           const Tensor& magnitudes);                                              \
  void largest_of_chunks(const Tensor& x, int64_t chunk, bool numbers, const Tensor& indices,      \
                         const Tensor& magnitudes);                                                \
  void select_top(const Tensor& x, int64_t k, const Tensor& indices);                              \
  void encode_indices(const IndexCode& code, const Tensor& indices, const Tensor& bytes);          \
  Tensor decode_indices(const IndexCode& code, const Tensor& bytes);                               \
  void gather(const Tensor& x, const Tensor& indices, const Tensor& values);                       \
  void scatter(const Tensor& values, const Tensor& indices, const Tensor& x);                      \
  void scatter_add(const Tensor& values, const Tensor& indices, const Tensor& x);                  \
  void scatter_value(float value, const Tensor& indices, const Tensor& x);                         \
  void low_pass(const Tensor& m, const Tensor& x, double beta);                                    \
  void copy_bytes(const Tensor& from, const Tensor& to);

HEDDLE_BACKENDS(HEDDLE_CODEC)
#undef HEDDLE_CODEC

// Indices as a tensor on the host.
Tensor index_tensor(const Indices& indices);
// The indices that select_chunks or, without chunks, select_top gives.
Tensor select_indices(const IndexCode& code, const Tensor& x);
// The largest of all tensors (n) f32 and of those that hold magnitudes already, on the host. From a
// GPU in one copy.
uint32_t largest_magnitude_of(const std::vector<Tensor>& tensors,
                              const std::vector<Tensor>& magnitudes = {});

}  // namespace heddle
