// Losses: softmax cross-entropy on class logits, binary cross-entropy, squared error. Each is a
// mean, in nats where it is an entropy.
#pragma once

#include "core/tape.h"

namespace heddle {

struct CrossEntropyOptions {
  float label_smoothing = 0.0f;  // ε: the target is (1-ε) on the label plus ε/C on every class
  // Backward writes the logits' gradient over the logits, which saves a tensor of their size.
  // Nothing may read them afterwards: not the caller, no second loss, nor the closure of the layer
  // that made them (linear does not; an LSTM or a ReLU does).
  bool overwrite_logits = false;
};

// logits (..., C) f32, labels (...) i32 in [0, C) -> scalar, on the logits' device.
// loss = mean over samples of -sum_c target[c] * log softmax(logits)[c].
// Throws InputError for a label out of range, except for labels on a GPU: check those before they
// are copied there.
Var softmax_cross_entropy(Tape& tape, const Var& logits, const Tensor& labels,
                          const CrossEntropyOptions& options = {});

// Returns the mean over elements of (a - b)^2; a and b of one shape, f32. Both receive gradients,
// if they need any. Throws InputError for other shapes or types, and for empty ones.
Var mse_loss(Tape& tape, const Var& a, const Var& b);

// Returns the mean over elements of max(z, 0) - z t + log(1 + e^-|z|): the binary cross-entropy of
// sigmoid(z) against t, which does not overflow. Logits z and targets t in [0, 1] of one shape,
// f32, on one device. Throws InputError for other shapes or types, and for empty ones.
Var bce_with_logits(Tape& tape, const Var& logits, const Tensor& targets);

// Returns how many samples have their label among the k largest logits; ties count against it.
int64_t count_top_k(const Tensor& logits, const Tensor& labels, int64_t k);

}  // namespace heddle
