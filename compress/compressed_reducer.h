// What the compressing reducers share: which layers they compress and with which setting,
// residuals, gradients that are not finite, and the staging of several layers' values for one
// collective. An algorithm derives from it and writes exchange().
//
//   bool exchange(Exchange& e) override {
//     NamedTensors sums = e.dense;            // and what is to be sent of e.compressed
//     if (!all_reduce(e, sums)) return false;  // a rank had NaN: residuals stay as they were
//     ...
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "compress/error_feedback.h"
#include "compress/families.h"
#include "compress/plan/exchange_time.h"
#include "compress/plan/l_greco.h"
#include "compress/reducer.h"
#include "core/trace.h"

namespace heddle {

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

// What a window of steps has seen, without the buckets that some rank's NaN made unfit.
struct GradientWindow {
  std::map<std::string, Tensor> sums;       // of what was to be sent: residual included
  std::map<std::string, Tensor> gradients;  // of the gradients alone, where they were asked for
  std::vector<TimedExchange> exchanges;     // of buckets
};

class CompressedReducer : public Reducer {
 public:
  explicit CompressedReducer(const ReducerSetup& setup);

  const char* name() const override { return family_.name.c_str(); }
  bool reduce(const GradientBucket& bucket, Communicator& comm, Ledger& ledger) final;
  void return_unapplied(const GradientBucket& bucket, int ranks) override;
  std::map<std::string, double> choices() const override;
  void set_choice(const std::string& parameter, double value) override;
  bool keeps_residuals() const override { return feedback_.has_value(); }
  bool uses_residual(const std::string& parameter) const override {
    return feedback_.has_value() && compresses(parameter);
  }
  // The residuals, as "residual.<parameter>"; zero before the first step.
  NamedTensors named_state() const override;
  // Whether the layer is compressed at present.
  bool compresses(const std::string& parameter) const;
  // Bytes of its values, indices and scales, encoded once, at the present setting: what a step's
  // ledger will count. Of codes whose length depends on the data the most; the dense layer's while
  // a rule has yet to decide (setting 0).
  int64_t payload(const std::string& parameter) const;
  // From the next step on, on all ranks; what a residual owes goes with the first dense gradient.
  void set_dense(const std::string& parameter, bool dense);
  // Where one rank selects for all: what it would select from x (n) f32. Elsewhere nothing.
  virtual Indices selection(const std::string& /*parameter*/, const Tensor& /*x*/) const {
    return {};
  }
  // Steps from the first compressed one until layers are compressed as far as their setting says.
  int64_t ramp() const { return ramp_; }
  ErrorFeedback* feedback() { return feedback_ ? &*feedback_ : nullptr; }

  // For a planner of settings (layer_planner.h): the layers that are compressed at present, each
  // with the settings that it may have instead, ascending, and the bytes of its values, indices and
  // scales at each, encoded once; of data-dependent codes the most. The present setting is the
  // uniform one; no errors. Where a rule has yet to decide (setting 0), that is the only candidate,
  // with the bytes of the dense layer and an error that is infinite.
  std::vector<LayerChoices> candidates() const;
  // What is lost at each of them, as a norm, when this rank encodes x (n) f32. May be called while
  // another thread reduces.
  std::vector<double> errors(const LayerChoices& layer, const Tensor& x) const;
  // What encoding and decoding x takes this thread at each of them, seconds; for PowerSGD and QSGD
  // both, for the others, where decoding is little, what finds the elements. Call errors() before.
  std::vector<double> seconds(const LayerChoices& layer, const Tensor& x) const;
  // From now on the gradients of compressed layers are summed up and exchanges timed; `gradients`:
  // also without residuals, in memory of their own. Between steps only.
  void open_window(bool gradients);
  // Sums are (n) f32 on the host; layers of which there were none are missing.
  GradientWindow close_window();
  // The one that is open, for a checkpoint: its tensors still grow. Null when none is.
  const GradientWindow* window() const { return window_ ? &*window_ : nullptr; }
  // What an earlier process has seen of the window that is open now.
  void restore_window(GradientWindow seen) { window_ = std::move(seen); }

 protected:
  struct Layer {
    const Parameter* parameter;
    uint64_t index;   // in the order of creation: a key of random numbers
    bool compressed;  // false: travels dense whatever is set
    double choice;
    bool dense = false;
    double now = 0;  // `choice`, or what a ramp makes of it in the step under way
  };
  struct Item {
    Layer* layer;
    Tensor tensor;  // (n), what is to be sent: the gradient, and the residual if there is one
    Tensor sum;     // (n), of the bucket: where the sum goes; without residual the same memory
    Tensor chunk_indices;  // (chunks) i32: the indices of every chunk()'s largest, if it is above 0
    Tensor magnitudes;     // i32, the largest of chunks, as in magnitude.h
    const std::string& name() const { return layer->parameter->name; }
    float* x() const { return tensor.data<float>(); }
    int64_t n() const { return tensor.size(); }
  };
  // A bucket's layers in the order of memory, on one device; dense ones hold the gradient, with the
  // residual where there is one, and take the sum. At least one layer is compressed.
  struct Exchange {
    Device device;
    std::vector<Item> compressed;
    NamedTensors dense;
    bool finite;       // false: this rank's gradients were not, and are zero now
    uint64_t culprit;  // 1 + Layer::index of the first of them in the order of memory; 0: none
    int64_t step, compressed_steps;
    Communicator& comm;
    Ledger& ledger;
  };

  // Where a step is explained: what this rank sends of an item's elements.
  static void explain_selection(const Item& item, const Tensor& values,
                                const char* file = __builtin_FILE(), int line = __builtin_LINE());

  // Puts the sums over the ranks into sum and into the dense tensors, leaves the residuals where
  // they were added, and returns true; or touches neither and returns false, on all ranks alike.
  virtual bool exchange(Exchange& e) = 0;
  // The length of the chunks whose largest elements this rank will ask its items for. They are
  // found while the residual is added.
  virtual int64_t chunk(const Layer& /*layer*/, const Exchange& /*e*/) const { return 0; }
  // Whether exchange() takes items on any device; else they are on the host.
  virtual bool works_on_devices() const { return false; }
  // Whether the setting makes the layer smaller; else it travels dense for now.
  virtual bool shrinks(const Layer& /*layer*/) const { return true; }

  // What candidates() and errors() are made from. Settings: nine from a quarter to four times the
  // layer's, evenly in their logarithms, where they are allowed.
  virtual std::vector<double> settings(const Layer& layer) const;
  virtual int64_t bytes(const Layer& layer, double /*setting*/) const {
    return layer.parameter->size() * 4;
  }
  virtual std::vector<double> lost_norms(const Layer& layer, const Tensor& x,
                                         const std::vector<double>& settings) const;
  // One setting of seconds(). Without it the time of lost_norms().
  virtual double codec_seconds(const Layer& layer, const Tensor& x, double setting) const;
  template <class Call>
  static double timed(const Call& call) {
    const double begin = thread_seconds();
    call();
    return thread_seconds() - begin;
  }

  // Sums tensors, named for the ledger, by one all-reduce, together with a flag of the ranks whose
  // gradients were not finite. Where there is one, and where a sum is beyond 1e36: false on all
  // ranks, and the tensors are as they were.
  static bool all_reduce(Exchange& e, const NamedTensors& tensors);

  // The setting (a rate, or a density below 1) in a step of the ramp, in which the rate grows from
  // 4 by the same factor in every step. Our own schedule; Lin et al. 2018 (arXiv 1712.01887,
  // section 3.3) raise the sparsity in four steps of an epoch each.
  double ramped(double choice, int64_t compressed_steps) const;

  mutable std::optional<ErrorFeedback> feedback_;  // set by algorithms that use it
  std::map<std::string, Layer> layers_;

 private:
  // A word in place of a number: a rule will decide, and nobody else until then.
  bool undecided(double setting) const { return setting < family_.keys[0].low; }
  void sort(const GradientBucket& bucket, const Tensor& flat, Exchange& e, NamedTensors& gradients);
  void check_finite(Exchange& e) const;
  void mark_culprit(const GradientBucket& bucket, Exchange& e) const;
  Item item_of(Layer& layer, const Tensor& gradient, const Exchange& e);
  void compensate(const std::string& name, const Tensor& x);
  bool exchange_or_restore(Exchange& e);
  bool exchange_in_window(Exchange& e, const NamedTensors& gradients);

  const Family& family_;
  int64_t ramp_ = 0;
  std::optional<GradientWindow> window_;
  bool window_has_gradients_ = false;
};

}  // namespace heddle
