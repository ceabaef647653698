#include "core/cuda.h"

#include <memory>

#include "core/context.h"
#include "core/streams.h"
#include "core/tensor.h"

namespace heddle {
namespace {

// Not ordered with the legacy stream, which nobody here uses: a library that did would break the
// recording of a step.
cudaStream_t make_stream(bool first) {
  int lowest = 0, highest = 0;
  check_cuda(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "priorities");
  cudaStream_t made = nullptr;
  check_cuda(cudaStreamCreateWithPriority(&made, cudaStreamNonBlocking, first ? highest : lowest),
             "cudaStreamCreate");
  return made;
}

// What NVIDIA advises for Hopper; older cards take less.
constexpr int64_t kCublasWorkspace = int64_t{32} << 20;

// Made when something needs it, and for one stream. Its workspace is ours: cuBLAS's own would be
// asked for anew by every product of a recorded step (core/step_graph.h).
void make_cublas(cublasHandle_t& cublas, Tensor& workspace, cudaStream_t stream) {
  if (cublas != nullptr) return;
  workspace = Tensor::empty({kCublasWorkspace}, DType::u8);
  cublasHandle_t made = nullptr;
  check_cublas(cublasCreate(&made), "cublasCreate");
  std::unique_ptr<cublasContext, Destroy<cublasDestroy>> handle(made);
  check_cublas(cublasSetStream(made, stream), "cublasSetStream");
  check_cublas(cublasSetWorkspace(made, workspace.raw(), kCublasWorkspace), "cublasSetWorkspace");
  const bool tf32 = Context::current().options().tf32;
  // Sums that are cut into parts are fp32 too, where the result is bf16.
  const int mode = (tf32 ? CUBLAS_TF32_TENSOR_OP_MATH : CUBLAS_DEFAULT_MATH) |
                   CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
  check_cublas(cublasSetMathMode(made, static_cast<cublasMath_t>(mode)), "cublasSetMathMode");
  cublas = handle.release();
}

// A stream of a Context and the handles that work on it. The streams next to the first have high
// priority, because others wait for what they do.
template <StreamUse kUse>
struct Handles {
  cudaStream_t stream = make_stream(kUse != StreamUse::main);
  cublasHandle_t cublas = nullptr;
  Tensor workspace;               // of cuBLAS
  cudnnHandle_t cudnn = nullptr;  // on the first stream only

  Handles() = default;
  ~Handles() {
    if (cudnn != nullptr) (void)cudnnDestroy(cudnn);
    if (cublas != nullptr) (void)cublasDestroy(cublas);
    (void)cudaStreamDestroy(stream);
  }
  Handles(const Handles&) = delete;
  Handles& operator=(const Handles&) = delete;
};

template <class Call>
auto with_handles(const Call& call) {
  Context& context = Context::current();
  switch (stream_use()) {
    case StreamUse::exchange:
      return call(context.state<Handles<StreamUse::exchange>>());
    case StreamUse::copy:
      return call(context.state<Handles<StreamUse::copy>>());
    case StreamUse::main:
      break;
  }
  return call(context.state<Handles<StreamUse::main>>());
}

}  // namespace

cudaStream_t cuda_stream() {
  return with_handles([](auto& h) { return h.stream; });
}

cublasHandle_t cublas_handle() {
  return with_handles([](auto& h) {
    make_cublas(h.cublas, h.workspace, h.stream);
    return h.cublas;
  });
}

// Works on the Context's first stream, whichever thread asks; cuDNN takes a second to load.
cudnnHandle_t cudnn_handle() {
  auto& h = Context::current().state<Handles<StreamUse::main>>();
  if (h.cudnn == nullptr) {
    check_cudnn(cudnnCreate(&h.cudnn), "cudnnCreate");
    check_cudnn(cudnnSetStream(h.cudnn, h.stream), "cudnnSetStream");
  }
  return h.cudnn;
}

bool stream_is_recorded() {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check_cuda(cudaStreamIsCapturing(cuda_stream(), &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

float stream_milliseconds(const std::function<void()>& start) {
  const auto record = [] {
    cudaEvent_t made = nullptr;
    check_cuda(cudaEventCreate(&made), "cudaEventCreate");
    std::unique_ptr<CUevent_st, Destroy<cudaEventDestroy>> out(made);
    check_cuda(cudaEventRecord(made, cuda_stream()), "cudaEventRecord");
    return out;
  };
  const auto begin = record();
  start();
  const auto end = record();
  float ms = 0;
  check_cuda(cudaEventSynchronize(end.get()), "cudaEventSynchronize");
  check_cuda(cudaEventElapsedTime(&ms, begin.get(), end.get()), "cudaEventElapsedTime");
  return ms;
}

}  // namespace heddle
