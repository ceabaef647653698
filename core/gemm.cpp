#include "core/gemm.h"

#include <dnnl.h>

#include "core/kernels.h"

#ifdef HEDDLE_CUDA
#include "core/cuda.h"
#endif

namespace heddle {

void gemm(const Tensor& a, const Tensor& b, const Tensor& c, const GemmOptions& o) {
  auto [a0, a1] = dims<2>(a, "gemm a");
  auto [b0, b1] = dims<2>(b, "gemm b");
  const int64_t m = o.transpose_a ? a1 : a0, k = o.transpose_a ? a0 : a1;
  const int64_t kb = o.transpose_b ? b1 : b0, n = o.transpose_b ? b0 : b1;
  check(k == kb, "gemm: ", to_string(a.shape()), " and ", to_string(b.shape()), " do not fit");
  check_shape(c, {m, n}, "gemm c");
  if (m == 0 || n == 0) return;
  if (k == 0) {  // an empty sum; the libraries refuse leading dimensions of zero
    if (o.beta == 0.0f)
      c.fill_zero();
    else
      scale(c, o.beta);
    return;
  }
  if (a.device().is_cuda()) {
#ifdef HEDDLE_CUDA
    // cuBLAS counts columns first: the row-major product is op(b)ᵀ op(a)ᵀ there.
    const auto status = cublasSgemm(
        cublas_handle(), o.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N,
        o.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N, static_cast<int>(n), static_cast<int>(m),
        static_cast<int>(k), &o.alpha, b.data<float>(), static_cast<int>(b1), a.data<float>(),
        static_cast<int>(a1), &o.beta, c.data<float>(), static_cast<int>(n));
    if (status != CUBLAS_STATUS_SUCCESS) throw Error("cuBLAS: gemm failed");
#endif
    return;
  }
  const auto status =
      dnnl_sgemm(o.transpose_a ? 'T' : 'N', o.transpose_b ? 'T' : 'N', m, n, k, o.alpha,
                 a.data<float>(), a1, b.data<float>(), b1, o.beta, c.data<float>(), n);
  if (status != dnnl_success) throw Error("oneDNN: gemm failed");
}

}  // namespace heddle
