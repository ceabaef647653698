// cuBLAS and cuDNN of the simulated GPU: plain sums in fp32, as the caller's descriptors say.
// Sizes, types and memory that do not fit are refused. cuDNN's list of algorithms has every
// difficulty once: one does not support the problem, one needs too much workspace, one fails when
// it is run, one needs much workspace for large outputs, one is not deterministic. Its graph API:
// conv_engines.cpp; its LSTM: rnn.cpp.
#include <cublasLt.h>
#include <cublas_v2.h>
#include <cudnn.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include "core/bfloat16.h"
#include "tests/simulated_gpu/cudnn_types.h"
#include "tests/simulated_gpu/device.h"

using namespace simulated;

namespace {

using heddle::bfloat16;

float read(const void* p, bool half, int64_t i) {
  return half ? static_cast<float>(static_cast<const bfloat16*>(p)[i])
              : static_cast<const float*>(p)[i];
}

void write(void* p, bool half, int64_t i, float value) {
  if (half)
    static_cast<bfloat16*>(p)[i] = bfloat16(value);
  else
    static_cast<float*>(p)[i] = value;
}

// beta * old, without reading what may be NaN where it does not count.
float weighted(float beta, const void* p, bool half, int64_t i) {
  return beta == 0.0f ? 0.0f : beta * read(p, half, i);
}

}  // namespace

// ----------------------------------------------------------------------------------------- cuBLAS
struct cublasContext {
  cudaStream_t stream = nullptr;
  bool workspace = false;  // of the caller
};

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  *handle = new cublasContext;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  handle->workspace = false;  // it falls back to its own
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void* workspace, size_t bytes) {
  const auto held = lock();
  Stream* s = find(handle->stream);
  if (s == nullptr || !on_device(workspace, bytes, s->device)) return CUBLAS_STATUS_INVALID_VALUE;
  handle->workspace = true;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t) { return CUBLAS_STATUS_SUCCESS; }
const char* cublasGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS ? "success" : "failed";
}
size_t cublasLtGetVersion() { return 0; }

// Column-major, as in cuBLAS: element (r, c) of a matrix lies at r + c * its leading
// dimension.
cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t transpose_a,
                            cublasOperation_t transpose_b, int m, int n, int k, const void* alpha,
                            const void* a, cudaDataType a_type, int lda, const void* b,
                            cudaDataType b_type, int ldb, const void* beta, void* c,
                            cudaDataType c_type, int ldc, cublasComputeType_t compute,
                            cublasGemmAlgo_t) {
  const auto held = lock();
  Stream* s = find(handle->stream);
  if (s == nullptr || s->device != current_device()) return CUBLAS_STATUS_EXECUTION_FAILED;
  // cuBLAS would add allocation nodes to the graph.
  if (s->recording != nullptr && !handle->workspace) return CUBLAS_STATUS_NOT_SUPPORTED;
  const bool ta = transpose_a == CUBLAS_OP_T, tb = transpose_b == CUBLAS_OP_T;
  const bool half = a_type == CUDA_R_16BF, half_c = c_type == CUDA_R_16BF;
  if (m <= 0 || n <= 0 || k <= 0 || lda < (ta ? k : m) || ldb < (tb ? n : k) || ldc < m)
    return CUBLAS_STATUS_INVALID_VALUE;
  if (a_type != b_type || (half_c && !half) || (!half && a_type != CUDA_R_32F) ||
      (!half_c && c_type != CUDA_R_32F) || compute != CUBLAS_COMPUTE_32F)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  const auto fits = [&](const void* p, bool is_half, int64_t ld, int64_t rows, int64_t columns) {
    return on_device(p, static_cast<size_t>((ld * (columns - 1) + rows) * (is_half ? 2 : 4)),
                     s->device);
  };
  if (!fits(a, half, lda, ta ? k : m, ta ? m : k) || !fits(b, half, ldb, tb ? n : k, tb ? k : n) ||
      !fits(c, half_c, ldc, m, n))
    return CUBLAS_STATUS_INVALID_VALUE;
  const float scale = *static_cast<const float*>(alpha), old = *static_cast<const float*>(beta);
  put_done(s, [=] {
    pass_time(2);
    std::vector<float> left(static_cast<size_t>(int64_t{m} * k)), sums(static_cast<size_t>(m));
    for (int64_t p = 0; p < k; ++p)
      for (int64_t i = 0; i < m; ++i)
        left[static_cast<size_t>(p * m + i)] = read(a, half, ta ? p + i * lda : i + p * lda);
    for (int64_t j = 0; j < n; ++j) {
      std::ranges::fill(sums, 0.0f);
      for (int64_t p = 0; p < k; ++p) {
        const float factor = read(b, half, tb ? j + p * ldb : p + j * ldb);
        const float* column = left.data() + p * m;
        for (int64_t i = 0; i < m; ++i) sums[static_cast<size_t>(i)] += column[i] * factor;
      }
      for (int64_t i = 0; i < m; ++i)
        write(c, half_c, i + j * ldc,
              scale * sums[static_cast<size_t>(i)] + weighted(old, c, half_c, i + j * ldc));
    }
  });
  return CUBLAS_STATUS_SUCCESS;
}

// ------------------------------------------------------------------------------------------ cuDNN
cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  *handle = new cudnnContext;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  delete handle;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}
size_t cudnnGetVersion() { return CUDNN_VERSION; }
const char* cudnnGetErrorString(cudnnStatus_t status) {
  return status == CUDNN_STATUS_SUCCESS ? "CUDNN_STATUS_SUCCESS" : "CUDNN_STATUS_FAILED";
}
void cudnnGetLastErrorString(char* text, size_t size) {
  if (size > 0) text[0] = '\0';
}

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t* made) {
  *made = new cudnnTensorStruct;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t d) {
  delete d;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t d, cudnnTensorFormat_t format,
                                         cudnnDataType_t type, int n, int c, int h, int w) {
  return d->set(format, type, n, c, h, w) ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}
cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t* made) {
  *made = new cudnnFilterStruct;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t d) {
  delete d;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t d, cudnnDataType_t type,
                                         cudnnTensorFormat_t format, int k, int c, int h, int w) {
  return d->set(format, type, k, c, h, w) ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}
cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t* made) {
  *made = new cudnnConvolutionStruct;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t d) {
  delete d;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t d, int pad_h, int pad_w,
                                              int stride_h, int stride_w, int dilation_h,
                                              int dilation_w, cudnnConvolutionMode_t mode,
                                              cudnnDataType_t compute) {
  if (pad_h != pad_w || stride_h != stride_w || dilation_h != 1 || dilation_w != 1 ||
      mode != CUDNN_CROSS_CORRELATION || compute != CUDNN_DATA_FLOAT)
    return CUDNN_STATUS_NOT_SUPPORTED;
  d->padding = pad_h;
  d->stride = stride_h;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t d, int groups) {
  d->groups = groups;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t d, cudnnMathType_t math) {
  d->math = math;
  return CUDNN_STATUS_SUCCESS;
}

namespace {

// One problem, whichever way it is run.
struct Convolution {
  Block x, w, y;
  cudnnConvolutionStruct conv;

  bool fits() const {
    const auto out = [&](int axis) {
      return (x.size[axis] + 2 * conv.padding - w.size[axis]) / conv.stride + 1;
    };
    return x.half == w.half && x.half == y.half && x.size[0] == y.size[0] &&
           w.size[0] == y.size[1] && w.size[1] * conv.groups == x.size[1] && out(2) == y.size[2] &&
           out(3) == y.size[3];
  }
  // As the library does: groups only in the plain layout, and one layout for all three.
  bool supported() const {
    return x.nhwc == w.nhwc && x.nhwc == y.nhwc && !(x.nhwc && conv.groups > 1);
  }
  // Calls run(x's index, w's, y's) for every sum of products over the input's channels, whose
  // indices are x.step[1] and w.step[1] apart.
  template <class Call>
  void each(const Call& run) const {
    const int64_t outputs = w.size[0] / conv.groups, inputs = w.size[1];
    for (int64_t n = 0; n < y.size[0]; ++n)
      for (int64_t k = 0; k < y.size[1]; ++k)
        for (int64_t h = 0; h < y.size[2]; ++h)
          for (int64_t v = 0; v < y.size[3]; ++v)
            for (int64_t r = 0; r < w.size[2]; ++r)
              for (int64_t s = 0; s < w.size[3]; ++s) {
                const int64_t row = h * conv.stride + r - conv.padding,
                              column = v * conv.stride + s - conv.padding;
                if (row < 0 || row >= x.size[2] || column < 0 || column >= x.size[3]) continue;
                run(x.at(n, k / outputs * inputs, row, column), w.at(k, 0, r, s), y.at(n, k, h, v));
              }
  }
};

constexpr size_t kWorkspace = kEngineWorkspace, kMuch = size_t{1} << 26, kTooMuch = size_t{1} << 40;
// An algorithm is its index in this list.
enum : int { kUnsupported, kHungry, kBroken, kLarge, kUnordered, kOrdered, kAlgorithms };

template <class Found, class Algorithm>
cudnnStatus_t rank_algorithms(int most, int* count, Found* found) {
  *count = std::min<int>(most, kAlgorithms);
  for (int i = 0; i < *count; ++i) {
    found[i] = {};
    found[i].algo = static_cast<Algorithm>(i);
    found[i].status = i == kUnsupported ? CUDNN_STATUS_NOT_SUPPORTED : CUDNN_STATUS_SUCCESS;
    found[i].memory = kWorkspace;
    found[i].determinism = i == kUnordered ? CUDNN_NON_DETERMINISTIC : CUDNN_DETERMINISTIC;
    found[i].mathType = CUDNN_DEFAULT_MATH;
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t workspace_of(const Convolution& c, int algorithm, size_t* bytes) {
  if (!c.fits()) return CUDNN_STATUS_BAD_PARAM;
  if (!c.supported() || algorithm == kUnsupported) return CUDNN_STATUS_NOT_SUPPORTED;
  *bytes = algorithm == kHungry ? kTooMuch : kWorkspace;
  if (algorithm == kLarge && c.y.elements() > 20000) *bytes = kMuch;
  return CUDNN_STATUS_SUCCESS;
}

using Floats = std::vector<float>;

Floats floats(const void* p, const Block& block) {
  Floats out(static_cast<size_t>(block.elements()));
  for (int64_t i = 0; i < block.elements(); ++i)
    out[static_cast<size_t>(i)] = read(p, block.half, i);
  return out;
}

// out(i) = alpha * sum + beta * out(i), where add(a, b, sums) forms the sums from the two inputs.
cudnnStatus_t put_convolution(cudnnHandle_t handle, const Convolution& c, int algorithm,
                              void* workspace, size_t workspace_bytes, const void* alpha,
                              const void* beta,
                              const std::array<std::pair<const void*, Block>, 2>& in, void* out,
                              const Block& out_block,
                              std::function<void(const float*, const float*, float*)> add) {
  const auto held = lock();
  Stream* s = find(handle->stream);
  size_t needed = 0;
  if (s == nullptr || s->device != current_device()) return CUDNN_STATUS_EXECUTION_FAILED;
  if (const cudnnStatus_t status = workspace_of(c, algorithm, &needed);
      status != CUDNN_STATUS_SUCCESS)
    return status;
  if (algorithm == kBroken) return CUDNN_STATUS_EXECUTION_FAILED;
  if (s->recording != nullptr && std::getenv("SIMULATED_CONVOLUTIONS_SPOIL") != nullptr) {
    s->spoiled = true;
    return CUDNN_STATUS_EXECUTION_FAILED;
  }
  for (const auto& [p, block] : in)
    if (!on_device(p, block.bytes(), s->device)) return CUDNN_STATUS_BAD_PARAM;
  if (workspace_bytes < needed || !on_device(workspace, needed, s->device) ||
      !on_device(out, out_block.bytes(), s->device))
    return CUDNN_STATUS_BAD_PARAM;
  const float scale = *static_cast<const float*>(alpha), old = *static_cast<const float*>(beta);
  put_done(s, [=] {
    if (algorithm < kAlgorithms) pass_time(2);
    if (algorithm == kSlowEngine) pass_time(100);
    std::memset(workspace, 0xff, std::min<size_t>(needed, 65536));
    Floats sums(static_cast<size_t>(out_block.elements()), 0.0f);
    add(floats(in[0].first, in[0].second).data(), floats(in[1].first, in[1].second).data(),
        sums.data());
    if (algorithm == kWrongEngine) std::ranges::fill(sums, std::numeric_limits<float>::quiet_NaN());
    for (int64_t i = 0; i < out_block.elements(); ++i)
      write(out, out_block.half, i,
            scale * sums[static_cast<size_t>(i)] + weighted(old, out, out_block.half, i));
  });
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace

cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(cudnnHandle_t, cudnnTensorDescriptor_t,
                                                     cudnnFilterDescriptor_t,
                                                     cudnnConvolutionDescriptor_t,
                                                     cudnnTensorDescriptor_t, int most, int* count,
                                                     cudnnConvolutionFwdAlgoPerf_t* found) {
  return rank_algorithms<cudnnConvolutionFwdAlgoPerf_t, cudnnConvolutionFwdAlgo_t>(most, count,
                                                                                   found);
}
cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(
    cudnnHandle_t, cudnnFilterDescriptor_t, cudnnTensorDescriptor_t, cudnnConvolutionDescriptor_t,
    cudnnTensorDescriptor_t, int most, int* count, cudnnConvolutionBwdDataAlgoPerf_t* found) {
  return rank_algorithms<cudnnConvolutionBwdDataAlgoPerf_t, cudnnConvolutionBwdDataAlgo_t>(
      most, count, found);
}
cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(
    cudnnHandle_t, cudnnTensorDescriptor_t, cudnnTensorDescriptor_t, cudnnConvolutionDescriptor_t,
    cudnnFilterDescriptor_t, int most, int* count, cudnnConvolutionBwdFilterAlgoPerf_t* found) {
  return rank_algorithms<cudnnConvolutionBwdFilterAlgoPerf_t, cudnnConvolutionBwdFilterAlgo_t>(
      most, count, found);
}

cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(cudnnHandle_t, cudnnTensorDescriptor_t x,
                                                      cudnnFilterDescriptor_t w,
                                                      cudnnConvolutionDescriptor_t conv,
                                                      cudnnTensorDescriptor_t y,
                                                      cudnnConvolutionFwdAlgo_t algorithm,
                                                      size_t* bytes) {
  return workspace_of({*x, *w, *y, *conv}, algorithm, bytes);
}
cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(cudnnHandle_t, cudnnFilterDescriptor_t w,
                                                           cudnnTensorDescriptor_t dy,
                                                           cudnnConvolutionDescriptor_t conv,
                                                           cudnnTensorDescriptor_t dx,
                                                           cudnnConvolutionBwdDataAlgo_t algorithm,
                                                           size_t* bytes) {
  return workspace_of({*dx, *w, *dy, *conv}, algorithm, bytes);
}
cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(
    cudnnHandle_t, cudnnTensorDescriptor_t x, cudnnTensorDescriptor_t dy,
    cudnnConvolutionDescriptor_t conv, cudnnFilterDescriptor_t dw,
    cudnnConvolutionBwdFilterAlgo_t algorithm, size_t* bytes) {
  return workspace_of({*x, *dw, *dy, *conv}, algorithm, bytes);
}

cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void* alpha,
                                      cudnnTensorDescriptor_t x_is, const void* x,
                                      cudnnFilterDescriptor_t w_is, const void* w,
                                      cudnnConvolutionDescriptor_t conv,
                                      cudnnConvolutionFwdAlgo_t algorithm, void* workspace,
                                      size_t workspace_bytes, const void* beta,
                                      cudnnTensorDescriptor_t y_is, void* y) {
  const Convolution c{*x_is, *w_is, *y_is, *conv};
  return put_convolution(handle, c, algorithm, workspace, workspace_bytes, alpha, beta,
                         {{{x, c.x}, {w, c.w}}}, y, c.y,
                         [c](const float* x, const float* w, float* y) {
                           c.each([&](int64_t i, int64_t j, int64_t k) {
                             float sum = 0;
                             for (int64_t m = 0; m < c.w.size[1]; ++m)
                               sum += x[i + m * c.x.step[1]] * w[j + m * c.w.step[1]];
                             y[k] += sum;
                           });
                         });
}

cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void* alpha,
                                           cudnnFilterDescriptor_t w_is, const void* w,
                                           cudnnTensorDescriptor_t dy_is, const void* dy,
                                           cudnnConvolutionDescriptor_t conv,
                                           cudnnConvolutionBwdDataAlgo_t algorithm, void* workspace,
                                           size_t workspace_bytes, const void* beta,
                                           cudnnTensorDescriptor_t dx_is, void* dx) {
  const Convolution c{*dx_is, *w_is, *dy_is, *conv};
  return put_convolution(handle, c, algorithm, workspace, workspace_bytes, alpha, beta,
                         {{{w, c.w}, {dy, c.y}}}, dx, c.x,
                         [c](const float* w, const float* dy, float* dx) {
                           c.each([&](int64_t i, int64_t j, int64_t k) {
                             for (int64_t m = 0; m < c.w.size[1]; ++m)
                               dx[i + m * c.x.step[1]] += dy[k] * w[j + m * c.w.step[1]];
                           });
                         });
}

cudnnStatus_t cudnnConvolutionBackwardFilter(
    cudnnHandle_t handle, const void* alpha, cudnnTensorDescriptor_t x_is, const void* x,
    cudnnTensorDescriptor_t dy_is, const void* dy, cudnnConvolutionDescriptor_t conv,
    cudnnConvolutionBwdFilterAlgo_t algorithm, void* workspace, size_t workspace_bytes,
    const void* beta, cudnnFilterDescriptor_t dw_is, void* dw) {
  const Convolution c{*x_is, *dw_is, *dy_is, *conv};
  return put_convolution(handle, c, algorithm, workspace, workspace_bytes, alpha, beta,
                         {{{x, c.x}, {dy, c.y}}}, dw, c.w,
                         [c](const float* x, const float* dy, float* dw) {
                           c.each([&](int64_t i, int64_t j, int64_t k) {
                             for (int64_t m = 0; m < c.w.size[1]; ++m)
                               dw[j + m * c.w.step[1]] += dy[k] * x[i + m * c.x.step[1]];
                           });
                         });
}
