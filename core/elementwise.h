// The backend functions behind core/kernels.h: they trust their arguments. Internal.
// to_nhwc and from_nhwc go between (N, C, P) and (N, P, C); from_nhwc keeps beta * dst.
#pragma once

#include <cstdint>

#include "core/bfloat16.h"
#include "core/device.h"

namespace heddle {

#define HEDDLE_ELEMENTWISE                                                                   \
  template <class T>                                                                         \
  void fill(T* x, int64_t n, float value);                                                   \
  template <class T>                                                                         \
  void add(const T* a, const T* b, T* out, int64_t n);                                       \
  template <class T>                                                                         \
  void scale(T* x, int64_t n, float factor);                                                 \
  template <class From, class To>                                                            \
  void cast(const From* src, To* dst, int64_t n);                                            \
  void axpy(float alpha, const float* x, float* y, int64_t n);                               \
  double sum(const float* x, int64_t n);                                                     \
  double squared_norm(const float* x, int64_t n);                                            \
  bool all_finite(const float* x, int64_t n);                                                \
  template <class T>                                                                         \
  void sum_rows(const T* x, float* out, int64_t rows, int64_t columns, float beta);          \
  void repeat_row(const float* row, float* out, int64_t rows, int64_t columns);              \
  template <class T>                                                                         \
  void add_row(const float* row, T* x, int64_t rows, int64_t columns);                       \
  template <class From, class To>                                                            \
  void to_nhwc(const From* src, To* dst, int64_t images, int64_t channels, int64_t pixels);  \
  template <class From, class To>                                                            \
  void from_nhwc(const From* src, To* dst, int64_t images, int64_t channels, int64_t pixels, \
                 float beta);

HEDDLE_BACKENDS(HEDDLE_ELEMENTWISE)
#undef HEDDLE_ELEMENTWISE

}  // namespace heddle
