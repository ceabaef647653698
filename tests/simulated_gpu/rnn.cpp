// The simulated GPU's cuDNN LSTM: one layer, one direction, fp32, sequences of one length. Its
// weights have a layout found nowhere else, so that no caller can guess it; it refuses 13 hidden
// units. It is slow with 11 units (forward) and 9 (backward), the standard algorithm's forward pass
// also with 10, 12 and 14. A persistent algorithm exists for these three; with 14 units it cannot
// be recorded.
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "tests/simulated_gpu/cudnn_types.h"
#include "tests/simulated_gpu/device.h"

using namespace simulated;

struct cudnnDropoutStruct {};
struct cudnnRNNStruct {
  int64_t in = 0, hidden = 0;
  cudnnRNNAlgo_t algorithm = CUDNN_RNN_ALGO_STANDARD;

  // In floats. Of each gate the recurrent rows, three unused floats and the bias; then the input's
  // rows of all gates, and their biases from the last gate to the first.
  int64_t recurrent(int gate) const { return gate * (hidden * hidden + 3 + hidden); }
  int64_t recurrent_bias(int gate) const { return recurrent(gate) + hidden * hidden + 3; }
  int64_t input(int gate) const { return recurrent(4) + gate * hidden * in; }
  int64_t input_bias(int gate) const { return input(4) + (3 - gate) * hidden; }
  int64_t weights() const { return input(4) + 4 * hidden; }
};
struct cudnnRNNDataStruct {
  int64_t steps = 0, batch = 0, width = 0;
  size_t bytes() const { return static_cast<size_t>(steps * batch * width) * 4; }
};

namespace {

constexpr int64_t kKept = 5;  // values of a unit and step in the reserve: i, f, g, o, c
constexpr size_t kWorkspace = 4096;

// One call: its stream, its network and its sizes.
struct Layer {
  Stream* stream;
  cudnnRNNStruct rnn;
  int64_t steps, batch;

  size_t state_bytes() const { return static_cast<size_t>(batch * rnn.hidden) * 4; }
  size_t reserve_bytes() const {
    return static_cast<size_t>(steps * batch * rnn.hidden * kKept) * 4;
  }
  int64_t place(int64_t t, int64_t b) const { return (t * batch + b) * rnn.hidden; }
};

bool describe(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, cudnnRNNDataDescriptor_t x,
              cudnnRNNDataDescriptor_t y, cudnnTensorDescriptor_t h, cudnnTensorDescriptor_t c,
              Layer& out) {
  out = {find(handle->stream), *rnn, x->steps, x->batch};
  const auto is_state = [&](cudnnTensorDescriptor_t d) {
    return d->size == std::array<int64_t, 4>{1, out.batch, rnn->hidden, 1} && !d->half;
  };
  return out.stream != nullptr && out.stream->device == current_device() && x->width == rnn->in &&
         y->width == rnn->hidden && y->steps == x->steps && y->batch == x->batch && is_state(h) &&
         is_state(c);
}

struct Memory {
  const void* p;
  size_t bytes;
};

bool there(const Layer& layer, std::initializer_list<Memory> all) {
  for (const Memory& m : all)
    if (!on_device(m.p, m.bytes, layer.stream->device)) return false;
  return true;
}

bool fit_spaces(const Layer& layer, size_t weights, const void* weight_space, size_t workspace,
                void* work, size_t reserve, void* kept) {
  return weights == static_cast<size_t>(layer.rnn.weights()) * 4 && workspace >= kWorkspace &&
         reserve >= layer.reserve_bytes() &&
         there(layer, {{weight_space, weights}, {work, kWorkspace}, {kept, reserve}});
}

float sigmoid(float v) { return 1.0f / (1.0f + std::exp(-v)); }

}  // namespace

cudnnStatus_t cudnnCreateDropoutDescriptor(cudnnDropoutDescriptor_t* made) {
  *made = new cudnnDropoutStruct;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroyDropoutDescriptor(cudnnDropoutDescriptor_t d) {
  delete d;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetDropoutDescriptor(cudnnDropoutDescriptor_t, cudnnHandle_t, float p, void*,
                                        size_t, unsigned long long) {
  return p == 0 ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED;
}
cudnnStatus_t cudnnCreateRNNDescriptor(cudnnRNNDescriptor_t* made) {
  *made = new cudnnRNNStruct;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroyRNNDescriptor(cudnnRNNDescriptor_t d) {
  delete d;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetRNNDescriptor_v8(cudnnRNNDescriptor_t d, cudnnRNNAlgo_t algorithm,
                                       cudnnRNNMode_t mode, cudnnRNNBiasMode_t bias,
                                       cudnnDirectionMode_t direction, cudnnRNNInputMode_t input,
                                       cudnnDataType_t type, cudnnDataType_t compute,
                                       cudnnMathType_t math, int32_t in, int32_t hidden,
                                       int32_t projected, int32_t layers,
                                       cudnnDropoutDescriptor_t dropout, uint32_t flags) {
  if (in <= 0 || hidden <= 0 || projected != hidden || dropout == nullptr)
    return CUDNN_STATUS_BAD_PARAM;
  const bool persistent =
      (algorithm == CUDNN_RNN_ALGO_PERSIST_STATIC && (hidden == 10 || hidden == 14)) ||
      (algorithm == CUDNN_RNN_ALGO_PERSIST_STATIC_SMALL_H && hidden == 12);
  if ((algorithm != CUDNN_RNN_ALGO_STANDARD && !persistent) || mode != CUDNN_LSTM ||
      bias != CUDNN_RNN_DOUBLE_BIAS || direction != CUDNN_UNIDIRECTIONAL ||
      input != CUDNN_LINEAR_INPUT || type != CUDNN_DATA_FLOAT || compute != CUDNN_DATA_FLOAT ||
      (math != CUDNN_FMA_MATH && math != CUDNN_DEFAULT_MATH) || layers != 1 ||
      flags != CUDNN_RNN_PADDED_IO_DISABLED || hidden == 13)
    return CUDNN_STATUS_NOT_SUPPORTED;
  *d = {in, hidden, algorithm};
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnCreateRNNDataDescriptor(cudnnRNNDataDescriptor_t* made) {
  *made = new cudnnRNNDataStruct;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroyRNNDataDescriptor(cudnnRNNDataDescriptor_t d) {
  delete d;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetRNNDataDescriptor(cudnnRNNDataDescriptor_t d, cudnnDataType_t type,
                                        cudnnRNNDataLayout_t layout, int steps, int batch,
                                        int width, const int lengths[], void*) {
  if (steps <= 0 || batch <= 0 || width <= 0) return CUDNN_STATUS_BAD_PARAM;
  for (int b = 0; b < batch; ++b)
    if (lengths[b] != steps) return CUDNN_STATUS_NOT_SUPPORTED;
  if (type != CUDNN_DATA_FLOAT || layout != CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED)
    return CUDNN_STATUS_NOT_SUPPORTED;
  *d = {steps, batch, width};
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t d, cudnnDataType_t type, int axes,
                                         const int size[], const int step[]) {
  if (axes != 3 || step[2] != 1 || step[1] != size[2] || step[0] != size[1] * size[2])
    return CUDNN_STATUS_NOT_SUPPORTED;
  return d->set(CUDNN_TENSOR_NCHW, type, size[0], size[1], size[2], 1) ? CUDNN_STATUS_SUCCESS
                                                                       : CUDNN_STATUS_BAD_PARAM;
}

cudnnStatus_t cudnnGetRNNTempSpaceSizes(cudnnHandle_t, cudnnRNNDescriptor_t rnn,
                                        cudnnForwardMode_t mode, cudnnRNNDataDescriptor_t x,
                                        size_t* workspace, size_t* reserve) {
  if (mode != CUDNN_FWD_MODE_TRAINING) return CUDNN_STATUS_NOT_SUPPORTED;
  *workspace = kWorkspace;
  *reserve = Layer{nullptr, *rnn, x->steps, x->batch}.reserve_bytes();
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetRNNWeightSpaceSize(cudnnHandle_t, cudnnRNNDescriptor_t rnn, size_t* bytes) {
  *bytes = static_cast<size_t>(rnn->weights()) * 4;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetRNNWeightParams(cudnnHandle_t, cudnnRNNDescriptor_t rnn, int32_t layer,
                                      size_t bytes, const void* space, int32_t id,
                                      cudnnTensorDescriptor_t matrix, void** rows,
                                      cudnnTensorDescriptor_t bias, void** shift) {
  if (layer != 0 || id < 0 || id > 7 || bytes != static_cast<size_t>(rnn->weights()) * 4)
    return CUDNN_STATUS_BAD_PARAM;
  auto* at = static_cast<float*>(const_cast<void*>(space));
  const bool input = id < 4;
  *rows = at + (input ? rnn->input(id) : rnn->recurrent(id - 4));
  *shift = at + (input ? rnn->input_bias(id) : rnn->recurrent_bias(id - 4));
  const auto hidden = static_cast<int>(rnn->hidden);
  matrix->set(CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, 1, hidden,
              static_cast<int>(input ? rnn->in : rnn->hidden), 1);
  bias->set(CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, 1, hidden, 1, 1);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnRNNForward(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn,
                              cudnnForwardMode_t mode, const int32_t lengths[],
                              cudnnRNNDataDescriptor_t x_is, const void* x_at,
                              cudnnRNNDataDescriptor_t y_is, void* y_at,
                              cudnnTensorDescriptor_t h_is, const void* hx_at, void* hy_at,
                              cudnnTensorDescriptor_t c_is, const void* cx_at, void* cy_at,
                              size_t weights, const void* weights_at, size_t workspace,
                              void* workspace_at, size_t reserve, void* reserve_at) {
  const auto held = lock();
  Layer l;
  if (!describe(handle, rnn, x_is, y_is, h_is, c_is, l) || mode != CUDNN_FWD_MODE_TRAINING)
    return CUDNN_STATUS_BAD_PARAM;
  const size_t state = l.state_bytes();
  if (!there(l, {{x_at, x_is->bytes()},
                 {y_at, y_is->bytes()},
                 {hx_at, state},
                 {hy_at, state},
                 {cx_at, state},
                 {cy_at, state},
                 {lengths, static_cast<size_t>(l.batch) * 4}}) ||
      !fit_spaces(l, weights, weights_at, workspace, workspace_at, reserve, reserve_at))
    return CUDNN_STATUS_BAD_PARAM;
  if (rnn->hidden == 14 && rnn->algorithm != CUDNN_RNN_ALGO_STANDARD && l.stream->recording)
    return CUDNN_STATUS_NOT_SUPPORTED;
  put_done(l.stream, [=] {
    const auto *x = static_cast<const float*>(x_at), *w = static_cast<const float*>(weights_at);
    auto *y = static_cast<float*>(y_at), *kept = static_cast<float*>(reserve_at);
    const bool fast = l.rnn.hidden > 14 || l.rnn.hidden == 9;
    if (!fast && l.rnn.algorithm == CUDNN_RNN_ALGO_STANDARD) pass_time(100);
    std::memset(workspace_at, 0xff, kWorkspace);
    std::vector<float> h(static_cast<size_t>(l.batch * l.rnn.hidden)), c(h.size());
    std::memcpy(h.data(), hx_at, l.state_bytes());
    std::memcpy(c.data(), cx_at, l.state_bytes());
    for (int64_t t = 0; t < l.steps; ++t) {
      const std::vector<float> before = h;
      for (int64_t b = 0; b < l.batch; ++b)
        for (int64_t j = 0; j < l.rnn.hidden; ++j) {
          float gate[4];
          for (int g = 0; g < 4; ++g) {
            float sum = w[l.rnn.input_bias(g) + j] + w[l.rnn.recurrent_bias(g) + j];
            for (int64_t k = 0; k < l.rnn.in; ++k)
              sum += x[(t * l.batch + b) * l.rnn.in + k] * w[l.rnn.input(g) + j * l.rnn.in + k];
            for (int64_t k = 0; k < l.rnn.hidden; ++k)
              sum += before[static_cast<size_t>(l.place(0, b) + k)] *
                     w[l.rnn.recurrent(g) + j * l.rnn.hidden + k];
            gate[g] = g == 2 ? std::tanh(sum) : sigmoid(sum);
          }
          const auto unit = static_cast<size_t>(l.place(0, b) + j);
          c[unit] = gate[1] * c[unit] + gate[0] * gate[2];
          h[unit] = gate[3] * std::tanh(c[unit]);
          if (lengths[b] != l.steps) h[unit] = std::numeric_limits<float>::quiet_NaN();
          y[l.place(t, b) + j] = h[unit];
          float* keep = kept + (l.place(t, b) + j) * kKept;
          for (int g = 0; g < 4; ++g) keep[g] = gate[g];
          keep[4] = c[unit];
        }
    }
    std::memcpy(hy_at, h.data(), l.state_bytes());
    std::memcpy(cy_at, c.data(), l.state_bytes());
  });
  return CUDNN_STATUS_SUCCESS;
}

// Leaves the gradients of the gates in the reserve, where cudnnRNNBackwardWeights finds them.
cudnnStatus_t cudnnRNNBackwardData_v8(
    cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, const int32_t lengths[],
    cudnnRNNDataDescriptor_t y_is, const void* y_at, const void* dy_at,
    cudnnRNNDataDescriptor_t x_is, void* dx_at, cudnnTensorDescriptor_t h_is, const void* hx_at,
    const void* dhy_at, void* dhx_at, cudnnTensorDescriptor_t c_is, const void* cx_at,
    const void* dcy_at, void* dcx_at, size_t weights, const void* weights_at, size_t workspace,
    void* workspace_at, size_t reserve, void* reserve_at) {
  const auto held = lock();
  Layer l;
  if (!describe(handle, rnn, x_is, y_is, h_is, c_is, l)) return CUDNN_STATUS_BAD_PARAM;
  if (dhy_at != nullptr || dhx_at != nullptr || dcy_at != nullptr || dcx_at != nullptr)
    return CUDNN_STATUS_NOT_SUPPORTED;
  const size_t state = l.state_bytes();
  if (!there(l, {{y_at, y_is->bytes()},
                 {dy_at, y_is->bytes()},
                 {dx_at, x_is->bytes()},
                 {hx_at, state},
                 {cx_at, state},
                 {lengths, static_cast<size_t>(l.batch) * 4}}) ||
      !fit_spaces(l, weights, weights_at, workspace, workspace_at, reserve, reserve_at))
    return CUDNN_STATUS_BAD_PARAM;
  put_done(l.stream, [=] {
    const auto *dy = static_cast<const float*>(dy_at), *w = static_cast<const float*>(weights_at),
               *cx = static_cast<const float*>(cx_at);
    auto *dx = static_cast<float*>(dx_at), *kept = static_cast<float*>(reserve_at);
    if (l.rnn.hidden == 9) pass_time(100);
    std::memset(workspace_at, 0xff, kWorkspace);
    const auto units = static_cast<size_t>(l.batch * l.rnn.hidden);
    std::vector<float> dh(units, 0.0f), dc(units, 0.0f);
    for (int64_t t = l.steps - 1; t >= 0; --t) {
      for (int64_t b = 0; b < l.batch; ++b)
        for (int64_t j = 0; j < l.rnn.hidden; ++j) {
          const auto unit = static_cast<size_t>(l.place(0, b) + j);
          float* keep = kept + (l.place(t, b) + j) * kKept;
          const float i = keep[0], f = keep[1], g = keep[2], o = keep[3], c = std::tanh(keep[4]);
          const float before = t == 0 ? cx[unit] : kept[(l.place(t - 1, b) + j) * kKept + 4];
          const float d = dh[unit] + dy[l.place(t, b) + j], cell = dc[unit] + d * o * (1 - c * c);
          keep[0] = cell * g * i * (1 - i);
          keep[1] = cell * before * f * (1 - f);
          keep[2] = cell * i * (1 - g * g);
          keep[3] = d * c * o * (1 - o);
          dc[unit] = cell * f;
        }
      for (int64_t b = 0; b < l.batch; ++b) {
        const float* gates = kept + l.place(t, b) * kKept;
        const auto back = [&](int64_t width, auto first, int64_t k) {
          float sum = 0;
          for (int g = 0; g < 4; ++g)
            for (int64_t j = 0; j < l.rnn.hidden; ++j)
              sum += gates[j * kKept + g] * w[first(g) + j * width + k];
          return sum;
        };
        for (int64_t k = 0; k < l.rnn.in; ++k)
          dx[(t * l.batch + b) * l.rnn.in + k] = back(
              l.rnn.in, [&](int g) { return l.rnn.input(g); }, k);
        for (int64_t k = 0; k < l.rnn.hidden; ++k)
          dh[static_cast<size_t>(l.place(0, b) + k)] = back(
              l.rnn.hidden, [&](int g) { return l.rnn.recurrent(g); }, k);
      }
    }
  });
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnRNNBackwardWeights_v8(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn,
                                         cudnnWgradMode_t mode, const int32_t lengths[],
                                         cudnnRNNDataDescriptor_t x_is, const void* x_at,
                                         cudnnTensorDescriptor_t h_is, const void* hx_at,
                                         cudnnRNNDataDescriptor_t y_is, const void* y_at,
                                         size_t weights, void* dweights_at, size_t workspace,
                                         void* workspace_at, size_t reserve, void* reserve_at) {
  const auto held = lock();
  Layer l;
  if (!describe(handle, rnn, x_is, y_is, h_is, h_is, l)) return CUDNN_STATUS_BAD_PARAM;
  if (mode != CUDNN_WGRAD_MODE_ADD) return CUDNN_STATUS_NOT_SUPPORTED;
  if (!there(l, {{x_at, x_is->bytes()},
                 {y_at, y_is->bytes()},
                 {hx_at, l.state_bytes()},
                 {lengths, static_cast<size_t>(l.batch) * 4}}) ||
      !fit_spaces(l, weights, dweights_at, workspace, workspace_at, reserve, reserve_at))
    return CUDNN_STATUS_BAD_PARAM;
  put_done(l.stream, [=] {
    const auto *x = static_cast<const float*>(x_at), *y = static_cast<const float*>(y_at),
               *hx = static_cast<const float*>(hx_at),
               *kept = static_cast<const float*>(reserve_at);
    auto* dw = static_cast<float*>(dweights_at);
    std::memset(workspace_at, 0xff, kWorkspace);
    for (int64_t t = 0; t < l.steps; ++t)
      for (int64_t b = 0; b < l.batch; ++b) {
        const float* before = t == 0 ? hx + l.place(0, b) : y + l.place(t - 1, b);
        for (int64_t j = 0; j < l.rnn.hidden; ++j)
          for (int g = 0; g < 4; ++g) {
            const float d = kept[(l.place(t, b) + j) * kKept + g];
            dw[l.rnn.input_bias(g) + j] += d;
            dw[l.rnn.recurrent_bias(g) + j] += d;
            for (int64_t k = 0; k < l.rnn.in; ++k)
              dw[l.rnn.input(g) + j * l.rnn.in + k] += d * x[(t * l.batch + b) * l.rnn.in + k];
            for (int64_t k = 0; k < l.rnn.hidden; ++k)
              dw[l.rnn.recurrent(g) + j * l.rnn.hidden + k] += d * before[k];
          }
      }
  });
  return CUDNN_STATUS_SUCCESS;
}
