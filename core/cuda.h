// CUDA's handles of a Context, and checks of return codes. Included only in CUDA builds.
#pragma once

#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <cudnn.h>

#include <functional>

#include "core/error.h"

namespace heddle {

class Tensor;

// Throw Error with the name of the call and the library's own message.
inline void check_cuda(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw Error(concat("CUDA: ", what, ": ", cudaGetErrorString(status)));
}
inline void check_cublas(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw Error(concat("cuBLAS: ", what, ": ", cublasGetStatusString(status)));
}
inline void check_cudnn(cudnnStatus_t status, const char* what) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  char detail[512] = "";
  cudnnGetLastErrorString(detail, sizeof detail);
  throw Error(concat("cuDNN: ", what, ": ", cudnnGetErrorString(status), " ", detail));
}

// Deleter of std::unique_ptr for a library's handle that kDestroy frees.
template <auto kDestroy>
struct Destroy {
  template <class T>
  void operator()(T* descriptor) const {
    (void)kDestroy(descriptor);
  }
};

// Creates an empty cuDNN descriptor, which the caller fills in.
template <class Pointer, class Create>
Pointer make_descriptor(Create create) {
  typename Pointer::pointer made = nullptr;
  check_cudnn(create(&made), "descriptor");
  return Pointer(made);
}

// Return the calling thread's stream, its cuBLAS handle, and cuDNN's handle, which works on the
// main stream; made at first use and owned by the Context. All work on a stream runs in order, so
// memory that returns to the stream's pool may be handed out again at once.
cudaStream_t cuda_stream();
cublasHandle_t cublas_handle();
const Tensor& cublas_workspace();  // the handle's, 32 MiB, also for cuBLASLt on its stream
cudnnHandle_t cudnn_handle();

// Keeps a tensor's memory until the work that is now on the calling thread's stream has been done.
void keep_until_done(const Tensor& x);

// Returns whether the calling thread's stream is being recorded (core/step_graph.h).
bool stream_is_recorded();

// Returns the time, in milliseconds, of the work that start() queues on the calling thread's
// stream. Blocks until it is done.
float stream_milliseconds(const std::function<void()>& start);

}  // namespace heddle
