// For .cu files of shared kernels: the same functor runs over [0, n) on the CPU (compiled
// by the C++ compiler, vectorised) and on CUDA (compiled by nvcc, one grid-stride loop). The file's
// functions live in namespace HEDDLE_BACKEND: cpu or cuda.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "core/bfloat16.h"
#include "core/joined_launches.h"
#include "core/parallel.h"
#include "core/tensor.h"

#ifdef __CUDACC__
#include "core/launch.h"
#define HEDDLE_BACKEND cuda
#elif defined(HEDDLE_EMULATED)  // CUDA source compiled for the CPU, for tests: its namespace
#define HEDDLE_BACKEND HEDDLE_EMULATED
#else
#define HEDDLE_BACKEND cpu
#endif
#if defined(__CUDACC__) || defined(HEDDLE_EMULATED)
#define HEDDLE_GPU 1
#endif

// Calls the function in cpu:: or cuda::, depending on the device.
#ifdef HEDDLE_CUDA
#define HEDDLE_DISPATCH(device, call) ((device).is_cuda() ? cuda::call : cpu::call)
#else
#define HEDDLE_DISPATCH(device, call) cpu::call
#endif

namespace heddle {

// Calls f.template operator()<T>() for the type of x, float or bfloat16.
template <class F>
void with_type(const Tensor& x, F&& f) {
  if (x.dtype() == DType::f32)
    f.template operator()<float>();
  else
    f.template operator()<bfloat16>();
}

// Calls f.template operator()<From, To>() for the types of two tensors.
template <class F>
void with_types(const Tensor& src, const Tensor& dst, F&& f) {
  with_type(src, [&]<class From>() {
    with_type(dst, [&]<class To>() { f.template operator()<From, To>(); });
  });
}

// Copies a table for a kernel to the device, as bytes. The caller may release the result as soon as
// the kernel has been launched.
template <class T>
Tensor upload(Device device, const std::vector<T>& rows) {
  const int64_t bytes = to_int64(rows.size() * sizeof(T));  // nvcc needs the type spelled out
  const Tensor host = Tensor::empty_on(Device{}, {bytes}, DType::u8);
  std::memcpy(host.raw(), rows.data(), to_size(bytes));
  return host.to(device);
}

#ifdef HEDDLE_GPU
template <class F>
__global__ void for_each_kernel(int64_t n, F f) {
  const int64_t stride = to_int64(gridDim.x) * blockDim.x;
  for (int64_t i = blockIdx.x * to_int64(blockDim.x) + threadIdx.x; i < n; i += stride) f(i);
}

template <class F>
void for_each(int64_t n, F f) {
  if (n <= 0) return;
  const int64_t blocks = std::min<int64_t>(ceil_div(n, 256), 4096);
  launch("for_each", for_each_kernel<F>, static_cast<unsigned>(blocks), 256, n, f);
}

// Calls f(block) in each of the blocks.
template <class F>
__global__ void for_blocks_kernel(F f) {
  f(blockIdx.x);
}

// The functors of one kernel; `first` is a functor's first block. The table is an argument of the
// kernel, whose arguments take at most 4 KiB.
template <class F>
struct JoinedBlocks {
  struct Part {
    F f;
    unsigned first;
  };
  static constexpr int kMost = 3840 / sizeof(Part);
  Part parts[kMost];
  int count;
};

template <class F>
__global__ void for_joined_blocks_kernel(JoinedBlocks<F> all) {
  int low = 0;
  for (int high = all.count; high - low > 1;) {
    const int middle = (low + high) / 2;
    (all.parts[middle].first <= blockIdx.x ? low : high) = middle;
  }
  all.parts[low].f(blockIdx.x - all.parts[low].first);
}

template <class F>
std::vector<std::pair<unsigned, F>>& joined_parts() {
  static thread_local std::vector<std::pair<unsigned, F>> parts;
  return parts;
}

template <class F>
void finish_joined(bool start) {
  const auto parts = std::exchange(joined_parts<F>(), {});
  for (size_t at = 0; start && at < parts.size();) {
    JoinedBlocks<F> all = {};
    unsigned blocks = 0;
    for (; at < parts.size() && all.count < JoinedBlocks<F>::kMost; ++at) {
      all.parts[all.count++] = {parts[at].second, blocks};
      blocks += parts[at].first;
    }
    launch("joined blocks", for_joined_blocks_kernel<F>, blocks, 256, all);
  }
}

// Calls f(block), with 256 threads, at once or in a JoinedLaunches (core/joined_launches.h).
template <class F>
void for_blocks(int64_t blocks, F f) {
  if (blocks <= 0) return;
  const auto count = static_cast<unsigned>(blocks);
  if (!JoinedLaunches::collecting()) return launch("blocks", for_blocks_kernel<F>, count, 256, f);
  if (joined_parts<F>().empty()) JoinedLaunches::enlist(finish_joined<F>);
  joined_parts<F>().emplace_back(count, f);
}

template <class F>
struct BlockOfLoop {
  static constexpr int kEach = 2048;
  F f;
  int64_t n;
  __device__ void operator()(unsigned block) const {
    const int64_t begin = to_int64(block) * kEach, end = begin + kEach < n ? begin + kEach : n;
    for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) f(i);
  }
};

// Calls f(i) for 0 <= i < n, at once or in a JoinedLaunches.
template <class F>
void for_each_joined(int64_t n, F f) {
  if (!JoinedLaunches::collecting()) return for_each(n, f);
  for_blocks(ceil_div(n, BlockOfLoop<F>::kEach), BlockOfLoop<F>{f, n});
}

template <class F>
struct InGrid {
  int64_t columns;
  F f;
  __device__ void operator()(int64_t i) const { f(i / columns, i % columns); }
};

template <class F>
void for_each_in_grid(int64_t rows, int64_t columns, F f) {
  for_each(rows * columns, InGrid<F>{columns, f});
}
#else
template <class F>
void for_each(int64_t n, F f) {
  parallel_for(n, 8192, [f](int64_t begin, int64_t end) {
    F local = f;
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) local(i);
  });
}

template <class F>
void for_each_joined(int64_t n, F f) {
  for_each(n, f);
}

// Calls f(row, column) on a grid; the compiler hoists what depends on the row only.
template <class F>
void for_each_in_grid(int64_t rows, int64_t columns, F f) {
  const auto strip = [f, columns](int64_t first_row, int64_t last_row, int64_t begin, int64_t end) {
    F local = f;
    for (int64_t r = first_row; r < last_row; ++r) {
#pragma omp simd
      for (int64_t c = begin; c < end; ++c) local(r, c);
    }
  };
  if (rows >= columns / 4096 && columns > 0)
    parallel_for(rows, std::max<int64_t>(1, 4096 / columns),
                 [&](int64_t begin, int64_t end) { strip(begin, end, 0, columns); });
  else  // few long rows
    parallel_for(columns, 4096, [&](int64_t begin, int64_t end) { strip(0, rows, begin, end); });
}
#endif

}  // namespace heddle
