// cuBLASLt of the simulated GPU: products with a bias or without. It refuses sums of 65 terms, and
// pointers that are less aligned than it was told when it was asked for algorithms. The first of
// these is slow, the second fails, the third, which sums of odd numbers of terms lack, is fast.
#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "core/bfloat16.h"
#include "tests/simulated_gpu/device.h"

using namespace simulated;

std::atomic<int64_t> simulated::fast_products = 0;

namespace {

struct Operation {
  cublasOperation_t a = CUBLAS_OP_N, b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  cudaDataType_t bias_type = CUDA_R_32F;
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  const void* bias = nullptr;
};
struct Matrix {
  cudaDataType_t type = CUDA_R_32F;
  int64_t rows = 0, columns = 0, ld = 0;
};
struct Preference {
  uint64_t workspace = 0;
  uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;    // bits of those that are allowed
  std::array<uint32_t, 4> aligned = {256, 256, 256, 256};  // a, b, c, d
};
struct Algorithm {
  std::array<uint32_t, 4> aligned{};
  uintptr_t bias_aligned = 1;
  int number = 0;
};
enum : int { kSlow, kBroken, kFast };

constexpr size_t kWorkspace = 512;

// Returns our type in the memory of an opaque struct.
template <class T, class Opaque>
T& in(Opaque* opaque) {
  static_assert(sizeof(T) <= sizeof(Opaque));
  return *reinterpret_cast<T*>(opaque);
}
template <class T, class Opaque>
cublasStatus_t make(Opaque** made) {
  *made = new Opaque;
  new (*made) T;
  return CUBLAS_STATUS_SUCCESS;
}
template <class Opaque>
cublasStatus_t destroy(Opaque* opaque) {
  delete opaque;
  return CUBLAS_STATUS_SUCCESS;
}

template <class T>
cublasStatus_t store(T& to, const void* from, size_t bytes) {
  if (bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, from, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

float read(const void* p, cudaDataType_t type, int64_t i) {
  return type == CUDA_R_16BF ? static_cast<float>(static_cast<const heddle::bfloat16*>(p)[i])
                             : static_cast<const float*>(p)[i];
}

// Finds k of the product of column-major matrices; false if shapes do not fit.
bool extents(const Operation& o, const Matrix& a, const Matrix& b, const Matrix& c, int64_t& k) {
  const bool ta = o.a == CUBLAS_OP_T, tb = o.b == CUBLAS_OP_T;
  k = ta ? a.rows : a.columns;
  for (const Matrix* x : {&a, &b, &c})
    if (x->rows <= 0 || x->columns <= 0 || x->ld < x->rows) return false;
  return (ta ? a.columns : a.rows) == c.rows && (tb ? b.columns : b.rows) == k &&
         (tb ? b.rows : b.columns) == c.columns;
}

// An algorithm relies on the alignment of the bias that it was chosen with.
uintptr_t alignment_of(const void* p) {
  const auto address = reinterpret_cast<uintptr_t>(p);
  return p == nullptr ? 1 : std::min<uintptr_t>(address & (~address + 1), 16);
}

bool offered(const Operation& o, const Matrix& a, const Matrix& b, const Matrix& c, int64_t k) {
  const bool half = a.type == CUDA_R_16BF;
  const bool bias = o.epilogue == CUBLASLT_EPILOGUE_BIAS && o.bias_type == CUDA_R_32F;
  return a.type == b.type && (half || a.type == CUDA_R_32F) &&
         (c.type == CUDA_R_32F || (half && c.type == CUDA_R_16BF)) && k != 65 &&
         (bias || o.epilogue == CUBLASLT_EPILOGUE_DEFAULT) &&
         (o.compute == CUBLAS_COMPUTE_32F || (!half && o.compute == CUBLAS_COMPUTE_32F_FAST_TF32));
}

}  // namespace

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* made, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  if (scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  (void)make<Operation>(made);
  in<Operation>(*made).compute = compute;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) { return destroy(d); }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d,
                                              cublasLtMatmulDescAttributes_t what, const void* from,
                                              size_t bytes) {
  auto& o = in<Operation>(d);
  switch (what) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return store(o.a, from, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return store(o.b, from, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return store(o.epilogue, from, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return store(o.bias_type, from, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return store(o.bias, from, bytes);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made, cudaDataType_t type,
                                          uint64_t rows, uint64_t columns, int64_t ld) {
  (void)make<Matrix>(made);
  in<Matrix>(*made) = {type, static_cast<int64_t>(rows), static_cast<int64_t>(columns), ld};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t d) { return destroy(d); }

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* made) {
  return make<Preference>(made);
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t d) { return destroy(d); }
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t d,
                                                    cublasLtMatmulPreferenceAttributes_t what,
                                                    const void* from, size_t bytes) {
  auto& p = in<Preference>(d);
  switch (what) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return store(p.workspace, from, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return store(p.reductions, from, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return store(p.aligned[0], from, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return store(p.aligned[1], from, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return store(p.aligned[2], from, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return store(p.aligned[3], from, bytes);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int most,
                                              cublasLtMatmulHeuristicResult_t found[], int* count) {
  *count = 0;
  int64_t k = 0;
  const auto& o = in<Operation>(operation);
  const auto& p = in<Preference>(preference);
  // The other schemes add in the output's type.
  if (in<Matrix>(c).type == CUDA_R_16BF && p.reductions != CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)
    return CUBLAS_STATUS_INVALID_VALUE;
  if (o.epilogue == CUBLASLT_EPILOGUE_BIAS && o.bias == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  if (most < 1 || c != d || !extents(o, in<Matrix>(a), in<Matrix>(b), in<Matrix>(c), k))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (!offered(o, in<Matrix>(a), in<Matrix>(b), in<Matrix>(c), k) || p.workspace < kWorkspace)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  *count = std::min(most, k % 2 == 0 ? 3 : 2);
  for (int i = 0; i < *count; ++i) {
    found[i] = {};
    in<Algorithm>(&found[i].algo) = {p.aligned, alignment_of(o.bias), i};
    found[i].workspaceSize = kWorkspace;
    found[i].state = CUBLAS_STATUS_SUCCESS;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t operation, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_is, const void* b,
                              cublasLtMatrixLayout_t b_is, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_is, void* d, cublasLtMatrixLayout_t d_is,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  const auto held = lock();
  Stream* s = find(stream);
  if (s == nullptr || s->device != current_device()) return CUBLAS_STATUS_EXECUTION_FAILED;
  const auto o = in<Operation>(operation);
  const auto ma = in<Matrix>(a_is), mb = in<Matrix>(b_is), mc = in<Matrix>(c_is);
  int64_t k = 0;
  const float old = *static_cast<const float*>(beta);
  const bool bias = o.epilogue == CUBLASLT_EPILOGUE_BIAS;
  if (!extents(o, ma, mb, mc, k) || !offered(o, ma, mb, mc, k) || c != d || c_is != d_is ||
      *static_cast<const float*>(alpha) != 1.0f)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  const auto fits = [&](const void* p, const Matrix& m) {
    return on_device(
        p, static_cast<size_t>((m.ld * (m.columns - 1) + m.rows) * (m.type == CUDA_R_16BF ? 2 : 4)),
        s->device);
  };
  if (!fits(a, ma) || !fits(b, mb) || !fits(d, mc) || workspace_bytes < kWorkspace ||
      !on_device(workspace, kWorkspace, s->device) ||
      (bias && !on_device(o.bias, static_cast<size_t>(mc.rows) * 4, s->device)))
    return CUBLAS_STATUS_INVALID_VALUE;
  const auto& [told, bias_told, number] =
      in<Algorithm>(const_cast<cublasLtMatmulAlgo_t*>(algorithm));
  if (bias && reinterpret_cast<uintptr_t>(o.bias) % bias_told != 0)
    return CUBLAS_STATUS_EXECUTION_FAILED;
  const std::array<const void*, 4> pointers = {a, b, c, d};
  for (size_t i = 0; i < pointers.size(); ++i)
    if (told[i] == 0 || reinterpret_cast<uintptr_t>(pointers[i]) % told[i] != 0)
      return CUBLAS_STATUS_EXECUTION_FAILED;
  if (number == kBroken) return CUBLAS_STATUS_EXECUTION_FAILED;
  if (number == kFast) ++fast_products;
  const bool slow = number == kSlow;
  put_done(s, [=] {
    if (slow) pass_time(100);
    std::memset(workspace, 0xff, kWorkspace);
    for (int64_t j = 0; j < mc.columns; ++j)
      for (int64_t i = 0; i < mc.rows; ++i) {
        float sum = 0;
        for (int64_t p = 0; p < k; ++p)
          sum += read(a, ma.type, o.a == CUBLAS_OP_T ? p + i * ma.ld : i + p * ma.ld) *
                 read(b, mb.type, o.b == CUBLAS_OP_T ? j + p * mb.ld : p + j * mb.ld);
        if (bias) sum += static_cast<const float*>(o.bias)[i];
        const int64_t at = i + j * mc.ld;
        if (old != 0.0f) sum += old * read(d, mc.type, at);
        if (mc.type == CUDA_R_16BF)
          static_cast<heddle::bfloat16*>(d)[at] = heddle::bfloat16(sum);
        else
          static_cast<float*>(d)[at] = sum;
      }
  });
  return CUBLAS_STATUS_SUCCESS;
}
