// A device is a run-time property of a tensor. A CUDA build runs on machines without a GPU or a
// driver; asking for the GPU there is an InputError.
#pragma once

#include <cstdint>
#include <string>

namespace heddle {

enum class DeviceType : uint8_t { cpu, cuda };

struct Device {
  DeviceType type = DeviceType::cpu;
  int index = 0;

  bool is_cuda() const { return type == DeviceType::cuda; }
  bool operator==(const Device&) const = default;
};

// Returns "cpu" or "cuda:1".
std::string to_string(Device device);

// Returns the number of usable CUDA devices; 0 without a driver, a GPU or a build with CUDA.
int cuda_device_count();

// Returns whether this build contains the CUDA backend.
constexpr bool built_with_cuda() {
#ifdef HEDDLE_CUDA
  return true;
#else
  return false;
#endif
}

// Returns whether this processor has AVX-512 and oneDNN may use it; bf16 on the CPU needs it.
bool has_avx512();
// Returns whether oneDNN may use AMX, which multiplies tiles of bf16.
bool has_matrix_tiles();

// Returns the vendor libraries with their versions: "oneDNN 2.6.3, CUDA 13.0, …".
std::string library_versions();

// Parses auto | cpu | cuda | cuda:i. auto is the first GPU if there is one, else the CPU. Throws
// InputError for anything else and for a GPU that does not exist.
Device parse_device(const std::string& text);

}  // namespace heddle
