#include "core/cuda.h"

#include "core/context.h"
#include "core/streams.h"

namespace heddle {
namespace {

struct CudaHandles {
  cudaStream_t stream = nullptr;
  cublasHandle_t cublas = nullptr;
  cudnnHandle_t cudnn = nullptr;

  CudaHandles() { check_cuda(cudaStreamCreate(&stream), "cudaStreamCreate"); }
  ~CudaHandles() {
    if (cudnn != nullptr) (void)cudnnDestroy(cudnn);
    if (cublas != nullptr) (void)cublasDestroy(cublas);
    (void)cudaStreamDestroy(stream);
  }
  CudaHandles(const CudaHandles&) = delete;
  CudaHandles& operator=(const CudaHandles&) = delete;
};

// High priority: what others wait for goes first.
struct SideHandles {
  cudaStream_t stream = nullptr;

  SideHandles() {
    int lowest = 0, highest = 0;
    check_cuda(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "priorities");
    check_cuda(cudaStreamCreateWithPriority(&stream, cudaStreamDefault, highest),
               "cudaStreamCreate");
  }
  ~SideHandles() { (void)cudaStreamDestroy(stream); }
  SideHandles(const SideHandles&) = delete;
  SideHandles& operator=(const SideHandles&) = delete;
};

CudaHandles& handles() { return Context::current().state<CudaHandles>(); }

}  // namespace

cudaStream_t cuda_stream() {
  return SideStream::active() ? Context::current().state<SideHandles>().stream : handles().stream;
}

// They work on the Context's first stream, whichever thread asks.
// The libraries' handles are made when something needs them: cuDNN alone takes a second to load.
cublasHandle_t cublas_handle() {
  CudaHandles& h = handles();
  if (h.cublas == nullptr) {
    check_cublas(cublasCreate(&h.cublas), "cublasCreate");
    check_cublas(cublasSetStream(h.cublas, h.stream), "cublasSetStream");
    const bool tf32 = Context::current().options().tf32;
    // Sums that are cut into parts are fp32 too, where the result is bf16.
    const int mode = (tf32 ? CUBLAS_TF32_TENSOR_OP_MATH : CUBLAS_DEFAULT_MATH) |
                     CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
    check_cublas(cublasSetMathMode(h.cublas, static_cast<cublasMath_t>(mode)), "cublasSetMathMode");
  }
  return h.cublas;
}

cudnnHandle_t cudnn_handle() {
  CudaHandles& h = handles();
  if (h.cudnn == nullptr) {
    check_cudnn(cudnnCreate(&h.cudnn), "cudnnCreate");
    check_cudnn(cudnnSetStream(h.cudnn, h.stream), "cudnnSetStream");
  }
  return h.cudnn;
}

}  // namespace heddle
