// Kernels of the LSTM, shared between CPU and CUDA: one cell for a batch, forward and backward, and
// the two halves of a bidirectional output.
#include "layers/lstm.h"

#include "core/math.h"
#include "core/shared_kernel.h"

namespace heddle::HEDDLE_BACKEND {
namespace {

// gates (B, 4H) comes as the sum of both products and leaves as i, f, g, o.
template <class T>
struct CellForward {
  float* gates;
  const float *bias, *c_before;
  float* c;
  T* h;
  int64_t hidden;
  HEDDLE_HD void operator()(int64_t b, int64_t j) const {
    float* gate = gates + b * 4 * hidden + j;
    const float* shift = bias + j;
    const float i = sigmoid_of(gate[0] + shift[0]);
    const float f = sigmoid_of(gate[hidden] + shift[hidden]);
    const float g = tanh_of(gate[2 * hidden] + shift[2 * hidden]);
    const float o = sigmoid_of(gate[3 * hidden] + shift[3 * hidden]);
    const float cell = f * c_before[b * hidden + j] + i * g;
    gate[0] = i;
    gate[hidden] = f;
    gate[2 * hidden] = g;
    gate[3 * hidden] = o;
    c[b * hidden + j] = cell;
    h[b * hidden + j] = T(o * tanh_of(cell));
  }
};

// With dh_t = dy_t + what step t + 1 sends back, and dc likewise:
//   do = dh tanh(c),  dc += dh o (1 - tanh(c)^2),  di = dc g,  dg = dc i,  df = dc c_{t-1}
// times each gate's own derivative; dc f goes on to step t - 1. dgates may be the gates' memory.
template <class T>
struct CellBackward {
  const float *gates, *c_before, *c;
  const T* dy;
  const float* dh;
  float* dc;
  T* dgates;
  int64_t hidden;
  HEDDLE_HD void operator()(int64_t b, int64_t j) const {
    const float* gate = gates + b * 4 * hidden + j;
    const float i = gate[0], f = gate[hidden], g = gate[2 * hidden], o = gate[3 * hidden];
    const int64_t at = b * hidden + j;
    const float t = tanh_of(c[at]), dh_all = static_cast<float>(dy[at]) + dh[at];
    const float dc_all = dc[at] + dh_all * o * (1.0f - t * t);
    T* d = dgates + b * 4 * hidden + j;
    d[0] = T(dc_all * g * i * (1.0f - i));
    d[hidden] = T(dc_all * c_before[at] * f * (1.0f - f));
    d[2 * hidden] = T(dc_all * i * (1.0f - g * g));
    d[3 * hidden] = T(dh_all * t * o * (1.0f - o));
    dc[at] = dc_all * f;
  }
};

template <class T>
struct JoinHalves {
  const T *a, *b;
  T* y;
  int64_t width;
  HEDDLE_HD void operator()(int64_t r, int64_t c) const {
    y[r * 2 * width + c] = a[r * width + c];
    y[r * 2 * width + width + c] = b[r * width + c];
  }
};

template <class T>
struct SplitHalves {
  const T* y;
  T *a, *b;
  int64_t width;
  HEDDLE_HD void operator()(int64_t r, int64_t c) const {
    a[r * width + c] = y[r * 2 * width + c];
    b[r * width + c] = y[r * 2 * width + width + c];
  }
};

template <class T>
void cell_forward(const Tensor& gates, const Tensor& bias, const Tensor& c_before, const Tensor& c,
                  const Tensor& h) {
  const int64_t hidden = bias.size() / 4;
  for_each_in_grid(h.size() / hidden, hidden,
                   CellForward<T>{gates.data<float>(), bias.data<float>(), c_before.data<float>(),
                                  c.data<float>(), h.data<T>(), hidden});
}

template <class T>
void cell_backward(const Tensor& gates, const Tensor& c_before, const Tensor& c, const Tensor& dy,
                   const Tensor& dh, const Tensor& dc, const Tensor& dgates) {
  const int64_t hidden = dc.shape()[dc.shape().rank() - 1];
  for_each_in_grid(
      dc.size() / hidden, hidden,
      CellBackward<T>{gates.data<float>(), c_before.data<float>(), c.data<float>(), dy.data<T>(),
                      dh.data<float>(), dc.data<float>(), dgates.data<T>(), hidden});
}

template <class T>
void join(const Tensor& a, const Tensor& b, const Tensor& y) {
  const int64_t width = a.shape()[2];
  for_each_in_grid(a.size() / width, width,
                   JoinHalves<T>{a.data<T>(), b.data<T>(), y.data<T>(), width});
}

template <class T>
void split(const Tensor& y, const Tensor& a, const Tensor& b) {
  const int64_t width = a.shape()[2];
  for_each_in_grid(a.size() / width, width,
                   SplitHalves<T>{y.data<T>(), a.data<T>(), b.data<T>(), width});
}

}  // namespace

void lstm_cell_forward(const Tensor& gates, const Tensor& bias, const Tensor& c_before,
                       const Tensor& c, const Tensor& h) {
  if (h.dtype() == DType::f32)
    cell_forward<float>(gates, bias, c_before, c, h);
  else
    cell_forward<bfloat16>(gates, bias, c_before, c, h);
}

void lstm_cell_backward(const Tensor& gates, const Tensor& c_before, const Tensor& c,
                        const Tensor& dy, const Tensor& dh, const Tensor& dc,
                        const Tensor& dgates) {
  if (dy.dtype() == DType::f32)
    cell_backward<float>(gates, c_before, c, dy, dh, dc, dgates);
  else
    cell_backward<bfloat16>(gates, c_before, c, dy, dh, dc, dgates);
}

void join_halves(const Tensor& a, const Tensor& b, const Tensor& y) {
  if (y.dtype() == DType::f32)
    join<float>(a, b, y);
  else
    join<bfloat16>(a, b, y);
}

void split_halves(const Tensor& y, const Tensor& a, const Tensor& b) {
  if (y.dtype() == DType::f32)
    split<float>(y, a, b);
  else
    split<bfloat16>(y, a, b);
}

}  // namespace heddle::HEDDLE_BACKEND
