// Reducer: sums the gradients of one bucket over the ranks, in place, by whatever collectives its
// algorithm needs, and owns what the algorithm remembers from step to step (residuals). Plain
// blocking code on the calling thread; one object for each rank.
//
//   auto reducer = make_reducer(parse_compress("scalecom:rate=100,beta=1"), {}, store);
//   const bool finite = reducer->reduce({flat, parameters, step}, comm, ledger);
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/ledger.h"
#include "core/parameters.h"

namespace heddle {

struct GradientBucket {
  Tensor flat;                         // of the flat gradient buffer; padding is zero and stays so
  std::vector<Parameter*> parameters;  // those inside, in the order of memory
  int64_t step = 0;     // made before it, skipped ones included: the same on all ranks
  int64_t control = 0;  // elements at the end of flat that are summed as they are, in any algorithm
  // Steps since the first that was compressed, for a ramp; without one, after any ramp.
  int64_t compressed_steps = std::numeric_limits<int64_t>::max();
};

// What those elements are called in the ledger.
inline constexpr const char* kControlWords = "control words";

class Reducer {
 public:
  virtual ~Reducer() = default;
  virtual const char* name() const = 0;
  // Every p.grad becomes the sum over ranks of what the ranks delivered, the same bits on all of
  // them. False when a rank's gradients held NaN or Inf: then the bucket must not be applied, the
  // first p.grad that was to blame holds NaN on all ranks, the other contents mean nothing, and the
  // residuals are as if nothing had been sent.
  virtual bool reduce(const GradientBucket& bucket, Communicator& comm, Ledger& ledger) = 0;
  // Adds 1 / ranks of the sums that reduce() has left in the bucket, and that will not be applied,
  // to each rank's residual, so that no gradient is lost.
  virtual void return_unapplied(const GradientBucket& /*bucket*/, int /*ranks*/) {}
  // The setting that may differ from layer to layer (rate, density, bits or rank, by family): what
  // it is for the layers that have one, and what it shall be from the next step on, on all ranks.
  // Residuals stay. 0 stands for a rule that will decide (rate=auto). Throws InputError for a layer
  // without a setting and for an impossible value.
  virtual std::map<std::string, double> choices() const { return {}; }
  virtual void set_choice(const std::string& parameter, double value);
  // Whether something of a gradient is kept for later steps.
  virtual bool keeps_residuals() const { return false; }
  // Whether what the layer sends at present was held back, in part, by a residual.
  virtual bool uses_residual(const std::string& /*parameter*/) const { return false; }
  // What a checkpoint keeps of this rank, as views to copy from and into, keyed by parameter.
  virtual std::vector<std::pair<std::string, Tensor>> named_state() const { return {}; }
};

}  // namespace heddle
