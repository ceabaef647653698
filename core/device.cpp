#include "core/device.h"

#include <dnnl.h>

#include "core/error.h"

#ifdef HEDDLE_CUDA
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>
#include <nccl.h>
#endif

namespace heddle {

std::string to_string(Device device) {
  return device.is_cuda() ? concat("cuda:", device.index) : std::string("cpu");
}

int cuda_device_count() {
#ifdef HEDDLE_CUDA
  int count = 0;
  // Without a driver this returns an error: that means "no device", not a failure.
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    (void)cudaGetLastError();
    return 0;
  }
  return count;
#else
  return 0;
#endif
}

namespace {

// Returns why no device can be used.
std::string why_no_device() {
#ifdef HEDDLE_CUDA
  int driver = 0, needed = 0;
  (void)cudaRuntimeGetVersion(&needed);
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) return "no driver is installed";
  const auto version = [](int v) { return concat(v / 1000, ".", v % 1000 / 10); };
  if (driver / 1000 < needed / 1000)
    return concat("the driver is for CUDA ", version(driver), ", and this program needs ",
                  version(needed));
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  (void)cudaGetLastError();
  if (status != cudaSuccess) return cudaGetErrorString(status);
#endif
  return "no GPU";
}

bool has_isa(unsigned bits) { return (dnnl_get_effective_cpu_isa() & bits) == bits; }

}  // namespace

bool has_avx512() { return has_isa(dnnl_cpu_isa_avx512_core); }

bool has_matrix_tiles() { return has_isa(dnnl_cpu_isa_avx512_core_amx); }

std::string library_versions() {
  const dnnl_version_t* v = dnnl_version();
  std::string out = concat("oneDNN ", v->major, ".", v->minor, ".", v->patch);
#ifdef HEDDLE_CUDA
  int cuda = 0, nccl = 0;
  (void)cudaRuntimeGetVersion(&cuda);
  (void)ncclGetVersion(&nccl);
  const size_t cublas = cublasLtGetVersion(), cudnn = cudnnGetVersion();
  out += concat(", CUDA ", cuda / 1000, ".", cuda % 1000 / 10, ", cuBLAS ", cublas / 10000, ".",
                cublas % 10000 / 100, ", cuDNN ", cudnn / 10000, ".", cudnn % 10000 / 100,
                ", NCCL ", nccl / 10000, ".", nccl % 10000 / 100, ".", nccl % 100);
#endif
  return out;
}

Device parse_device(const std::string& text) {
  if (text == "cpu") return {};
  if (text == "auto") return cuda_device_count() > 0 ? Device{DeviceType::cuda, 0} : Device{};
  check(text == "cuda" || (text.starts_with("cuda:") && text.size() > 5 && text.size() < 9 &&
                           text.find_first_not_of("0123456789", 5) == std::string::npos),
        "--device: expected auto, cpu, cuda or cuda:N, found '", text, "'");
  check(built_with_cuda(), "--device ", text, ": this build has no CUDA backend");
  const int index = text == "cuda" ? 0 : std::stoi(text.substr(5));
  const int count = cuda_device_count();
  check(count > 0, "--device ", text, ": no CUDA device found (", count > 0 ? "" : why_no_device(),
        ")");
  check(index < count, "--device ", text, ": expected an index below ", count);
  return {DeviceType::cuda, index};
}

}  // namespace heddle
