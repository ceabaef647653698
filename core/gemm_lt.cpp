// Products by cuBLASLt: with a bias, which it adds in its epilogue, not in a separate pass over the
// result, and by the fastest of several algorithms.
#include <algorithm>
#include <memory>
#include <vector>

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

constexpr int kMostTimed = 8, kTimedRuns = 5;

struct Product {
  int64_t m, n, k;
  bool transpose_a, transpose_b;
  DType in, out;
  int64_t align_a, align_b, align_c;  // bytes, at most 256
  int64_t align_bias;                 // 0: no bias
};

struct LtPlan {
  Operation operation;
  Matrix a, b, c;
  std::vector<cublasLtMatmulHeuristicResult_t> algorithms = {};  // the best first
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

cudaDataType_t type_of(DType dtype) { return dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F; }

Product product_of(const Tensor& a, const Tensor& b, const Tensor& c, const GemmOptions& o,
                   const void* bias) {
  return {.m = c.shape()[0],
          .n = c.shape()[1],
          .k = a.shape()[o.transpose_a ? 0 : 1],
          .transpose_a = o.transpose_a,
          .transpose_b = o.transpose_b,
          .in = a.dtype(),
          .out = c.dtype(),
          .align_a = alignment_of(a.raw()),
          .align_b = alignment_of(b.raw()),
          .align_c = alignment_of(c.raw()),
          .align_bias = alignment_of(bias)};
}

PlanKey key_of(const Product& p) {
  return plan_key(p.m, p.n, p.k, p.transpose_a, p.transpose_b, p.in, p.out, p.align_a, p.align_b,
                  p.align_c, p.align_bias);
}

// Returns the plan of a product with at most `most` algorithms, none where cuBLASLt does not
// support it. cuBLAS is column-major: the row-major product is op(b)ᵀ op(a)ᵀ there, and a bias that
// it adds to each column is added to each of our rows.
LtPlan make_plan(const Product& p, const void* bias, int most) {
  const bool half = p.in == DType::bf16, tf32 = Context::current().options().tf32;
  LtPlan plan;
  cublasLtMatmulDesc_t operation = nullptr;
  check_cublas(cublasLtMatmulDescCreate(
                   &operation, !half && tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
                   CUDA_R_32F),
               "cublasLtMatmulDescCreate");
  plan.operation.reset(operation);
  set(plan.operation, CUBLASLT_MATMUL_DESC_TRANSA, p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(plan.operation, CUBLASLT_MATMUL_DESC_TRANSB, p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (bias != nullptr) {
    set(plan.operation, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(plan.operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_32F);
    set(plan.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);  // shows its alignment
  }
  const cudaDataType_t in = type_of(p.in);
  plan.a = p.transpose_b ? describe(in, p.k, p.n) : describe(in, p.n, p.k);
  plan.b = p.transpose_a ? describe(in, p.m, p.k) : describe(in, p.k, p.m);
  plan.c = describe(type_of(p.out), p.n, p.m);
  cublasLtMatmulPreference_t made = nullptr;
  check_cublas(cublasLtMatmulPreferenceCreate(&made), "cublasLtMatmulPreferenceCreate");
  const Preference preference(made);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t what, const auto& value) {
    check_cublas(cublasLtMatmulPreferenceSetAttribute(made, what, &value, sizeof value),
                 "cublasLtMatmulPreferenceSetAttribute");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
         static_cast<uint64_t>(cublas_workspace().bytes()));
  if (p.out == DType::bf16)  // the parts of a sum are added in fp32 there, too
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
           static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<uint32_t>(p.align_b));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<uint32_t>(p.align_a));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<uint32_t>(p.align_c));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<uint32_t>(p.align_c));
  plan.algorithms.resize(to_size(most));
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      lt_handle(), plan.operation.get(), plan.a.get(), plan.b.get(), plan.c.get(), plan.c.get(),
      preference.get(), most, plan.algorithms.data(), &count);
  if (status != CUBLAS_STATUS_NOT_SUPPORTED) check_cublas(status, "cublasLtMatmulAlgoGetHeuristic");
  plan.algorithms.resize(to_size(count));
  std::erase_if(plan.algorithms, [](const auto& a) { return a.state != CUBLAS_STATUS_SUCCESS; });
  return plan;
}

cublasStatus_t run(const LtPlan& plan, const cublasLtMatmulHeuristicResult_t& algorithm,
                   const Tensor& a, const Tensor& b, const Tensor& c, float alpha, float beta) {
  return cublasLtMatmul(lt_handle(), plan.operation.get(), &alpha, b.raw(), plan.a.get(), a.raw(),
                        plan.b.get(), &beta, c.raw(), plan.c.get(), c.raw(), plan.c.get(),
                        &algorithm.algo, cublas_workspace().raw(), algorithm.workspaceSize,
                        cuda_stream());
}

// Leaves the fastest algorithm, none if gemm() is faster than all.
void keep_fastest(LtPlan& plan, const Tensor& a, const Tensor& b, const Tensor& c,
                  const GemmOptions& o) {
  // The trials overwrite c only if the product does.
  const Tensor out = o.beta == 0.0f ? c : Tensor::empty_like(c);
  const auto milliseconds = [&](const auto& start) {
    start();
    return stream_milliseconds([&] {
      for (int i = 0; i < kTimedRuns; ++i) start();
    });
  };
  float best = milliseconds([&] {
    gemm(a, b, out, {.transpose_a = o.transpose_a, .transpose_b = o.transpose_b, .alpha = o.alpha});
  });
  std::vector<cublasLtMatmulHeuristicResult_t> fastest;
  for (const auto& algorithm : plan.algorithms) {
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    const float ms = milliseconds([&] {
      if (status == CUBLAS_STATUS_SUCCESS) status = run(plan, algorithm, a, b, out, o.alpha, 0);
    });
    if (status != CUBLAS_STATUS_SUCCESS)
      (void)cudaGetLastError();  // the next kernel would report it
    if (status != CUBLAS_STATUS_SUCCESS || ms >= best) continue;
    best = ms;
    fastest = {algorithm};
  }
  plan.algorithms = fastest;
}

}  // namespace

bool gemm_with_bias(const Tensor& a, const Tensor& b, bool transpose_b, const Tensor& bias,
                    const Tensor& c) {
  const Product p = product_of(a, b, c, {.transpose_b = transpose_b}, bias.raw());
  const LtPlan& plan = cached_plan<LtPlan>(key_of(p), [&] { return make_plan(p, bias.raw(), 1); });
  if (plan.algorithms.empty()) return false;
  set(plan.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(bias.raw()));
  check_cublas(run(plan, plan.algorithms[0], a, b, c, 1, 0), "cublasLtMatmul");
  return true;
}

void fastest_gemm(const Tensor& a, const Tensor& b, const Tensor& c, const GemmOptions& o) {
  const ContextOptions& options = Context::current().options();
  if (!options.tune || options.deterministic || a.size() == 0 || b.size() == 0)
    return gemm(a, b, c, o);
  const Product p = product_of(a, b, c, o, nullptr);
  const LtPlan& plan = cached_plan<LtPlan>(key_of(p), [&] {
    if (stream_is_recorded()) return LtPlan{};
    LtPlan timed = make_plan(p, nullptr, kMostTimed);
    try {
      keep_fastest(timed, a, b, c, o);
    } catch (const Error&) {  // no memory for it: gemm() needs none
      timed.algorithms.clear();
    }
    return timed;
  });
  if (plan.algorithms.empty()) return gemm(a, b, c, o);
  check_cublas(run(plan, plan.algorithms[0], a, b, c, o.alpha, o.beta), "cublasLtMatmul");
}

}  // namespace heddle::cuda
