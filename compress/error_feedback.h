// Error feedback: what was not sent is kept in a residual and added to the next gradient (Seide et
// al. 2014; Karimireddy et al. 2019), here with ScaleCom's low-pass filter (arXiv 2104.11125,
// equation 3):
//
//   m <- (1 - beta) m + beta (m + g - sent)
//
// An element that was not sent gains beta g, one that was sent keeps (1 - beta) m, and at any time,
// for constant beta, sum of what was sent + m / beta = sum of the gradients.
//
// A layer needs no memory besides the gradient's and the residual's: compensate_swapping() lets
// them change roles.
//
//                           gradient's memory          residual's memory
//   before                  g                          m
//   compensate_swapping()   m, the old residual        x = m + g, to be encoded
//   keep_unsent()           0, then the sum            x without what was sent: the new residual
//   or restore()            m                          m, as if nothing had happened
//
//   const Compensated all = feedback.compensate_swapping(name, g, 100);
//   feedback.keep_unsent(name, all.old_residual, indices);   // the bucket was accepted
//   feedback.restore(name, all.old_residual);                // it was not
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "core/tensor.h"

namespace heddle {

// A gradient with its residual, on the gradient's device.
struct Compensated {
  Tensor x;             // (n) f32, m + g, in the residual's memory
  Tensor old_residual;  // (n) f32, m, in the gradient's memory
  Tensor indices;       // (chunks) i32: index of the largest |x| of every chunk
  Tensor magnitudes;    // (chunks) i32: that |x| as in codecs/magnitude.h; above infinity for NaN
};

// The residuals of one rank, by parameter. Not thread-safe.
class ErrorFeedback {
 public:
  explicit ErrorFeedback(double beta = 1) : beta_(beta) {}  // in (0, 1]

  double beta() const { return beta_; }

  // Returns whether a residual is kept for the parameter.
  bool holds(const std::string& name) const { return residuals_.contains(name); }
  // Returns the residual's own memory, (n) f32, moved to `device` if necessary; zeros at first use.
  Tensor residual(const std::string& name, int64_t n, Device device = {});
  // Adds the residual to x (n): x += m.
  void compensate(const std::string& name, const Tensor& x);
  // Writes m + g to the residual's memory and m to that of g (n), in one pass that also finds the
  // largest |m + g| of every chunk. x becomes the new residual: whoever encodes it subtracts there
  // what was sent. May be joined with other layers'.
  Compensated compensate_swapping(const std::string& name, const Tensor& g, int64_t chunk);
  // Turns x into the new residual after its elements at these indices (k) i32 were sent, all but
  // `lost` (k) f32 of them where that is defined. Clears old_residual, which is the gradient's
  // memory.
  void keep_unsent(const std::string& name, const Tensor& old_residual, const Tensor& sent,
                   const Tensor& lost = {});
  // Its two halves; each may be joined with other layers' (core/joined_launches.h).
  void remove_sent(const std::string& name, const Tensor& old_residual, const Tensor& sent,
                   const Tensor& lost = {});
  void renew(const std::string& name, const Tensor& old_residual);
  // Makes the residual what it was before compensate_swapping().
  void restore(const std::string& name, const Tensor& old_residual);
  // Adds what was sent but not applied to the residual: m += beta * share * x.
  void return_unapplied(const std::string& name, const Tensor& x, double share);
  // Keeps (1 - beta) m after m + g was sent whole, as for any element that was sent. Drops a
  // residual that is negligible, so that a dense layer costs nothing.
  void mark_sent_whole(const std::string& name);

 private:
  double beta_;
  std::map<std::string, Tensor> residuals_;
};

}  // namespace heddle
