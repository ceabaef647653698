#include "core/kernels.h"

#include <cmath>

#include "core/elementwise.h"
#include "core/onednn.h"
#include "core/shared_kernel.h"

namespace heddle {
namespace {

void check_same(const Tensor& a, const Tensor& b, const char* name) {
  check(a.shape() == b.shape() && a.dtype() == b.dtype() && a.layout() == b.layout() &&
            a.device() == b.device(),
        name, ": expected ", dtype_name(a.dtype()), " ", to_string(a.shape()), " ",
        layout_name(a.layout()), ", found ", dtype_name(b.dtype()), " ", to_string(b.shape()), " ",
        layout_name(b.layout()));
}

#ifdef HEDDLE_CUDA
template <class From, class To>
void reorder_on_gpu(const Tensor& src, const Tensor& dst) {
  const Shape& s = src.shape();
  if (dst.layout() == Layout::nhwc)
    cuda::to_nhwc(src.data<From>(), dst.data<To>(), s[0], s[1], s[2] * s[3]);
  else
    cuda::from_nhwc(src.data<From>(), dst.data<To>(), s[0], s[1], s[2] * s[3], 0.0f);
}
#endif

// dst = src in the other layout.
void reorder(const Tensor& src, const Tensor& dst) {
#ifdef HEDDLE_CUDA
  if (src.device().is_cuda()) {
    check(src.layout() != Layout::c16 && dst.layout() != Layout::c16,
          "convert: layout c16 is the CPU's alone");
    const bool half = dst.dtype() == DType::bf16;
    if (src.dtype() == DType::f32)
      return half ? reorder_on_gpu<float, bfloat16>(src, dst)
                  : reorder_on_gpu<float, float>(src, dst);
    return half ? reorder_on_gpu<bfloat16, bfloat16>(src, dst)
                : reorder_on_gpu<bfloat16, float>(src, dst);
  }
#endif
  cpu::reorder(src, dst);
}

}  // namespace

void check_floating(const Tensor& x, const std::string& name) {
  check(x.dtype() == DType::f32 || x.dtype() == DType::bf16, name, ": expected f32 or bf16, found ",
        dtype_name(x.dtype()));
}

void fill(const Tensor& x, float value) {
  check_floating(x, "fill");
  with_type(x, [&]<class T>() { HEDDLE_DISPATCH(x.device(), fill(x.data<T>(), x.size(), value)); });
}

void add(const Tensor& a, const Tensor& b, const Tensor& out) {
  check_floating(a, "add");
  check_same(a, b, "add");
  check_same(a, out, "add");
  with_type(a, [&]<class T>() {
    HEDDLE_DISPATCH(a.device(), add(a.data<T>(), b.data<T>(), out.data<T>(), a.size()));
  });
}

void add_to(const Tensor& x, const Tensor& y) { add(x, y, y); }

void axpy(float alpha, const Tensor& x, const Tensor& y) {
  check_same(x, y, "axpy");
  HEDDLE_DISPATCH(x.device(), axpy(alpha, x.data<float>(), y.data<float>(), x.size()));
}

void scale(const Tensor& x, float factor) {
  check_floating(x, "scale");
  with_type(x,
            [&]<class T>() { HEDDLE_DISPATCH(x.device(), scale(x.data<T>(), x.size(), factor)); });
}

void convert(const Tensor& src, const Tensor& dst) {
  check(src.shape() == dst.shape() && src.device() == dst.device(), "convert: expected shape ",
        to_string(src.shape()), ", found ", to_string(dst.shape()));
  check_floating(src, "convert");
  check_floating(dst, "convert");
  if (src.layout() != dst.layout()) {
    reorder(src, dst);
  } else if (src.dtype() == dst.dtype()) {
    dst.copy_from(src);
  } else if (src.dtype() == DType::f32) {
    HEDDLE_DISPATCH(src.device(), cast(src.data<float>(), dst.data<bfloat16>(), src.size()));
  } else {
    HEDDLE_DISPATCH(src.device(), cast(src.data<bfloat16>(), dst.data<float>(), src.size()));
  }
}

Tensor converted(const Tensor& src, DType dtype, Layout layout) {
  if (src.dtype() == dtype && src.layout() == layout) return src;
  Tensor out = Tensor::empty_on(src.device(), src.shape(), dtype, layout);
  convert(src, out);
  return out;
}

double sum(const Tensor& x) { return HEDDLE_DISPATCH(x.device(), sum(x.data<float>(), x.size())); }

double squared_norm(const Tensor& x) {
  return HEDDLE_DISPATCH(x.device(), squared_norm(x.data<float>(), x.size()));
}

double norm(const Tensor& x) { return std::sqrt(squared_norm(x)); }

bool all_finite(const Tensor& x) {
  return HEDDLE_DISPATCH(x.device(), all_finite(x.data<float>(), x.size()));
}

void sum_rows(const Tensor& x, const Tensor& out, float beta) {
  auto [rows, columns] = dims<2>(x, "sum_rows");
  check_shape(out, {columns}, "sum_rows output");
  check_floating(x, "sum_rows");
  with_type(x, [&, rows = rows, columns = columns]<class T>() {
    HEDDLE_DISPATCH(x.device(), sum_rows(x.data<T>(), out.data<float>(), rows, columns, beta));
  });
}

void repeat_row(const Tensor& row, const Tensor& out) {
  auto [rows, columns] = dims<2>(out, "repeat_row");
  check_shape(row, {columns}, "repeat_row row");
  HEDDLE_DISPATCH(out.device(), repeat_row(row.data<float>(), out.data<float>(), rows, columns));
}

void add_row(const Tensor& row, const Tensor& x) {
  auto [rows, columns] = dims<2>(x, "add_row");
  check_shape(row, {columns}, "add_row row");
  check_floating(x, "add_row");
  with_type(x, [&, rows = rows, columns = columns]<class T>() {
    HEDDLE_DISPATCH(x.device(), add_row(row.data<float>(), x.data<T>(), rows, columns));
  });
}

}  // namespace heddle
