#include "core/context.h"

#include <omp.h>

#include <algorithm>

#include "core/error.h"
#include "core/scalar.h"

#ifdef HEDDLE_CUDA
#include <cuda_runtime_api.h>
#endif

namespace heddle {
namespace {

thread_local Context* current_context = nullptr;

constexpr const char* kMemoryOf[kStreamUses] = {"device memory", "device memory, exchanges",
                                                "device memory, copies"};

#ifdef HEDDLE_CUDA
void use_device(Device device) {
  int major = 0;
  cudaError_t status = cudaSetDevice(device.index);
  if (status == cudaSuccess) status = cudaFree(nullptr);  // the first call that fails on a bad card
  if (status == cudaSuccess)
    status = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device.index);
  if (status != cudaSuccess)
    throw InputError(
        concat("--device ", to_string(device), ": cannot be used: ", cudaGetErrorString(status)));
  check(major >= 8, "--device ", to_string(device), ": its compute capability is ", major,
        ".x; bf16 and this program's kernels need 8.0 or newer");
}
#endif

// Makes an earlier Context the thread's current one again.
void restore_current(Context* previous) {
  current_context = previous;
#ifdef HEDDLE_CUDA
  if (previous != nullptr && previous->device().is_cuda())
    (void)cudaSetDevice(previous->device().index);
#endif
}

}  // namespace

Context::Context(const ContextOptions& options)
    : options_(options),
      previous_(current_context),
      previous_threads_(omp_get_max_threads()),
      host_pool_(std::make_shared<Pool>(Device{})) {
  check(options.threads >= 0, "threads: expected at least 0, found ", options.threads);
  if (options_.threads == 0) options_.threads = omp_get_max_threads();
  omp_set_num_threads(options_.threads);  // of this thread; oneDNN obeys it too
#ifdef HEDDLE_CUDA
  if (options_.device.is_cuda()) {
    use_device(options_.device);
    device_pools_[0] = std::make_shared<Pool>(options_.device);
    pinned_pool_ = std::make_shared<Pool>(Device{}, Pool::keeps_blocks(), true);
  }
#endif
  current_context = this;
}

Context::~Context() {
  while (!order_.empty()) order_.pop_back();
  if (current_context == this) restore_current(previous_);
  omp_set_num_threads(previous_threads_);
}

Context& Context::current() {
  if (current_context == nullptr)
    throw Error("no Context on this thread: make one first (core/context.h)");
  return *current_context;
}

void Context::trace_memory() {
  const auto record = [&](const char* name, const std::shared_ptr<Pool>& pool) {
    if (pool == nullptr) return;
    const size_t in_use = pool->bytes_in_use();  // other threads may free some of it in between
    trace_.memory(name, in_use, std::max(in_use, pool->bytes_reserved()));
  };
  record("host memory", host_pool_);
  if (options_.device.is_cuda()) record(kMemoryOf[to_size(stream_use())], pool(options_.device));
}

std::shared_ptr<Pool> Context::pool(Device device) {
  if (!device.is_cuda()) return host_pool_;
  const std::lock_guard lock(mutex_);
  if (device != options_.device || device_pools_[0] == nullptr)
    throw Error(concat("no memory pool for ", to_string(device), " in this Context"));
  auto& pool = device_pools_[to_size(stream_use())];
  if (pool == nullptr) pool = std::make_shared<Pool>(device);
  return pool;
}

ContextScope::ContextScope(Context& context)
    : previous_(current_context), previous_threads_(omp_get_max_threads()) {
#ifdef HEDDLE_CUDA
  if (context.device().is_cuda() && cudaSetDevice(context.device().index) != cudaSuccess)
    throw Error(concat(to_string(context.device()), " cannot be used on another thread"));
#endif
  current_context = &context;
  omp_set_num_threads(context.threads());
}

ContextScope::~ContextScope() {
  restore_current(previous_);
  omp_set_num_threads(previous_threads_);
}

}  // namespace heddle
