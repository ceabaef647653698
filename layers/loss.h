// Losses: softmax cross-entropy on class logits, binary cross-entropy, squared error. Each is a
// mean, the cross-entropies in nats.
#pragma once

#include "core/tape.h"

namespace heddle {

struct CrossEntropyOptions {
  float label_smoothing = 0.0f;  // ε: the target is (1-ε) on the label plus ε/C on every class
  // Backward writes the logits' gradient over the logits, which saves a tensor of their size.
  // Nothing may read them afterwards: neither the caller, nor a second loss, nor the closure of
  // the layer that made them (linear does not; an LSTM or a ReLU does).
  bool overwrite_logits = false;
};

// Returns the mean over samples of -sum_c target[c] * log softmax(logits)[c]: logits (..., C) f32,
// labels (...) i32 in [0, C) -> scalar on the logits' device. Throws InputError for shapes or types
// that do not fit, empty logits, a smoothing outside [0, 1) and a label out of range; labels on a
// GPU are not checked: check those before they are copied there.
Var softmax_cross_entropy(Tape& tape, const Var& logits, const Tensor& labels,
                          const CrossEntropyOptions& options = {});

// Returns the mean over elements of (a - b)^2: a and b f32, of one shape, on one device. Both
// receive gradients, if they need any. Throws InputError if shapes or devices differ, for other
// types, and for empty tensors.
Var mse_loss(Tape& tape, const Var& a, const Var& b);

// Returns the mean over elements of max(z, 0) - z t + log(1 + e^-|z|): the binary cross-entropy of
// sigmoid(z) against t, in a form that does not overflow. Logits z and targets t f32, of one shape;
// targets on any device. They receive no gradient, and are not checked to lie in [0, 1]. Throws
// InputError as mse_loss() does.
Var bce_with_logits(Tape& tape, const Var& logits, const Tensor& targets);

// Returns how many samples have their label among the k largest logits: logits (N, C) f32 on any
// device, labels (N) i32 on the host. Ties and NaN count as larger. Throws InputError for shapes
// that do not fit and a label out of range.
int64_t count_top_k(const Tensor& logits, const Tensor& labels, int64_t k);

}  // namespace heddle
