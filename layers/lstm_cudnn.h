// An LSTM layer by cuDNN's RNN, which fuses the kernels that layers/lstm.cpp launches one time step
// at a time. fp32 only: in bf16, cuDNN also stores cell states in bf16, which layers/lstm.cpp keeps
// in fp32.
#pragma once

#include <functional>

#include "layers/lstm.h"

namespace heddle::cuda {

// lstm_layer(), or an implementation of it.
using LstmLayer = std::function<Var(Tape&, const Var& x, const LstmWeights&, Tensor& h, Tensor& c)>;

// Does the same as lstm_layer(), by `own` or by cuDNN, whichever took less time for forward and
// backward pass when a shape was first used: as a CUDA graph where the tape has counters, which
// then also tries cuDNN's persistent kernels (they keep the recurrent matrix in the
// multiprocessors), else kernel by kernel. By `own` where the Context may not tune, for other
// types, with frozen weights, and for what cuDNN does not support.
Var fastest_lstm_layer(Tape& tape, const Var& x, const LstmWeights& weights, Tensor& h, Tensor& c,
                       const LstmLayer& own);

}  // namespace heddle::cuda
