// QualityMeter: measures what compression does to the gradients of a step. The ranks also sum their
// gradients and residuals densely, and compare the compressed sum with that. This costs as much as
// two dense exchanges (one without residuals), so it is done in some steps only (--shadow).
//
//   QualityMeter meter(reducer);
//   meter.before(bucket, comm, ledger);
//   const bool accepted = reducer.reduce(bucket, comm, ledger);
//   meter.after(comm, ledger, accepted);
//   for (const LayerQuality& layer : meter.take()) ...
#pragma once

#include <string>
#include <vector>

#include "compress/compressed_reducer.h"

namespace heddle {

// One compressed layer in one step; the same on all ranks. X is the sum over ranks of the gradients
// x_i to be sent, residuals included, G that of the gradients alone, and C the compressed sum.
struct LayerQuality {
  std::string name;
  double contraction = 0;    // ||X - C||^2 / ||X||^2; below 1 error feedback can catch up
  double cosine = 0;         // of C and G
  double residual_norm = 0;  // ||m|| / beta after the step, root mean square over the ranks
  double gradient_norm = 0;  // of a rank's own gradient, root mean square over the ranks
  double energy = 0;         // sum over ranks of ||x_i||^2
  // Mean correlation of two ranks' x_i, weighted by their norms: 1 if all are equal, 0 if they are
  // orthogonal. ScaleCom (arXiv 2104.11125, theorem 1) assumes it to be positive.
  double correlation = 1;
  // Where one rank selects for all: d / k, the fraction of the best selection from X that was not
  // sent, and the paper's upper bound on the contraction, d/k + (1 - d/k) rho_0, with rho_0 that of
  // the best selection. NaN elsewhere.
  double mismatch, bound;
};

class QualityMeter {
 public:
  explicit QualityMeter(CompressedReducer& reducer) : reducer_(reducer) {}

  // Call these directly before and after reduce(), on its thread. Collective; booked as control
  // named "quality".
  void before(const GradientBucket& bucket, Communicator& comm, Ledger& ledger);
  void after(Communicator& comm, Ledger& ledger, bool accepted);
  // Returns the measurements since the last call, in the order of the buckets.
  std::vector<LayerQuality> take();

 private:
  struct Seen {
    const Parameter* parameter;
    Tensor gradients, all;  // G and X, (n) f32 on the host
    double own_gradient, own;
  };

  CompressedReducer& reducer_;
  std::vector<Seen> bucket_;
  std::vector<LayerQuality> measured_;
};

}  // namespace heddle
