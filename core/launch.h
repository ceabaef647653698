// Starts CUDA kernels and fetches their results. Kernels use only thread and block indices, shared
// memory, __syncthreads and atomicAdd of integers, so that tests/cuda_emulation.h, which defines
// HEDDLE_EMULATED and its own versions of these functions, can run the same source on a machine
// without a GPU.
#pragma once

#include <cstddef>

#if defined(__CUDACC__) && !defined(HEDDLE_EMULATED)
#include "core/cuda.h"

namespace heddle {

// Starts kernel(args...) on the Context's stream.
template <class... Params, class... Args>
void launch(const char* name, void (*kernel)(Params...), dim3 grid, dim3 block, Args... args) {
  kernel<<<grid, block, 0, cuda_stream()>>>(static_cast<Params>(args)...);
  check_cuda(cudaGetLastError(), name);
}

// Copies to host memory after everything started before, and waits for it.
inline void fetch(void* host, const void* device, size_t bytes) {
  check_cuda(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, cuda_stream()), "fetch");
  check_cuda(cudaStreamSynchronize(cuda_stream()), "fetch");
}

}  // namespace heddle
#endif
