// The objects that the simulated GPU's cuDNN handles point to.
#pragma once

#include <cudnn.h>

#include <array>
#include <cstddef>
#include <cstdint>

struct cudnnContext {
  cudaStream_t stream = nullptr;
};

// Extents n, c, h, w (a filter's k, c, r, s) and their strides.
struct Block {
  std::array<int64_t, 4> size{}, step{};
  bool half = false, nhwc = false;

  bool set(cudnnTensorFormat_t format, cudnnDataType_t type, int n, int c, int h, int w) {
    if (type != CUDNN_DATA_FLOAT && type != CUDNN_DATA_BFLOAT16) return false;
    if (n <= 0 || c <= 0 || h <= 0 || w <= 0) return false;
    half = type == CUDNN_DATA_BFLOAT16;
    nhwc = format == CUDNN_TENSOR_NHWC;
    size = {n, c, h, w};
    if (nhwc)
      step = {int64_t{h} * w * c, 1, int64_t{w} * c, c};
    else
      step = {int64_t{c} * h * w, int64_t{h} * w, w, 1};
    return true;
  }
  int64_t at(int64_t n, int64_t c, int64_t h, int64_t w) const {
    return n * step[0] + c * step[1] + h * step[2] + w * step[3];
  }
  int64_t elements() const { return size[0] * size[1] * size[2] * size[3]; }
  size_t bytes() const { return static_cast<size_t>(elements() * (half ? 2 : 4)); }
};

struct cudnnTensorStruct : Block {};
struct cudnnFilterStruct : Block {};
struct cudnnConvolutionStruct {
  int64_t padding = 0, stride = 1, groups = 1;
  cudnnMathType_t math = CUDNN_DEFAULT_MATH;
};

// Engines of the graph API run as algorithms of these numbers, with this workspace.
enum : int { kFastEngine = 100, kSlowEngine, kWrongEngine };
constexpr int64_t kEngineWorkspace = 1000;  // bytes
