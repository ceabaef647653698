// Reducer: sums the gradients of one bucket over the ranks, in place, by whatever collectives its
// algorithm needs, and owns what the algorithm remembers from step to step (residuals). Blocking,
// on the calling thread; one object per rank. Not thread-safe: reduce() runs on one thread at a
// time, all else between steps.
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

class RdpAccountant;

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

struct GradientBucket {
  Tensor flat;  // (n) f32, a slice of the flat gradient buffer; padding is zero and stays so
  std::vector<Parameter*> parameters;  // whose gradients lie in `flat`, in the order of memory
  int64_t step = 0;     // earlier steps, skipped ones included; the same on all ranks
  int64_t control = 0;  // elements at the end of `flat` that every algorithm sums exactly
  // Steps since the first that was compressed, for a ramp. Default: after any ramp.
  int64_t compressed_steps = std::numeric_limits<int64_t>::max();
};

// The ledger's name for the `control` elements of a bucket.
inline constexpr const char* kControlWords = "control words";

class Reducer {
 public:
  virtual ~Reducer() = default;
  virtual const char* name() const = 0;
  // Replaces every p.grad of the bucket by the sum over ranks of what the ranks sent, the same bits
  // on all ranks, and returns true. Collective: all ranks reduce the same buckets in the same
  // order. Returns false if a rank's gradients or a sum are non-finite: then the bucket must not be
  // applied; if a rank's gradients are to blame, the first of them holds NaN on all ranks; the
  // other contents are undefined, and the residuals are as if nothing had been sent. Throws
  // CommError if a collective fails, residuals as before.
  virtual bool reduce(const GradientBucket& bucket, Communicator& comm, Ledger& ledger) = 0;
  // Adds 1 / ranks of the sums that reduce() has left in the bucket, and that will not be applied,
  // to each rank's residual, so that no gradient is lost.
  virtual void return_unapplied(const GradientBucket& /*bucket*/, int /*ranks*/) {}
  // Returns the setting that may differ from layer to layer (rate, density, bits or low rank, by
  // family), by parameter. 0 stands for a rule that has yet to decide (rate=auto).
  virtual std::map<std::string, double> choices() const { return {}; }
  // Changes a layer's setting from the next step on; the same on all ranks. Residuals stay. Throws
  // InputError for a layer without a setting and for an impossible value.
  virtual void set_choice(const std::string& parameter, double value);
  // Returns whether ranks send votes (topagg.h). Then the optimizer calls vote() after every
  // backward pass, and reduce() replaces every p.grad by what the votes since the last step decide.
  virtual bool votes() const { return false; }
  // Takes all p.grad for one unit's vote; `vote`: how many this rank has taken in this step.
  virtual void vote(int64_t /*step*/, int64_t /*vote*/, int /*rank*/) {}
  // Returns the count of what reduce() has revealed; null without noise that protects.
  virtual RdpAccountant* accountant() { return nullptr; }
  // Returns whether parts of a gradient are kept for later steps.
  virtual bool keeps_residuals() const { return false; }
  // Returns whether the layer sends its gradient by way of a residual at present.
  virtual bool uses_residual(const std::string& /*parameter*/) const { return false; }
  // Returns what the algorithm measures of itself in a step, by name, for the log.
  virtual std::map<std::string, double> figures() const { return {}; }
  // Returns, once, what the algorithm has decided since the last call, in words; usually nothing.
  virtual std::string take_note() { return {}; }
  // Returns this rank's state for a checkpoint: views to copy from and into, by kind and parameter.
  virtual std::vector<std::pair<std::string, Tensor>> named_state() const { return {}; }
};

}  // namespace heddle
