// Products whose bias cuBLASLt adds in its epilogue, not in a separate pass over the result.
#include <algorithm>
#include <memory>
#include <optional>

#include <cublasLt.h>

#include "core/context.h"
#include "core/cuda.h"
#include "core/gemm.h"
#include "core/plan_cache.h"

namespace heddle::cuda {
namespace {

using Operation = std::unique_ptr<cublasLtMatmulDescOpaque_t, Destroy<cublasLtMatmulDescDestroy>>;
using Matrix = std::unique_ptr<cublasLtMatrixLayoutOpaque_t, Destroy<cublasLtMatrixLayoutDestroy>>;
using Preference =
    std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, Destroy<cublasLtMatmulPreferenceDestroy>>;

constexpr uint64_t kMaxWorkspace = uint64_t{32} << 20;

struct Product {
  int64_t m, n, k;
  bool transpose_b;
  DType in;
  int64_t align_a, align_b, align_bias, align_c;  // bytes, at most 256
};

struct LtPlan {
  Operation operation;
  Matrix a, b, c;
  cublasLtMatmulAlgo_t algorithm{};
  int64_t workspace = 0;
};

cublasLtHandle_t lt_handle() { return reinterpret_cast<cublasLtHandle_t>(cublas_handle()); }

int64_t alignment_of(const void* p) {
  const auto address = reinterpret_cast<uintptr_t>(p);
  return to_int64(std::min<uintptr_t>(address & (~address + 1), 256));
}

template <class Value>
void set(const Operation& operation, cublasLtMatmulDescAttributes_t what, const Value& value) {
  check_cublas(cublasLtMatmulDescSetAttribute(operation.get(), what, &value, sizeof value),
               "cublasLtMatmulDescSetAttribute");
}

Matrix describe(cudaDataType_t type, int64_t rows, int64_t columns) {
  cublasLtMatrixLayout_t made = nullptr;
  check_cublas(cublasLtMatrixLayoutCreate(&made, type, static_cast<uint64_t>(rows),
                                          static_cast<uint64_t>(columns), rows),
               "cublasLtMatrixLayoutCreate");
  return Matrix(made);
}

// Makes the plan of a product; none where cuBLASLt does not support it. cuBLAS is column-major: the
// row-major product is op(b)ᵀ aᵀ there, and a bias that it adds to each column is added to each of
// our rows.
std::optional<LtPlan> make_plan(const Product& p, const Tensor& bias) {
  const bool half = p.in == DType::bf16, tf32 = Context::current().options().tf32;
  const cudaDataType_t type = half ? CUDA_R_16BF : CUDA_R_32F;
  LtPlan plan;
  cublasLtMatmulDesc_t operation = nullptr;
  check_cublas(cublasLtMatmulDescCreate(
                   &operation, !half && tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
                   CUDA_R_32F),
               "cublasLtMatmulDescCreate");
  plan.operation.reset(operation);
  set(plan.operation, CUBLASLT_MATMUL_DESC_TRANSA, p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(plan.operation, CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
  set(plan.operation, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
  set(plan.operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_32F);
  set(plan.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(bias.raw()));
  plan.a = p.transpose_b ? describe(type, p.k, p.n) : describe(type, p.n, p.k);
  plan.b = describe(type, p.k, p.m);
  plan.c = describe(CUDA_R_32F, p.n, p.m);
  cublasLtMatmulPreference_t made = nullptr;
  check_cublas(cublasLtMatmulPreferenceCreate(&made), "cublasLtMatmulPreferenceCreate");
  const Preference preference(made);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t what, const auto& value) {
    check_cublas(cublasLtMatmulPreferenceSetAttribute(made, what, &value, sizeof value),
                 "cublasLtMatmulPreferenceSetAttribute");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kMaxWorkspace);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<uint32_t>(p.align_b));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<uint32_t>(p.align_a));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<uint32_t>(p.align_c));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<uint32_t>(p.align_c));
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      lt_handle(), plan.operation.get(), plan.a.get(), plan.b.get(), plan.c.get(), plan.c.get(),
      preference.get(), 1, &found, &count);
  if (status != CUBLAS_STATUS_NOT_SUPPORTED) check_cublas(status, "cublasLtMatmulAlgoGetHeuristic");
  if (count == 0 || found.state != CUBLAS_STATUS_SUCCESS) return std::nullopt;
  plan.algorithm = found.algo;
  plan.workspace = to_int64(found.workspaceSize);
  return plan;
}

}  // namespace

bool gemm_with_bias(const Tensor& a, const Tensor& b, bool transpose_b, const Tensor& bias,
                    const Tensor& c) {
  const Product p{.m = a.shape()[0],
                  .n = c.shape()[1],
                  .k = a.shape()[1],
                  .transpose_b = transpose_b,
                  .in = a.dtype(),
                  .align_a = alignment_of(a.raw()),
                  .align_b = alignment_of(b.raw()),
                  .align_bias = alignment_of(bias.raw()),
                  .align_c = alignment_of(c.raw())};
  const PlanKey key =
      plan_key(p.m, p.n, p.k, p.transpose_b, p.in, p.align_a, p.align_b, p.align_bias, p.align_c);
  const auto& found = cached_plan<std::optional<LtPlan>>(key, [&] { return make_plan(p, bias); });
  if (!found) return false;
  const LtPlan& plan = *found;
  set(plan.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(bias.raw()));
  const Tensor workspace = Tensor::empty_on(c.device(), {plan.workspace}, DType::u8);
  const float one = 1, zero = 0;
  check_cublas(
      cublasLtMatmul(lt_handle(), plan.operation.get(), &one, b.raw(), plan.a.get(), a.raw(),
                     plan.b.get(), &zero, c.raw(), plan.c.get(), c.raw(), plan.c.get(),
                     &plan.algorithm, workspace.raw(), to_size(plan.workspace), cuda_stream()),
      "cublasLtMatmul");
  return true;
}

}  // namespace heddle::cuda
