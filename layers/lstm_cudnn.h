// An LSTM layer by cuDNN's RNN, which fuses the kernels that layers/lstm.cpp launches one time step
// at a time. fp32 only: in bf16, cuDNN also stores cell states in bf16, which layers/lstm.cpp keeps
// in fp32.
#pragma once

#include <functional>

#include "layers/lstm.h"

namespace heddle::cuda {

// Returns whether cuDNN's forward of this layer (x (T, B, I), state (B, H)) takes no longer than
// `own`: both are timed at a shape's first use. False where the Context may not tune, for other
// types, and for what cuDNN does not support.
bool cudnn_lstm_wins(const Tensor& x, const LstmWeights& weights, const Tensor& h, const Tensor& c,
                     const std::function<void()>& own);

// Does the same as lstm_layer(). Call cudnn_lstm_wins() for this shape first.
Var cudnn_lstm_layer(Tape& tape, const Var& x, const LstmWeights& weights, Tensor& h, Tensor& c);

}  // namespace heddle::cuda
