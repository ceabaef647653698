// The functions of sparse_kernels_cuda.cu on the CPU, and those that dispatch by device.
#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "compress/codecs/chunks_cpu.h"
#include "compress/codecs/magnitude.h"
#include "compress/codecs/sparse_kernels.h"
#include "core/shared_kernel.h"

namespace heddle {
namespace {

void copy_indices(const Indices& from, const Tensor& to) {
  if (!from.empty()) std::memcpy(to.raw(), from.data(), from.size() * 4);
}

}  // namespace

namespace cpu {

void add_and_swap(const Tensor& g, const Tensor& m, int64_t chunk, const Tensor& indices,
                  const Tensor& magnitudes) {
  float *gradient = g.data<float>(), *x = m.data<float>();
  find_in_chunks(g.size(), chunk, words(indices), words(magnitudes),
                 [=](int64_t begin, int64_t length) {
                   return find_largest(length, [=]<int kLanes>(int64_t i) {
                     using L = Lanes<kLanes>;
                     const auto residual = L::load(x + begin + i),
                                sum = L::load(gradient + begin + i) + residual;
                     L::store(gradient + begin + i, residual);
                     L::store(x + begin + i, sum);
                     return sum;
                   });
                 });
}

void largest_of_chunks(const Tensor& x, int64_t chunk, bool numbers, const Tensor& indices,
                       const Tensor& magnitudes) {
  const float* values = x.data<float>();
  find_in_chunks(
      x.size(), chunk, words(indices), words(magnitudes),
      [=](int64_t begin, int64_t length) { return largest_of(values + begin, length, numbers); });
}

void select_top(const Tensor& x, int64_t k, const Tensor& indices) {
  copy_indices(heddle::select_top(elements(x), k), indices);
}

Tensor select_active(const Tensor& x, const Tensor& old, float ahead, int64_t bin,
                     const Tensor& magnitudes) {
  const float *values = x.data<float>(), *residual = old.data<float>();
  std::array<uint32_t, 4096> found;  // filled without branches: an element that is not active is
                                     // overwritten by the next
  size_t count = 0;
  Indices active;
  for (int64_t begin = 0; begin < x.size();) {
    const uint32_t largest = words(magnitudes)[begin / bin];
    const auto room = to_int64(found.size() - count);
    const int64_t end = std::min({x.size(), (begin / bin + 1) * bin, begin + room});
    for (int64_t i = begin; i < end; ++i) {
      found[count] = static_cast<uint32_t>(i);
      count += is_active(values[i], residual[i], ahead, largest) ? 1 : 0;
    }
    begin = end;
    if (count + 64 < found.size() && begin < x.size()) continue;
    active.insert(active.end(), found.begin(), found.begin() + static_cast<std::ptrdiff_t>(count));
    count = 0;
  }
  return index_tensor(active);
}

void encode_indices(const IndexCode& code, const Tensor& indices, const Tensor& bytes) {
  code.encode(Indices(words(indices), words(indices) + indices.size()), bytes.data<uint8_t>());
}

Tensor decode_indices(const IndexCode& code, const Tensor& bytes) {
  return index_tensor(code.decode(bytes.data<uint8_t>()));
}

void clear_words(const Tensor& x) { x.fill_zero(); }

void copy_words(const Tensor& from, const Tensor& to) {
  if (to.size() > 0) std::memcpy(to.raw(), from.raw(), to_size(to.bytes()));
}

}  // namespace cpu

Tensor index_tensor(const Indices& indices) {
  Tensor out = Tensor::empty_on(Device{}, {std::ssize(indices)}, DType::i32);
  copy_indices(indices, out);
  return out;
}

Tensor select_indices(const IndexCode& code, const Tensor& x) {
  check(!JoinedLaunches::collecting(), "select_indices: its loops depend on each other");
  const Device device = x.device();
  Tensor indices = Tensor::empty_on(device, {code.k}, DType::i32);
  if (code.chunk == 0)
    HEDDLE_DISPATCH(device, select_top(x, code.k, indices));
  else
    HEDDLE_DISPATCH(device,
                    largest_of_chunks(x, code.chunk, true, indices, Tensor::empty_like(indices)));
  return indices;
}

Tensor largest_magnitudes_on_gpu(const std::vector<Tensor>& tensors) {
  constexpr int64_t kChunk = 4096;
  int64_t chunks = 0;
  for (const Tensor& x : tensors) chunks += ceil_div(x.size(), kChunk);
  const Tensor found = Tensor::empty_on(tensors.at(0).device(), {chunks}, DType::i32);
  const Tensor where = Tensor::empty_like(found);
  {
    JoinedLaunches joined;
    for (int64_t at = 0; const Tensor& x : tensors) {
      const int64_t begin = std::exchange(at, at + ceil_div(x.size(), kChunk));
      HEDDLE_DISPATCH(x.device(), largest_of_chunks(x, kChunk, false, where.slice(begin, at),
                                                    found.slice(begin, at)));
    }
    joined.launch();
  }
  return chunks > 128 ? largest_magnitudes_on_gpu({found}) : found;
}

uint32_t largest_magnitude_of(const std::vector<Tensor>& tensors) {
  const auto largest_in = [](const Tensor& m) {
    return m.size() == 0 ? 0 : *std::max_element(words(m), words(m) + m.size());
  };
  uint32_t largest = 0;
  std::vector<Tensor> on_gpu;
  for (const Tensor& x : tensors)
    if (x.device().is_cuda())
      on_gpu.push_back(x);
    else
      largest =
          std::max(largest, x.dtype() == DType::i32 ? largest_in(x)
                                                    : largest_magnitude(x.data<float>(), x.size()));
  if (on_gpu.empty()) return largest;
  const Tensor found = largest_magnitudes_on_gpu(on_gpu);
  const Tensor host = Tensor::empty_pinned(found.shape(), DType::i32);
  host.copy_from(found);
  return std::max(largest, largest_in(host));
}

}  // namespace heddle
