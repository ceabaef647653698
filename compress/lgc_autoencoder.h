// GradientAutoencoder: the network of LGC (lgc.cpp). An encoder E turns a sequence of values into a
// code of a quarter of their number, a decoder D turns a code into values again, both by
// convolutions along the sequence. The tape trains them; encode() and decode() are plain loops
// whose sums have a fixed order, so that a code means the same bits on all ranks.
//
//   values, padded with zeros     16 m + 15
//   code                          m positions of 4 channels
//   decoded values                16 m + 15
//
//   GradientAutoencoder autoencoder(GradientAutoencoder::Kind::linear, seed);
//   const Tensor code = autoencoder.encode(x);          // x (k) -> (4 m)
//   const Tensor again = autoencoder.decode(code);      // (16 m + 15), of which k count
#pragma once

#include <cstdint>
#include <vector>

#include "compress/reducer.h"
#include "core/tape.h"

namespace heddle {

// One object per rank; not thread-safe. All tensors are f32 on the host, and so is the network,
// whatever the device of the thread's Context.
class GradientAutoencoder {
 public:
  // paper: five layers each way, 216,677 weights. linear: one layer each way, 248 weights, without
  // activations, so that the mean of codes decodes to the mean of what they decode to, and without
  // biases, which would be subtracted from a residual again and again.
  enum class Kind : uint8_t { paper, linear };

  // Initialises the weights at random, the same for the same seed.
  GradientAutoencoder(Kind kind, uint64_t seed);

  // Returns m for k >= 1 values: the smallest that covers them.
  static int64_t positions(int64_t k);
  static int64_t code_size(int64_t k) { return 4 * positions(k); }
  static int64_t padded(int64_t k) { return 16 * positions(k) + 15; }

  // Returns the code (code_size(k)) of x (k), k >= 1, channel by channel: all positions of the
  // first channel, then those of the second, ...
  Tensor encode(const Tensor& x) const;
  // Returns the values (16 m + 15) that a code (4 m) stands for.
  Tensor decode(const Tensor& code) const;

  struct Fit {
    double error;  // of the decoded mean: ||D(mean of codes) - mean||^2 / ||mean||^2
    double gap;    // ||P D(mean of codes) - sum of D(code)|| / ||P D(mean of codes)||
  };
  // Performs one Adam step on x (P, k), the values of all ranks, whose mean is not zero, and
  // returns the fit before it. If a weight is then non-finite or larger than 100 in magnitude,
  // restores the weights and resets Adam. The loss is the squared error of the decoded mean plus
  // the mean of the squared errors of the individual rows.
  Fit train(const Tensor& x, double lr);

  // Returns the number of Adam's steps since it began.
  int64_t steps() const { return to_int64(*steps_.data<float>()); }
  // Returns the weights (n), to copy from and into.
  const Tensor& weights() const { return store_.values(); }
  // Returns weights, Adam's moments and its number of steps, for a checkpoint: views.
  NamedTensors named_state() const;

 private:
  struct Layer {
    Parameter *weight,
        *bias;  // (out, in, 1, kernel), transposed (in, out, 1, kernel); (out), or null
    int64_t stride;
    bool transposed, activated;
  };
  struct Sequence;
  Sequence apply(const std::vector<Layer>& layers, Sequence x) const;
  Var record(Tape& tape, const std::vector<Layer>& layers, Var x) const;
  bool sane() const;
  void update(double lr);

  ParameterStore store_;
  std::vector<Layer> encoder_, decoder_;
  Tensor first_, second_;  // Adam's moments, shaped like the weights
  Tensor steps_;           // (1): Adam's steps
};

}  // namespace heddle
