#include "core/kernels.h"

#include <cmath>

#include "core/elementwise.h"
#include "core/onednn.h"
#include "core/shared_kernel.h"

namespace heddle {
namespace {

void check_same(const Tensor& a, const Tensor& b, const char* name) {
  check_form(b, a.form(), name);
  check(a.device() == b.device(), name, ": expected a tensor on ", to_string(a.device()),
        ", found one on ", to_string(b.device()));
}

// Copies src into dst, which has another layout.
void reorder(const Tensor& src, const Tensor& dst) {
#ifdef HEDDLE_CUDA
  if (src.device().is_cuda()) {
    check(src.layout() != Layout::c16 && dst.layout() != Layout::c16,
          "convert: layout c16 exists on the CPU only");
    return cuda::reorder(src, dst, 0.0f);
  }
#endif
  cpu::reorder(src, dst);
}

}  // namespace

void check_floating(const Tensor& x, const std::string& name) {
  check(x.dtype() == DType::f32 || x.dtype() == DType::bf16, name, ": expected f32 or bf16, found ",
        dtype_name(x.dtype()));
}

void check_indices(const Tensor& x, int64_t bound, const std::string& name) {
  check(x.dtype() == DType::i32, name, ": expected i32, found ", dtype_name(x.dtype()));
  if (x.device().is_cuda()) return;
  for (int64_t i = 0; i < x.size(); ++i) {
    const int32_t value = x.data<int32_t>()[i];
    check(value >= 0 && value < bound, name, ": expected 0 to ", bound - 1, " at index ", i,
          ", found ", value);
  }
}

void fill(const Tensor& x, float value) {
  check_floating(x, "fill");
  HEDDLE_DISPATCH(x.device(), fill(x, value));
}

void add(const Tensor& a, const Tensor& b, const Tensor& out) {
  check_floating(a, "add");
  check_same(a, b, "add");
  check_same(a, out, "add");
  HEDDLE_DISPATCH(a.device(), add(a, b, out));
}

void add_to(const Tensor& x, const Tensor& y) { add(x, y, y); }

void axpy(float alpha, const Tensor& x, const Tensor& y) {
  check_same(x, y, "axpy");
  HEDDLE_DISPATCH(x.device(), axpy(alpha, x, y));
}

void scale(const Tensor& x, float factor) {
  check_floating(x, "scale");
  HEDDLE_DISPATCH(x.device(), scale(x, factor));
}

void convert(const Tensor& src, const Tensor& dst) {
  check(src.shape() == dst.shape() && src.device() == dst.device(), "convert: expected ",
        to_string(src.shape()), " on ", to_string(src.device()), ", found ", to_string(dst.shape()),
        " on ", to_string(dst.device()));
  check_floating(src, "convert");
  check_floating(dst, "convert");
  if (src.layout() != dst.layout()) {
    reorder(src, dst);
  } else if (src.dtype() == dst.dtype()) {
    dst.copy_from(src);
  } else {
    HEDDLE_DISPATCH(src.device(), cast(src, dst));
  }
}

Tensor converted(const Tensor& src, DType dtype, Layout layout) {
  if (src.dtype() == dtype && src.layout() == layout) return src;
  Tensor out = Tensor::empty_on(src.device(), src.shape(), dtype, layout);
  convert(src, out);
  return out;
}

double sum(const Tensor& x) { return HEDDLE_DISPATCH(x.device(), sum(x)); }

double squared_norm(const Tensor& x) { return HEDDLE_DISPATCH(x.device(), squared_norm(x)); }

double norm(const Tensor& x) { return std::sqrt(squared_norm(x)); }

bool all_finite(const Tensor& x) { return HEDDLE_DISPATCH(x.device(), all_finite(x)); }

void sum_rows(const Tensor& x, const Tensor& out, float beta) {
  check_shape(out, {dims<2>(x, "sum_rows")[1]}, "sum_rows output");
  check_floating(x, "sum_rows");
  HEDDLE_DISPATCH(x.device(), sum_rows(x, out, beta));
}

void repeat_row(const Tensor& row, const Tensor& out) {
  check_shape(row, {dims<2>(out, "repeat_row")[1]}, "repeat_row row");
  HEDDLE_DISPATCH(out.device(), repeat_row(row, out));
}

void add_row(const Tensor& row, const Tensor& x) {
  check_shape(row, {dims<2>(x, "add_row")[1]}, "add_row row");
  check_floating(x, "add_row");
  HEDDLE_DISPATCH(x.device(), add_row(row, x));
}

}  // namespace heddle
