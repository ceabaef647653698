// Kernels of the GRU, shared between CPU and CUDA: one cell for a batch, forward and backward.
#include "core/math.h"
#include "core/shared_kernel.h"
#include "layers/backend.h"

namespace heddle::HEDDLE_BACKEND {
namespace {

struct GruForward {
  float *gates, *recurrent;
  const float *bias_ih, *bias_hh, *before;
  float* after;
  int64_t hidden;
  HEDDLE_HD void operator()(int64_t b, int64_t j) const {
    float *x = gates + b * 3 * hidden + j, *h = recurrent + b * 3 * hidden + j;
    const float *shift = bias_ih + j, *own = bias_hh + j;
    const float r = sigmoid_of(x[0] + shift[0] + h[0] + own[0]);
    const float z = sigmoid_of(x[hidden] + shift[hidden] + h[hidden] + own[hidden]);
    const float part = h[2 * hidden] + own[2 * hidden];
    const float n = tanh_of(x[2 * hidden] + shift[2 * hidden] + r * part);
    x[0] = r;
    x[hidden] = z;
    x[2 * hidden] = n;
    h[2 * hidden] = part;
    after[b * hidden + j] = (1.0f - z) * n + z * before[b * hidden + j];
  }
};

// With dh = dy + the gradient from step t + 1:
//   dn = dh (1 - z) (1 - n^2),  dz = dh (h_{t-1} - n) z (1 - z),  dr = dn part r (1 - r);
// the recurrent product's third part gets dn r, and step t - 1 gets dh z besides its product.
template <class T>
struct GruBackward {
  const float *gates, *recurrent, *before;
  const T* dy;
  float* dh;
  T *dgates, *drecurrent;
  int64_t hidden;
  HEDDLE_HD void operator()(int64_t b, int64_t j) const {
    const float* gate = gates + b * 3 * hidden + j;
    const float r = gate[0], z = gate[hidden], n = gate[2 * hidden];
    const float part = recurrent[b * 3 * hidden + 2 * hidden + j];
    const int64_t at = b * hidden + j;
    const float d = to_float(dy[at]) + dh[at], dn = d * (1.0f - z) * (1.0f - n * n);
    const float dr = dn * part * r * (1.0f - r), dz = d * (before[at] - n) * z * (1.0f - z);
    T *dx = dgates + b * 3 * hidden + j, *own = drecurrent + b * 3 * hidden + j;
    dx[0] = own[0] = T(dr);
    dx[hidden] = own[hidden] = T(dz);
    dx[2 * hidden] = T(dn);
    own[2 * hidden] = T(dn * r);
    dh[at] = d * z;
  }
};

}  // namespace

void gru_cell_forward(const Tensor& gates, const Tensor& recurrent, const Tensor& bias_ih,
                      const Tensor& bias_hh, const Tensor& before, const Tensor& after) {
  const int64_t hidden = after.shape()[1];
  for_each_in_grid(
      after.shape()[0], hidden,
      GruForward{gates.data<float>(), recurrent.data<float>(), bias_ih.data<float>(),
                 bias_hh.data<float>(), before.data<float>(), after.data<float>(), hidden});
}

void gru_cell_backward(const GruCellBackward& a) {
  const int64_t hidden = a.dh.shape()[1];
  with_type(a.dy, [&]<class T>() {
    for_each_in_grid(a.dh.shape()[0], hidden,
                     GruBackward<T>{a.gates.data<float>(), a.recurrent.data<float>(),
                                    a.before.data<float>(), a.dy.data<T>(), a.dh.data<float>(),
                                    a.dgates.data<T>(), a.drecurrent.data<T>(), hidden});
  });
}

}  // namespace heddle::HEDDLE_BACKEND
