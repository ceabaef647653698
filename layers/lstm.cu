// Kernels of the LSTM, shared between CPU and CUDA: one cell for a batch, forward and backward.
#include "core/math.h"
#include "core/shared_kernel.h"
#include "layers/backend.h"

namespace heddle::HEDDLE_BACKEND {
namespace {

// gates (B, 4H): the sum of both products before, i, f, g, o after.
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

// With dh_t = dy_t + the gradient from step t + 1, and dc likewise:
//   do = dh tanh(c),  dc += dh o (1 - tanh(c)^2),  di = dc g,  dg = dc i,  df = dc c_{t-1}
// times each gate's own derivative; dc f is passed to step t - 1. dgates may alias gates.
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
    const float t = tanh_of(c[at]), dh_all = to_float(dy[at]) + dh[at];
    const float dc_all = dc[at] + dh_all * o * (1.0f - t * t);
    T* d = dgates + b * 4 * hidden + j;
    d[0] = T(dc_all * g * i * (1.0f - i));
    d[hidden] = T(dc_all * c_before[at] * f * (1.0f - f));
    d[2 * hidden] = T(dc_all * i * (1.0f - g * g));
    d[3 * hidden] = T(dh_all * t * o * (1.0f - o));
    dc[at] = dc_all * f;
  }
};

}  // namespace

void lstm_cell_forward(const Tensor& gates, const Tensor& bias, const Tensor& c_before,
                       const Tensor& c, const Tensor& h) {
  const int64_t hidden = bias.size() / 4;
  with_type(h, [&]<class T>() {
    for_each_in_grid(h.size() / hidden, hidden,
                     CellForward<T>{gates.data<float>(), bias.data<float>(), c_before.data<float>(),
                                    c.data<float>(), h.data<T>(), hidden});
  });
}

void lstm_cell_backward(const LstmCellBackward& a) {
  const int64_t hidden = a.dc.shape()[1];
  with_type(a.dy, [&]<class T>() {
    for_each_in_grid(a.dc.shape()[0], hidden,
                     CellBackward<T>{a.gates.data<float>(), a.c_before.data<float>(),
                                     a.c.data<float>(), a.dy.data<T>(), a.dh.data<float>(),
                                     a.dc.data<float>(), a.dgates.data<T>(), hidden});
  });
}

}  // namespace heddle::HEDDLE_BACKEND
