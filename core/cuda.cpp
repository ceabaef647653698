#include "core/cuda.h"

#include "core/context.h"

namespace heddle {
namespace {

struct CudaHandles {
  cudaStream_t stream = nullptr;
  cublasHandle_t cublas = nullptr;

  CudaHandles() {
    check_cuda(cudaStreamCreate(&stream), "stream");
    if (cublasCreate(&cublas) != CUBLAS_STATUS_SUCCESS)
      throw Error("cuBLAS: cannot be initialised");
    if (cublasSetStream(cublas, stream) != CUBLAS_STATUS_SUCCESS)
      throw Error("cuBLAS: cannot set the stream");
  }
  ~CudaHandles() {
    (void)cublasDestroy(cublas);
    (void)cudaStreamDestroy(stream);
  }
  CudaHandles(const CudaHandles&) = delete;
  CudaHandles& operator=(const CudaHandles&) = delete;
};

}  // namespace

cudaStream_t cuda_stream() { return Context::current().state<CudaHandles>().stream; }
cublasHandle_t cublas_handle() { return Context::current().state<CudaHandles>().cublas; }

}  // namespace heddle
