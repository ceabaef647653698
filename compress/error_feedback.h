// Error feedback: what was not sent is kept in a residual and added to the next gradient (Seide et
// al. 2014; Karimireddy et al. 2019), here with ScaleCom's low-pass filter (arXiv 2104.11125,
// equation 3):  m <- (1 - beta) m + beta (m + g - sent).  An element that was not sent gains
// beta g, one that was sent keeps (1 - beta) m, and at any time, for constant beta,
//   sum of what was sent + m / beta = sum of the gradients.
//
//   ErrorFeedback feedback(0.1);
//   const Tensor x = feedback.accumulate(name, g, 100).x;  // m + g; the old m waits in g
//   feedback.keep_unsent(name, g, indices);          // if the step counts
//   feedback.restore(name, g);                       // if it does not
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "compress/codecs/select.h"
#include "core/tensor.h"

namespace heddle {

// A gradient with its residual, on the gradient's device.
struct Accumulated {
  Tensor x;           // (n), the residual's memory
  Tensor indices;     // (chunks) i32: of every chunk the element with the largest |x|
  Tensor magnitudes;  // (chunks) i32: its magnitude, as in magnitude.h; above infinity for NaN
};

class ErrorFeedback {
 public:
  explicit ErrorFeedback(double beta = 1) : beta_(beta) {}  // in (0, 1]

  double beta() const { return beta_; }

  bool holds(const std::string& name) const { return residuals_.contains(name); }
  // (n) f32, zero at first use. It lies where it was used last, and moves when it is asked for
  // elsewhere.
  Tensor residual(const std::string& name, int64_t n, Device device = {});
  // x += m.
  void compensate(const std::string& name, const Tensor& x);
  // x = m + g takes the place of m, and m that of g (n), in one pass that finds the largest of
  // every chunk on its way. Whatever is left in x then is the residual.
  Accumulated accumulate(const std::string& name, const Tensor& g, int64_t chunk);
  // The residual after x was sent at these indices (k) i32. Leaves zeros in g, which held m.
  void keep_unsent(const std::string& name, const Tensor& g, const Tensor& sent);
  // The residual as it was before accumulate, which g holds.
  void restore(const std::string& name, const Tensor& g);
  // Adds what was not applied to the residual: m += beta * share * x.
  void return_unapplied(const std::string& name, const Tensor& x, double share);
  // The residual after m + g was sent whole: (1 - beta) m, as of any element that was sent. Once it
  // is nothing it is not held any more, and costs nothing where layers travel dense.
  void mark_sent_whole(const std::string& name);

 private:
  double beta_;
  std::map<std::string, Tensor> residuals_;
};

}  // namespace heddle
