// cuDNN's engines: those that the installed cuDNN names for an H100, found without a GPU from the
// properties of one, and each configuration computed, where there is a GPU or a simulated one.
#ifdef HEDDLE_CUDA
#include <doctest/doctest.h>

#include <cudnn.h>

#include <cstring>
#include <memory>
#include <vector>

#include "core/context.h"
#include "core/cuda.h"
#include "layers/conv2d_engines.h"
#include "tests/compare.h"
#include "tests/gradcheck.h"
#include "tests/tolerances.h"

using namespace heddle;
using cuda::ConvEngine;
using cuda::ConvProblem;
using cuda::find_conv_engines;

TEST_CASE("convolutions: each configuration of cuDNN's engines") {
  if (!subject().device.is_cuda()) return;
  const Context context(subject(true));
  const Conv2dOptions options = {.stride = 2, .padding = 1, .groups = 1};
  const Shape x = {4, 16, 9, 12}, w = {24, 16, 3, 3}, y = conv2d_shape(x, w, options, "test");
  struct Form {
    ConvPass pass;
    Shape left, right, out;
  };
  const Form forms[] = {{ConvPass::forward, x, w, y},
                        {ConvPass::backward_input, w, y, x},
                        {ConvPass::backward_weight, x, y, w}};
  for (DType dtype : {DType::f32, DType::bf16})
    for (Layout layout : {Layout::nhwc, Layout::plain})
      for (const auto& [pass, left, right, out] : forms) {
        const std::string what =
            concat(dtype_name(dtype), ", ", layout_name(layout), ", pass ", static_cast<int>(pass));
        CAPTURE(what);
        const Tensor a = random_tensor(left, 1, layout, 1.0f, dtype);
        const Tensor b = random_tensor(right, 2, layout, 1.0f, dtype);
        const std::vector<float> u = a.to_vector(), v = b.to_vector();
        std::vector<double> sums(to_size(Tensor::empty(out).size()), 0.0);
        const auto at = [](const Shape& s, int64_t i, int64_t j, int64_t k, int64_t l) {
          return to_size(((i * s[1] + j) * s[2] + k) * s[3] + l);
        };
        for (int64_t n = 0; n < y[0]; ++n)
          for (int64_t o = 0; o < y[1]; ++o)
            for (int64_t p = 0; p < y[2]; ++p)
              for (int64_t q = 0; q < y[3]; ++q)
                for (int64_t tap = 0; tap < 9 * x[1]; ++tap) {
                  const int64_t c = tap / 9, r = tap / 3 % 3, s = tap % 3;
                  const int64_t row = p * options.stride + r - 1,
                                column = q * options.stride + s - 1;
                  if (row < 0 || row >= x[2] || column < 0 || column >= x[3]) continue;
                  const size_t in_x = at(x, n, c, row, column), in_w = at(w, o, c, r, s),
                               in_y = at(y, n, o, p, q);
                  if (pass == ConvPass::forward)
                    sums[in_y] += double{u[in_x]} * v[in_w];
                  else if (pass == ConvPass::backward_input)
                    sums[in_x] += double{u[in_w]} * v[in_y];
                  else
                    sums[in_w] += double{u[in_x]} * v[in_y];
                }
        const std::vector<float> expected(sums.begin(), sums.end());
        const auto engines =
            find_conv_engines(pass, {x, w, y, options, dtype}, layout, 100, size_t{1} << 30);
        int computed = 0;
        for (const ConvEngine& e : engines) {
          const Tensor found = Tensor::empty_on(a.device(), out, dtype, layout);
          const Tensor space = Tensor::empty_on(a.device(), {to_int64(e.workspace)}, DType::u8);
          if (cuda::run_conv_engine(e.plan, a, b, found, space) != CUDNN_STATUS_SUCCESS) continue;
          ++computed;
          CHECK(relative_distance(found.to_vector(), expected) <= tolerance("convolution", dtype));
          const Tensor odd = random_tensor({2, 3}, 1, Layout::plain, 1.0f, dtype).slice(1, 2);
          CHECK(cuda::run_conv_engine(e.plan, odd, b, found, space) == CUDNN_STATUS_BAD_PARAM);
        }
        MESSAGE(what, ": ", engines.size(), " engines, of which ", computed, " computed");
        CHECK(computed > 0);
      }
}

#if !defined(HEDDLE_SIMULATED_GPU) && CUDNN_VERSION >= 90800
namespace {

// The names are those that cuDNN 9.19 reads; the values are an H100's, recalled, not read from one.
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
