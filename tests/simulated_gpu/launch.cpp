// Queues the kernels of the .cu files on the simulated GPU (tests/cuda_emulation.h). Part of
// heddle_core, whose stream it asks for.
#include "core/cuda.h"
#include "tests/simulated_gpu/device.h"

namespace heddle {
namespace emulation {

void enqueue(const char* name, dim3 grid, dim3 block, std::function<void(bool)> run) {
  const cudaStream_t stream = cuda_stream();
  const auto held = simulated::lock();
  simulated::Stream* s = simulated::find(stream);
  const bool fits = grid.x > 0 && grid.y > 0 && grid.y < 65536 && grid.z == 1 && block.z == 1 &&
                    block.x * block.y > 0 && block.x * block.y <= 1024;
  if (!fits) check_cuda(cudaErrorInvalidConfiguration, name);
  if (s == nullptr || s->device != simulated::current_device())
    check_cuda(cudaErrorInvalidResourceHandle, name);
  simulated::put_kernel(s, std::move(run));
}

}  // namespace emulation

inline namespace emulated_launches {

void fetch(void* host, const void* device, size_t bytes) {
  check_cuda(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, cuda_stream()), "fetch");
  check_cuda(cudaStreamSynchronize(cuda_stream()), "fetch");
}

}  // namespace emulated_launches

}  // namespace heddle
