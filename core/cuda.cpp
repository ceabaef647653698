#include "core/cuda.h"

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "core/context.h"
#include "core/streams.h"
#include "core/tensor.h"

namespace heddle {
namespace {

// Makes a stream that is not ordered with the legacy stream, which nothing here uses: a library
// that did would break the recording of a step.
cudaStream_t make_stream(bool high_priority) {
  int lowest = 0, highest = 0;
  check_cuda(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "priorities");
  cudaStream_t made = nullptr;
  check_cuda(
      cudaStreamCreateWithPriority(&made, cudaStreamNonBlocking, high_priority ? highest : lowest),
      "cudaStreamCreate");
  return made;
}

using Event = std::unique_ptr<CUevent_st, Destroy<cudaEventDestroy>>;

// Marks the point after the work that is on the calling thread's stream.
Event record_event(unsigned flags) {
  cudaEvent_t made = nullptr;
  check_cuda(cudaEventCreateWithFlags(&made, flags), "cudaEventCreate");
  Event out(made);
  check_cuda(cudaEventRecord(made, cuda_stream()), "cudaEventRecord");
  return out;
}

// A stream of a Context and the handles that work on it. Additional streams have high priority,
// because others wait for what they do.
struct Handles {
  cudaStream_t stream;
  cublasHandle_t cublas = nullptr;
  Tensor workspace;                           // of cuBLAS
  cudnnHandle_t cudnn = nullptr;              // on the main stream only
  std::deque<std::pair<Event, Tensor>> kept;  // memory that may be in use until the event

  explicit Handles(StreamUse use) : stream(make_stream(use != StreamUse::main)) {}
  ~Handles() {
    if (cudnn != nullptr) (void)cudnnDestroy(cudnn);
    if (cublas != nullptr) (void)cublasDestroy(cublas);
    (void)cudaStreamSynchronize(stream);  // before `kept` returns its memory
    (void)cudaStreamDestroy(stream);
  }
  Handles(const Handles&) = delete;
  Handles& operator=(const Handles&) = delete;
};

// NVIDIA's advice for Hopper; older cards need less.
constexpr int64_t kCublasWorkspace = int64_t{32} << 20;

// Makes cuBLAS's handle for one stream. Its workspace comes from the pool: every product of a
// recorded step would ask for cuBLAS's own anew (core/step_graph.h).
void make_cublas(Handles& h) {
  h.workspace = Tensor::empty({kCublasWorkspace}, DType::u8);
  cublasHandle_t made = nullptr;
  check_cublas(cublasCreate(&made), "cublasCreate");
  std::unique_ptr<cublasContext, Destroy<cublasDestroy>> handle(made);
  check_cublas(cublasSetStream(made, h.stream), "cublasSetStream");
  check_cublas(cublasSetWorkspace(made, h.workspace.raw(), kCublasWorkspace), "cublasSetWorkspace");
  const bool tf32 = Context::current().options().tf32;
  // Partial sums stay fp32 even where the result is bf16.
  const int mode = (tf32 ? CUBLAS_TF32_TENSOR_OP_MATH : CUBLAS_DEFAULT_MATH) |
                   CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
  check_cublas(cublasSetMathMode(made, static_cast<cublasMath_t>(mode)), "cublasSetMathMode");
  h.cublas = handle.release();
}

// The streams of a Context, each made at its first use.
struct Streams {
  std::mutex mutex;
  std::optional<Handles> handles[kStreamUses];
};

Handles& handles_of(StreamUse use) {
  auto& streams = Context::current().state<Streams>();
  const std::lock_guard lock(streams.mutex);
  auto& handles = streams.handles[to_size(use)];
  if (!handles) handles.emplace(use);
  return *handles;
}

}  // namespace

cudaStream_t cuda_stream() { return handles_of(stream_use()).stream; }

cublasHandle_t cublas_handle() {
  Handles& h = handles_of(stream_use());
  if (h.cublas == nullptr) make_cublas(h);
  return h.cublas;
}

const Tensor& cublas_workspace() {
  (void)cublas_handle();
  return handles_of(stream_use()).workspace;
}

// Works on the Context's main stream, whichever thread asks; cuDNN takes a second to load.
cudnnHandle_t cudnn_handle() {
  Handles& h = handles_of(StreamUse::main);
  if (h.cudnn == nullptr) {
    check_cudnn(cudnnCreate(&h.cudnn), "cudnnCreate");
    check_cudnn(cudnnSetStream(h.cudnn, h.stream), "cudnnSetStream");
  }
  return h.cudnn;
}

void keep_until_done(const Tensor& x) {
  Handles& h = handles_of(stream_use());
  Event done = record_event(cudaEventDisableTiming);
  const std::lock_guard lock(Context::current().state<Streams>().mutex);
  while (!h.kept.empty() && cudaEventQuery(h.kept.front().first.get()) == cudaSuccess)
    h.kept.pop_front();
  (void)cudaGetLastError();  // clears "not ready", so that the next kernel does not report it
  h.kept.emplace_back(std::move(done), x);
}

bool stream_is_recorded() {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check_cuda(cudaStreamIsCapturing(cuda_stream(), &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

float stream_milliseconds(const std::function<void()>& start) {
  const Event begin = record_event(cudaEventDefault);
  start();
  const Event end = record_event(cudaEventDefault);
  float ms = 0;
  check_cuda(cudaEventSynchronize(end.get()), "cudaEventSynchronize");
  check_cuda(cudaEventElapsedTime(&ms, begin.get(), end.get()), "cudaEventElapsedTime");
  return ms;
}

}  // namespace heddle
