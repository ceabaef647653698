// Elementwise and reduction kernels on whole tensors. Each checks shapes and types (InputError) and
// dispatches to cpu:: or cuda::. Arithmetic is fp32 for every storage type; f32 and bf16 may be
// mixed only where stated.
#pragma once

#include "core/tensor.h"

namespace heddle {

// Throws InputError unless x is f32 or bf16.
void check_floating(const Tensor& x, const std::string& name);

// Throws InputError unless x is i32 and, if it is on the host, every value is in [0, bound): class
// labels, tokens. Values on a GPU must be checked before they are copied there.
void check_indices(const Tensor& x, int64_t bound, const std::string& name);

// Sets x[i] = value. f32 or bf16.
void fill(const Tensor& x, float value);
// Sets out = a + b, all of one shape, type and layout. f32 or bf16; out may be a or b.
void add(const Tensor& a, const Tensor& b, const Tensor& out);
// Adds x to y, both of one shape, type and layout. f32 or bf16.
void add_to(const Tensor& x, const Tensor& y);
// Adds alpha * x to y, f32.
void axpy(float alpha, const Tensor& x, const Tensor& y);
// Multiplies x by a factor. f32 or bf16.
void scale(const Tensor& x, float factor);
// Sets dst = src between f32 and bf16 and between layouts; equal logical shapes, one device.
void convert(const Tensor& src, const Tensor& dst);
// Returns src in another type or layout; src itself when nothing changes.
Tensor converted(const Tensor& src, DType dtype, Layout layout);

// Reduce an f32 tensor to one number. Sums are accumulated in double over fixed chunks, and so do
// not depend on the number of threads. On a GPU these wait for the stream.
double sum(const Tensor& x);
double squared_norm(const Tensor& x);
double norm(const Tensor& x);      // its square root
bool all_finite(const Tensor& x);  // no NaN, no infinity
// Sets out[c] = beta * out[c] + sum over rows of x (N, C), f32 or bf16 -> (C) f32. With beta 0 the
// old values are not read.
void sum_rows(const Tensor& x, const Tensor& out, float beta);

// Sets every row of out (N, C) to row (C), f32.
void repeat_row(const Tensor& row, const Tensor& out);
// Adds row (C), f32, to every row of x (N, C), f32 or bf16.
void add_row(const Tensor& row, const Tensor& x);

}  // namespace heddle
