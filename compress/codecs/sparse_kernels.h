// The steps of sparse codecs on the tensors of a device, with the same bits on the CPU and on CUDA.
// Indices are 32-bit unsigned, in tensors of i32; `bytes` are tensors of u8. All tensors of a call
// are on its device. Arguments are not checked. Internal to compress, its benchmarks and tests.
//
//   HEDDLE_DISPATCH(device, gather(x, indices, values));
#pragma once

#include <cstdint>
#include <vector>

#include "compress/codecs/select.h"
#include "core/tensor.h"

namespace heddle {

// add_and_swap: m = m + g and g = the old m, (n) each. For every chunk, also writes the index of
//   the largest |m + g| (the first of equal ones) and its magnitude (magnitude.h), both
//   (ceil(n / chunk)).
// largest_of_chunks: writes the same for x; `numbers`: NaN counts as zero.
// select_top: writes the indices (k) of the k largest |x|, ascending, as in select.h.
// select_active: returns the indices (k) i32, ascending, of the elements that AdaComp sends: those
//   of x (n) that are not zero and where |x + ahead * (x - old)| is at least the largest |x| of
//   their bin, given in `magnitudes` (bins); old (n) is the residual that x contains.
// encode_indices, decode_indices: as in IndexCode. For an index beyond the layer the CPU throws
//   Error; CUDA returns it, and gather() turns it into NaN.
// gather: values[j] = x[indices[j]]; NaN for an index beyond x, which no intact message holds.
// scatter: x[indices[j]] = values[j]; scatter_add: +=; scatter_value: = value. All three skip
//   indices beyond x.
// low_pass: x = (1 - beta) m + beta x, then m = 0.
// copy_words, clear_words: copy and clear elements of four bytes.
// flag_above: flag (1) f32 = infinity if one of the magnitudes (n) i32 is above `most`, else 0; for
//   few magnitudes.
//
// All may be joined (core/joined_launches.h) but select_top, select_active, flag_above, and codes
// that are bitmaps.
namespace cpu {
void add_and_swap(const Tensor& g, const Tensor& m, int64_t chunk, const Tensor& indices,
                  const Tensor& magnitudes);
void largest_of_chunks(const Tensor& x, int64_t chunk, bool numbers, const Tensor& indices,
                       const Tensor& magnitudes);
void select_top(const Tensor& x, int64_t k, const Tensor& indices);
Tensor select_active(const Tensor& x, const Tensor& old, float ahead, int64_t bin,
                     const Tensor& magnitudes);
void encode_indices(const IndexCode& code, const Tensor& indices, const Tensor& bytes);
Tensor decode_indices(const IndexCode& code, const Tensor& bytes);
void gather(const Tensor& x, const Tensor& indices, const Tensor& values);
void scatter(const Tensor& values, const Tensor& indices, const Tensor& x);
void scatter_add(const Tensor& values, const Tensor& indices, const Tensor& x);
void scatter_value(float value, const Tensor& indices, const Tensor& x);
void low_pass(const Tensor& m, const Tensor& x, double beta);
void copy_words(const Tensor& from, const Tensor& to);
void clear_words(const Tensor& x);
void flag_above(const Tensor& magnitudes, uint32_t most, const Tensor& flag);
}  // namespace cpu

namespace cuda {
void add_and_swap(const Tensor& g, const Tensor& m, int64_t chunk, const Tensor& indices,
                  const Tensor& magnitudes);
void largest_of_chunks(const Tensor& x, int64_t chunk, bool numbers, const Tensor& indices,
                       const Tensor& magnitudes);
void select_top(const Tensor& x, int64_t k, const Tensor& indices);
Tensor select_active(const Tensor& x, const Tensor& old, float ahead, int64_t bin,
                     const Tensor& magnitudes);
void encode_indices(const IndexCode& code, const Tensor& indices, const Tensor& bytes);
Tensor decode_indices(const IndexCode& code, const Tensor& bytes);
void gather(const Tensor& x, const Tensor& indices, const Tensor& values);
void scatter(const Tensor& values, const Tensor& indices, const Tensor& x);
void scatter_add(const Tensor& values, const Tensor& indices, const Tensor& x);
void scatter_value(float value, const Tensor& indices, const Tensor& x);
void low_pass(const Tensor& m, const Tensor& x, double beta);
void copy_words(const Tensor& from, const Tensor& to);
void clear_words(const Tensor& x);
void flag_above(const Tensor& magnitudes, uint32_t most, const Tensor& flag);
}  // namespace cuda

// Returns the elements of an i32 tensor as unsigned ones.
inline uint32_t* words(const Tensor& x) { return reinterpret_cast<uint32_t*>(x.data<int32_t>()); }
// Returns indices as a tensor (k) i32 on the host.
Tensor index_tensor(const Indices& indices);
// Returns the indices (k) i32 that select_chunks() or, for a code without chunks, select_top()
// gives, on x's device.
Tensor select_indices(const IndexCode& code, const Tensor& x);
// Returns the largest magnitude of tensors of values (n) f32 and of those that hold magnitudes,
// (n) i32. From a GPU it is one copy.
uint32_t largest_magnitude_of(const std::vector<Tensor>& tensors);
// Returns at most 128 magnitudes, (n) i32, of which one is the largest. All tensors are on one GPU.
Tensor largest_magnitudes_on_gpu(const std::vector<Tensor>& tensors);

}  // namespace heddle
