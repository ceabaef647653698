// The kernels of core/kernels.h on each backend, with the same contracts; arguments are not checked
// here. Internal to core and to the backends of layers.
#pragma once

#include "core/tensor.h"

namespace heddle {

namespace cpu {
void fill(const Tensor& x, float value);
void add(const Tensor& a, const Tensor& b, const Tensor& out);
void scale(const Tensor& x, float factor);
void cast(const Tensor& src, const Tensor& dst);
void axpy(float alpha, const Tensor& x, const Tensor& y);
double sum(const Tensor& x);
double squared_norm(const Tensor& x);
bool all_finite(const Tensor& x);
void sum_rows(const Tensor& x, const Tensor& out, float beta);
void repeat_row(const Tensor& row, const Tensor& out);
void add_row(const Tensor& row, const Tensor& x);
}  // namespace cpu

namespace cuda {
void fill(const Tensor& x, float value);
void add(const Tensor& a, const Tensor& b, const Tensor& out);
void scale(const Tensor& x, float factor);
void cast(const Tensor& src, const Tensor& dst);
void axpy(float alpha, const Tensor& x, const Tensor& y);
double sum(const Tensor& x);
double squared_norm(const Tensor& x);
bool all_finite(const Tensor& x);
void sum_rows(const Tensor& x, const Tensor& out, float beta);
void repeat_row(const Tensor& row, const Tensor& out);
void add_row(const Tensor& row, const Tensor& x);

// Computes dst = src + beta * dst for (N, C, H, W) in different layouts, plain and channels last,
// of any two floating types. The CPU has oneDNN's reorder for this.
void reorder(const Tensor& src, const Tensor& dst, float beta);
}  // namespace cuda

}  // namespace heddle
