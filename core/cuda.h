// CUDA's handles of a Context and the check of return codes. Included only in CUDA builds.
#pragma once

#include <cublas_v2.h>
#include <cuda_runtime.h>

#include "core/error.h"

namespace heddle {

// Throws Error with CUDA's message.
inline void check_cuda(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw Error(concat("CUDA: ", what, ": ", cudaGetErrorString(status)));
}

// Stream and cuBLAS handle of the calling thread's Context, made at first use.
cudaStream_t cuda_stream();
cublasHandle_t cublas_handle();

}  // namespace heddle
