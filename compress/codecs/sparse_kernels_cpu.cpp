// The steps of sparse_kernels_cuda.cu on the CPU, and those that dispatch to either device.
#include <algorithm>
#include <cstring>
#include <vector>

#include "compress/codecs/magnitude.h"
#include "compress/codecs/sparse_kernels.h"
#include "core/parallel.h"
#include "core/shared_kernel.h"

namespace heddle {
namespace {

// m = m + g, and g = m as it was; the largest |m + g|.
Largest exchange_sum(float* g, float* m, int64_t n) {
  return find_largest(n, [=]<int kLanes>(int64_t i) {
    using L = Lanes<kLanes>;
    const auto residual = L::load(m + i), sum = L::load(g + i) + residual;
    L::store(g + i, residual);
    L::store(m + i, sum);
    return sum;
  });
}

Largest largest_of(const float* x, int64_t n, bool numbers) {
  return find_largest(n, [=]<int kLanes>(int64_t i) {
    const auto v = Lanes<kLanes>::load(x + i);
    return !numbers || v == v ? v : Lanes<kLanes>::all(0);
  });
}

uint32_t* words(const Tensor& x) { return reinterpret_cast<uint32_t*>(x.data<int32_t>()); }

// find(begin, length) for every chunk of n elements.
template <class Find>
void for_chunks(int64_t n, int64_t chunk, const Tensor& indices, const Tensor& magnitudes,
                const Find& find) {
  uint32_t *index = words(indices), *magnitude = words(magnitudes);
  parallel_for((n + chunk - 1) / chunk, std::max<int64_t>(1, 16384 / chunk),
               [&](int64_t begin, int64_t end) {
                 for (int64_t c = begin; c < end; ++c) {
                   const int64_t at = c * chunk;
                   const Largest largest = find(at, std::min(chunk, n - at));
                   index[c] = static_cast<uint32_t>(at) + largest.index;
                   magnitude[c] = largest.magnitude;
                 }
               });
}

void copy_indices(const Indices& from, const Tensor& to) {
  if (!from.empty()) std::memcpy(to.raw(), from.data(), from.size() * 4);
}

}  // namespace

namespace cpu {

void accumulate_residual(const Tensor& g, const Tensor& m, int64_t chunk, const Tensor& indices,
                         const Tensor& magnitudes) {
  float *gradient = g.data<float>(), *x = m.data<float>();
  for_chunks(g.size(), chunk, indices, magnitudes, [=](int64_t at, int64_t length) {
    return exchange_sum(gradient + at, x + at, length);
  });
}

void largest_of_chunks(const Tensor& x, int64_t chunk, bool numbers, const Tensor& indices,
                       const Tensor& magnitudes) {
  const float* values = x.data<float>();
  for_chunks(x.size(), chunk, indices, magnitudes,
             [=](int64_t at, int64_t length) { return largest_of(values + at, length, numbers); });
}

void select_top(const Tensor& x, int64_t k, const Tensor& indices) {
  copy_indices(heddle::select_top(elements(x), k), indices);
}

void encode_indices(const IndexCode& code, const Tensor& indices, const Tensor& bytes) {
  code.encode(Indices(words(indices), words(indices) + indices.size()), bytes.data<uint8_t>());
}

Tensor decode_indices(const IndexCode& code, const Tensor& bytes) {
  return index_tensor(code.decode(bytes.data<uint8_t>()));
}

}  // namespace cpu

Tensor index_tensor(const Indices& indices) {
  Tensor out = Tensor::empty_on(Device{}, {std::ssize(indices)}, DType::i32);
  copy_indices(indices, out);
  return out;
}

Tensor select_indices(const IndexCode& code, const Tensor& x) {
  const Device device = x.device();
  Tensor indices = Tensor::empty_on(device, {code.k}, DType::i32);
  if (code.chunk == 0)
    HEDDLE_DISPATCH(device, select_top(x, code.k, indices));
  else
    HEDDLE_DISPATCH(device,
                    largest_of_chunks(x, code.chunk, true, indices, Tensor::empty_like(indices)));
  return indices;
}

uint32_t largest_magnitude_of(const std::vector<Tensor>& tensors,
                              const std::vector<Tensor>& magnitudes) {
  constexpr int64_t kChunk = 4096;
  const auto chunks = [](const Tensor& x) { return (x.size() + kChunk - 1) / kChunk; };
  const auto largest_in = [](const Tensor& m) {
    return m.size() == 0 ? 0 : *std::max_element(words(m), words(m) + m.size());
  };
  uint32_t largest = 0;
  int64_t far = 0;  // magnitudes on a GPU
  Device device = {};
  const auto count = [&](const Tensor& x, int64_t n) {
    device = x.device();
    far += n;
  };
  for (const Tensor& x : tensors)
    if (x.device().is_cuda())
      count(x, chunks(x));
    else
      largest = std::max(largest, largest_magnitude(x.data<float>(), x.size()));
  for (const Tensor& m : magnitudes)
    if (m.device().is_cuda())
      count(m, m.size());
    else
      largest = std::max(largest, largest_in(m));
  if (far == 0) return largest;
  const Tensor all = Tensor::empty_on(device, {far}, DType::i32);
  int64_t at = 0;
  const auto next = [&](int64_t n) { return all.slice(at, at + n); };
  for (const Tensor& x : tensors)
    if (const int64_t n = x.device().is_cuda() ? chunks(x) : 0; n > 0) {
      const Tensor here = next(n);
      HEDDLE_DISPATCH(device, largest_of_chunks(x, kChunk, false, Tensor::empty_like(here), here));
      at += n;
    }
  for (const Tensor& m : magnitudes)
    if (const int64_t n = m.device().is_cuda() ? m.size() : 0; n > 0) {
      next(n).copy_from(m);
      at += n;
    }
  return std::max(largest, largest_in(all.to(Device{})));
}

}  // namespace heddle
