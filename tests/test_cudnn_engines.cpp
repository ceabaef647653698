// The engines that the installed cuDNN names for an H100, found without a GPU from the properties
// of one: everything but running them. tests/simulated_gpu runs simulated ones.
#include <doctest/doctest.h>

#if defined(HEDDLE_CUDA) && !defined(HEDDLE_SIMULATED_GPU)
#include <cudnn.h>
#if CUDNN_VERSION >= 90800
#include <cstring>
#include <memory>
#include <vector>

#include "core/context.h"
#include "core/cuda.h"
#include "layers/conv2d_engines.h"

using namespace heddle;
using namespace heddle::cuda;

namespace {

// The names are those that cuDNN 9.19 reads; the values are an H100's by NVIDIA's documentation.
constexpr const char* kH100 = R"({"maxGridSize": [2147483647, 65535, 65535],
  "maxBlockSize": [1024, 1024, 64], "regsPerBlock": 65536, "multiProcessorCount": 132,
  "warpSize": 32, "maxSharedMemoryPerBlock": 49152, "maxSharedMemoryPerBlockOptin": 232448,
  "reservedSharedMemoryPerBlock": 1024, "maxRegistersPerSM": 65536, "maxCtasPerSM": 32,
  "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048, "pciDeviceId": 0, "isTccDriver": 0,
  "supportCoopLaunch": 1, "smClockRateKHz": 1980000, "memClockRateKHz": 2619000,
  "l2CacheSize": 52428800, "deviceVer": 900, "driverVer": 13000, "cudaDeviceId": 0,
  "totalGlobalMem": 85017493504, "deviceName": "NVIDIA H100 80GB HBM3"})";

constexpr size_t kMany = 100, kGibibyte = size_t{1} << 30;

using Descriptor = std::unique_ptr<void, Destroy<cudnnBackendDestroyDescriptor>>;

Descriptor h100() {
  auto out = make_descriptor<Descriptor>([](cudnnBackendDescriptor_t* made) {
    return cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, made);
  });
  check_cudnn(cudnnBackendSetAttribute(out.get(), CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
                                       CUDNN_TYPE_CHAR, to_int64(std::strlen(kH100)), kH100),
              "properties");
  check_cudnn(cudnnBackendFinalize(out.get()), "properties");
  return out;
}

ConvProblem problem(int64_t in, int64_t size, int64_t out, int64_t kernel, int64_t stride,
                    DType dtype) {
  const Conv2dOptions options = {.stride = stride, .padding = kernel / 2, .groups = 1};
  const Shape x = {64, in, size, size}, w = {out, in, kernel, kernel};
  return {x, w, conv2d_shape(x, w, options, "test"), options, dtype};
}

constexpr ConvPass kPasses[] = {ConvPass::forward, ConvPass::backward_input,
                                ConvPass::backward_weight};

}  // namespace

TEST_CASE("cuDNN's engines for an H100: ResNet-50 in bf16, channels last") {
  const Context context;
  const Descriptor gpu = h100();
  for (const ConvProblem& p :
       {problem(64, 56, 64, 3, 1, DType::bf16), problem(128, 56, 128, 3, 2, DType::bf16),
        problem(512, 7, 512, 3, 1, DType::bf16), problem(256, 56, 512, 1, 2, DType::bf16)})
    for (ConvPass pass : kPasses) {
      CAPTURE(to_string(p.x));
      CAPTURE(static_cast<int>(pass));
      const auto found = find_conv_engines(pass, p, Layout::nhwc, kMany, kGibibyte, gpu.get());
      CHECK(found.size() >= 8);  // the older API has at most eight algorithms
      const auto first = find_conv_engines(pass, p, Layout::nhwc, 3, kGibibyte, gpu.get());
      CHECK(first.size() == 3);
      size_t without = 0;
      for (const ConvEngine& e : found) {
        without += e.workspace == 0 ? 1 : 0;
        // Other descriptors are gone by now; the plan remains.
        int64_t workspace = 0, count = 0;
        CHECK(cudnnBackendGetAttribute(e.plan.get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                       CUDNN_TYPE_INT64, 1, &count,
                                       &workspace) == CUDNN_STATUS_SUCCESS);
        CHECK(workspace == to_int64(e.workspace));
      }
      CHECK(find_conv_engines(pass, p, Layout::nhwc, kMany, 0, gpu.get()).size() == without);
    }
}

TEST_CASE("cuDNN's engines for an H100: fp32 without tensor cores, unless TF32 is asked for") {
  const Descriptor gpu = h100();
  const ConvProblem p = problem(16, 32, 16, 3, 1, DType::f32);
  for (Layout layout : {Layout::nhwc, Layout::plain})
    for (ConvPass pass : kPasses) {
      CAPTURE(static_cast<int>(layout));
      CAPTURE(static_cast<int>(pass));
      const auto count = [&](bool tf32) {
        const Context context({.tf32 = tf32});
        return find_conv_engines(pass, p, layout, kMany, kGibibyte, gpu.get()).size();
      };
      CHECK(count(false) >= 2);
      CHECK(count(true) > count(false));
    }
}

TEST_CASE("cuDNN's engines for an H100: shapes that do not fit are an error") {
  const Context context;
  const Descriptor gpu = h100();
  ConvProblem p = problem(64, 56, 64, 3, 1, DType::bf16);
  p.y = {64, 64, 55, 56};
  CHECK_THROWS_AS(
      find_conv_engines(ConvPass::forward, p, Layout::nhwc, kMany, kGibibyte, gpu.get()), Error);
}
#endif
#endif
