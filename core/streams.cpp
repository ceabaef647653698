#include "core/streams.h"

#include "core/context.h"

#ifdef HEDDLE_CUDA
#include "core/cuda.h"
#endif

namespace heddle {
namespace {

thread_local StreamUse current_use = StreamUse::main;

}  // namespace

StreamUse stream_use() { return current_use; }

SideStream::SideStream(StreamUse use) : previous_(current_use) {
  if (Context::current().device().is_cuda()) current_use = use;
}

SideStream::~SideStream() { current_use = previous_; }

#ifdef HEDDLE_CUDA
void wait_for_stream() {
  if (Context::current().device().is_cuda())
    check_cuda(cudaStreamSynchronize(cuda_stream()), "cudaStreamSynchronize");
}

void Fence::record() {
  if (!Context::current().device().is_cuda()) return;
  if (event_ == nullptr) {
    cudaEvent_t made = nullptr;
    check_cuda(cudaEventCreateWithFlags(&made, cudaEventDisableTiming), "cudaEventCreate");
    event_ = {made, [](void* e) { (void)cudaEventDestroy(static_cast<cudaEvent_t>(e)); }};
  }
  check_cuda(cudaEventRecord(static_cast<cudaEvent_t>(event_.get()), cuda_stream()),
             "cudaEventRecord");
}

void Fence::wait() const {
  if (event_ != nullptr)
    check_cuda(cudaStreamWaitEvent(cuda_stream(), static_cast<cudaEvent_t>(event_.get())),
               "cudaStreamWaitEvent");
}

bool Fence::passed() const {
  if (event_ == nullptr) return true;
  const cudaError_t state = cudaEventQuery(static_cast<cudaEvent_t>(event_.get()));
  if (state != cudaErrorNotReady) check_cuda(state, "cudaEventQuery");
  (void)cudaGetLastError();  // clears "not ready", so that the next kernel does not report it
  return state == cudaSuccess;
}
#else
void wait_for_stream() {}
void Fence::record() {}
void Fence::wait() const {}
bool Fence::passed() const { return true; }
#endif

}  // namespace heddle
