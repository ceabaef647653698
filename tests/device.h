// The device that tests of layers run on: HEDDLE_TEST_DEVICE (auto, cpu, cuda, cuda:1), the CPU by
// default. Values are read through to_vector(), never through a pointer.
//
//   Context context(on_test_device());
//   for (Layout layout : map_layouts()) …
#pragma once

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "core/context.h"
#include "core/tensor.h"

namespace heddle {

inline ContextOptions on_test_device(ContextOptions options = {}) {
  const char* name = std::getenv("HEDDLE_TEST_DEVICE");
  options.device = parse_device(name == nullptr ? "cpu" : name);
  return options;
}

// Whether the current Context computes on a GPU.
inline bool on_gpu() { return Context::current().device().is_cuda(); }

// Returns whether layers can compute in bf16: on the CPU, or where the current Context computes.
// Prints a line if it asks the CPU and the CPU cannot.
inline bool bf16_on_cpu() {
  if (!has_avx512()) std::puts("skipped: bf16 on this processor, which has no AVX-512");
  return has_avx512();
}
inline bool bf16_here() { return on_gpu() || bf16_on_cpu(); }

// A copy where the current Context computes.
inline Tensor here(const Tensor& x) { return x.to(Context::current().device()); }

// The layouts that convolutions, pooling and elementwise layers accept on that device.
inline std::vector<Layout> input_layouts() {
  if (Context::current().device().is_cuda()) return {Layout::plain, Layout::nhwc};
  return {Layout::plain, Layout::nhwc, Layout::c16};
}

// The layouts of the maps that batch norm and shortcuts get, as they follow a convolution.
inline std::vector<Layout> map_layouts() {
  if (Context::current().device().is_cuda()) return {Layout::nhwc};
  return {Layout::plain, Layout::nhwc, Layout::c16};
}

}  // namespace heddle
