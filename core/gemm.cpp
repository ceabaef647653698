#include "core/gemm.h"

#include <dnnl.h>

#include <bit>

#include "core/kernels.h"
#include "core/onednn.h"
#include "core/plan_cache.h"

#ifdef HEDDLE_CUDA
#include "core/cuda.h"
#endif

namespace heddle {
namespace cpu {
namespace {

using dnnl::memory;

// A product by oneDNN's matmul.
struct Product {
  int64_t m, n, k;
  bool transpose_a, transpose_b, packed;  // packed: b in the order that oneDNN prefers
  DType in, out;
  float beta;
};

struct MatmulPlan {
  Plan plan;
  memory::desc a, b, c;
};

MatmulPlan make_plan(const Product& p) {
  using tag = memory::format_tag;
  const memory::desc a({p.m, p.k}, onednn_type(p.in), p.transpose_a ? tag::ba : tag::ab);
  const memory::desc b({p.k, p.n}, onednn_type(p.in),
                       p.packed ? tag::any : (p.transpose_b ? tag::ba : tag::ab));
  const memory::desc c({p.m, p.n}, onednn_type(p.out), tag::ab);
  const auto pd = make_descriptor<dnnl::matmul::primitive_desc>(attributes_adding(p.beta), a, b, c);
  return {{dnnl::matmul(pd), pd.scratchpad_desc()}, a, pd.weights_desc(), c};
}

const MatmulPlan& matmul_plan(const Product& p) {
  const PlanKey key = plan_key(p.m, p.n, p.k, p.transpose_a, p.transpose_b, p.packed, p.in, p.out,
                               std::bit_cast<int32_t>(p.beta));
  return cached_plan<MatmulPlan>(key, [&] { return make_plan(p); });
}

void multiply(const Product& product, void* a, void* b, void* c) {
  const MatmulPlan& plan = matmul_plan(product);
  execute(plan.plan, {{DNNL_ARG_SRC, memory_at(plan.a, a)},
                      {DNNL_ARG_WEIGHTS, memory_at(plan.b, b)},
                      {DNNL_ARG_DST, memory_at(plan.c, c)}});
}

// Computes c = alpha * op(a) * op(b) + beta * c by dnnl_sgemm, which was never slower than oneDNN's
// matmul for the large fp32 products of a language model's step.
void sgemm(const Tensor& a, const Tensor& b, const Tensor& c, const GemmOptions& o) {
  const int64_t k = o.transpose_a ? a.shape()[0] : a.shape()[1];
  const auto status =
      dnnl_sgemm(o.transpose_a ? 'T' : 'N', o.transpose_b ? 'T' : 'N', c.shape()[0], c.shape()[1],
                 k, o.alpha, a.data<float>(), a.shape()[1], b.data<float>(), b.shape()[1], o.beta,
                 c.data<float>(), c.shape()[1]);
  if (status != dnnl_success) throw Error("oneDNN: gemm failed");
}

// Computes c = alpha * op(a) * op(b) + beta * c in fp32. Rows of a transposed a that lie a multiple
// of 4 KiB apart fall into the same cache sets: then the transposed product, cᵀ = bᵀ a, is computed
// and transposed into c, which is faster for the weight gradients of an LSTM of 512 units.
void gemm_f32(const Tensor& a, const Tensor& b, const Tensor& c, const GemmOptions& o) {
  const int64_t m = c.shape()[0], n = c.shape()[1];
  if (!o.transpose_a || o.transpose_b || m % 1024 != 0 || n >= m) return sgemm(a, b, c, o);
  const Tensor other = Tensor::empty_on(c.device(), {n, m});
  sgemm(b, a, other, {.transpose_a = true, .alpha = o.alpha});
  using tag = memory::format_tag;
  reorder_memory({{m, n}, memory::data_type::f32, tag::ba}, other.raw(), describe(c), c.raw(),
                 o.beta);
}

}  // namespace
}  // namespace cpu

#ifdef HEDDLE_CUDA
namespace cuda {
namespace {

cudaDataType_t type_of(const Tensor& x) {
  return x.dtype() == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F;
}

// Computes the product by cuBLAS, which is column-major: there it is op(b)ᵀ op(a)ᵀ.
void gemm(const Tensor& a, const Tensor& b, const Tensor& c, const GemmOptions& o, int64_t k) {
  const auto rows = to_int(c.shape()[0]), columns = to_int(c.shape()[1]);
  const auto stride = [](const Tensor& x) { return to_int(x.shape()[1]); };
  check_cublas(
      cublasGemmEx(cublas_handle(), o.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N,
                   o.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N, columns, rows, to_int(k), &o.alpha,
                   b.raw(), type_of(b), stride(b), a.raw(), type_of(a), stride(a), &o.beta, c.raw(),
                   type_of(c), columns, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
      "cublasGemmEx");
}

}  // namespace
}  // namespace cuda
#endif

namespace {

struct Extents {
  int64_t m, n, k;
};

// Returns the extents of op(a) op(b). Throws InputError unless that product has the shape of c.
Extents check_product(const Tensor& a, const Tensor& b, const Tensor& c, bool transpose_a,
                      bool transpose_b) {
  auto [a0, a1] = dims<2>(a, "gemm a");
  auto [b0, b1] = dims<2>(b, "gemm b");
  if (transpose_a) std::swap(a0, a1);
  if (transpose_b) std::swap(b0, b1);
  check(a.device() == b.device() && a.device() == c.device(), "gemm: operands on ",
        to_string(a.device()), ", ", to_string(b.device()), " and ", to_string(c.device()));
  check(a1 == b0, "gemm: ", to_string(a.shape()), " and ", to_string(b.shape()), " do not fit");
  check_shape(c, {a0, b1}, "gemm c");
  return {a0, b1, a1};
}

}  // namespace

void gemm(const Tensor& a, const Tensor& b, const Tensor& c, const GemmOptions& o) {
  const auto [m, n, k] = check_product(a, b, c, o.transpose_a, o.transpose_b);
  const bool half = a.dtype() == DType::bf16;
  check_floating(a, "gemm a");
  check(b.dtype() == a.dtype() && (c.dtype() == DType::f32 || (half && c.dtype() == a.dtype())),
        "gemm: types ", dtype_name(a.dtype()), ", ", dtype_name(b.dtype()), " and ",
        dtype_name(c.dtype()), " do not fit");
  check(!half || o.alpha == 1.0f, "gemm: alpha must be 1 for bf16, found ", o.alpha);
  if (m == 0 || n == 0) return;
  if (k == 0) {  // an empty sum; the libraries refuse leading dimensions of zero
    if (o.beta == 0.0f)
      c.fill_zero();
    else
      scale(c, o.beta);
    return;
  }
#ifdef HEDDLE_CUDA
  if (a.device().is_cuda()) return cuda::gemm(a, b, c, o, k);
#endif
  if (half)
    cpu::multiply({m, n, k, o.transpose_a, o.transpose_b, false, DType::bf16, c.dtype(), o.beta},
                  a.raw(), b.raw(), c.raw());
  else
    cpu::gemm_f32(a, b, c, o);
}

void gemm_with_bias(const Tensor& a, const Tensor& b, bool transpose_b, const Tensor& bias,
                    const Tensor& c) {
  const auto [m, n, k] = check_product(a, b, c, false, transpose_b);
  check_shape(bias, {n}, "gemm bias");
  check(bias.dtype() == DType::f32 && c.dtype() == DType::f32 && a.dtype() == b.dtype(),
        "gemm: types do not fit");
#ifdef HEDDLE_CUDA
  if (c.device().is_cuda() && c.size() > 0 && k > 0 &&
      cuda::gemm_with_bias(a, b, transpose_b, bias, c))
    return;
#endif
  repeat_row(bias, c);
  gemm(a, b, c, {.transpose_b = transpose_b, .beta = 1.0f});
}

PackedMatrix::PackedMatrix(const Tensor& b, bool transpose, int64_t m, DType dtype, float beta)
    : m_(m), transpose_(transpose), dtype_(dtype), beta_(beta) {
  auto [b0, b1] = dims<2>(b, "packed matrix");
  k_ = transpose ? b1 : b0;
  n_ = transpose ? b0 : b1;
  check(b.dtype() == DType::f32 && b.size() > 0 && m > 0, "packed matrix: expected f32 values");
  if (b.device().is_cuda()) {
    data_ = converted(b, dtype, Layout::plain);
    return;
  }
  const auto& plan = cpu::matmul_plan({m_, n_, k_, false, false, true, dtype_, DType::f32, beta_});
  data_ = cpu::memory_for(plan.b);
  using tag = dnnl::memory::format_tag;
  cpu::reorder_memory({{k_, n_}, dnnl::memory::data_type::f32, transpose ? tag::ba : tag::ab},
                      b.raw(), plan.b, data_.raw());
}

void PackedMatrix::multiply(const Tensor& a, const Tensor& c) const {
  check_shape(a, {m_, k_}, "packed product a");
  check_shape(c, {m_, n_}, "packed product c");
  check(a.dtype() == dtype_ && c.dtype() == DType::f32, "packed product: types do not fit");
  if (a.device().is_cuda()) return gemm(a, data_, c, {.transpose_b = transpose_, .beta = beta_});
  cpu::multiply({m_, n_, k_, false, false, true, dtype_, DType::f32, beta_}, a.raw(), data_.raw(),
                c.raw());
}

}  // namespace heddle
