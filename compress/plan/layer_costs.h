// LayerCosts: what a planner needs to know of a compression algorithm: for each compressed layer
// the settings that it may have, and for each setting the bytes, the error and the seconds of
// encoding. Planners call the public functions; an algorithm overrides the protected ones
// (README.md of this folder's parent says which it must).
//
//   for (const LayerChoices& layer : costs.candidates())
//     errors = costs.errors(layer, x);      // x (n): a window's sum of gradients
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "compress/layer_table.h"
#include "compress/plan/l_greco.h"
#include "core/trace.h"

namespace heddle {

class LayerCosts {
 public:
  explicit LayerCosts(const ReducerSetup& setup) : layers_(setup) {}
  virtual ~LayerCosts() = default;

  // Returns the layers that are compressed, even if exchanged dense for now, each with its
  // settings, ascending, and the bytes of its values, indices and scales at each, encoded once, the
  // same on all ranks; where the length depends on the data, an upper bound or, for AdaComp, an
  // expectation. The present setting is the uniform one. Errors are left empty. A layer for which a
  // rule has yet to decide (rate=auto) has the single setting 0, with the bytes of the dense layer.
  std::vector<LayerChoices> candidates() const;
  // Returns ||x - decode(encode(x))|| at each setting of the layer, for x (n) f32 on the host, as
  // this rank would encode it; infinity for the setting 0. Any thread may call it, even while
  // another is in reduce().
  std::vector<double> errors(const LayerChoices& layer, const Tensor& x) const;
  // Returns the seconds that this thread needs to encode and decode x at each setting: for PowerSGD
  // and QSGD both, for the others the selection of elements, which dominates. Call errors() with
  // the layer first.
  std::vector<double> seconds(const LayerChoices& layer, const Tensor& x) const;
  // Returns the bytes that the parameter adds to a step's ledger at its present setting: values,
  // indices and scales, encoded once; bound or expectation as in candidates(). A dense or undecided
  // layer has 4 bytes an element.
  int64_t payload(const std::string& parameter) const;
  // Returns whether the layer is compressed at present.
  bool compresses(const std::string& parameter) const {
    return is_compressed(layers_.at(parameter));
  }

 protected:
  using Layer = CompressedLayer;

  // Returns whether the setting makes the layer smaller; otherwise it is exchanged dense.
  virtual bool shrinks(const Layer& /*layer*/) const { return true; }
  // Returns the settings that a plan may choose, ascending. Default: nine from a quarter of the
  // layer's own to four times that, equally spaced in their logarithms, clipped to what the
  // family's first key allows.
  virtual std::vector<double> settings(const Layer& layer) const;
  // Returns the bytes of the layer's payload at a setting, the same on all ranks. Default: those of
  // the dense layer.
  virtual int64_t bytes(const Layer& layer, double /*setting*/) const { return layer.size() * 4; }
  // Computes errors(); settings are ascending. Default: throws InputError, so that no plan is made.
  virtual std::vector<double> lost_norms(const Layer& layer, const Tensor& x,
                                         const std::vector<double>& settings) const;
  // Measures seconds() at one setting. Default: the time of lost_norms().
  virtual double codec_seconds(const Layer& layer, const Tensor& x, double setting) const;

  bool is_compressed(const Layer& layer) const {
    return layer.compressed && !layer.dense && shrinks(layer);
  }

  // Returns f(setting) for each setting.
  template <class F>
  static std::vector<double> for_each_setting(const std::vector<double>& settings, const F& f) {
    std::vector<double> out;
    out.reserve(settings.size());
    for (const double setting : settings) out.push_back(f(setting));
    return out;
  }
  // Returns the CPU time of a call on this thread, seconds.
  template <class Call>
  static double timed(const Call& call) {
    const double begin = thread_seconds();
    call();
    return thread_seconds() - begin;
  }

  LayerTable layers_;
};

}  // namespace heddle
