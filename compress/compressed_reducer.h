// CompressedReducer: the path of one bucket, which all compressing algorithms share. reduce() reads
// from top to bottom:
//
//   residual in       x = gradient + residual, for each compressed layer (error_feedback.h)
//   check             a bucket with a non-finite value becomes zeros and a flag; on a GPU where the
//                     algorithm allows it only a flag, which the host has not seen yet
//   exchange()        the algorithm: encode, collectives, decode, residual out
//   finite check      a rejected bucket gets its residuals back
//
// An algorithm is a class that derives from it and writes exchange(); for a planner it also
// overrides what it inherits from LayerCosts (plan/layer_costs.h). docs/new_reducer.md explains
// step by step what an author writes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "compress/codecs/select.h"
#include "compress/error_feedback.h"
#include "compress/exchange.h"
#include "compress/plan/gradient_window.h"
#include "compress/plan/layer_costs.h"
#include "compress/reducer.h"

namespace heddle {

// One object per rank. reduce() runs on the worker thread; all else is called between steps.
class CompressedReducer : public Reducer, public LayerCosts {
 public:
  explicit CompressedReducer(const ReducerSetup& setup)
      : LayerCosts(setup), coding_of_values_(coding_of_values(setup.spec)) {}

  const char* name() const override { return layers_.family().name.c_str(); }
  bool reduce(const GradientBucket& bucket, Communicator& comm, Ledger& ledger) final;
  void return_unapplied(const GradientBucket& bucket, int ranks) override;
  std::map<std::string, double> choices() const override;
  void set_choice(const std::string& parameter, double value) override;
  bool keeps_residuals() const override { return feedback_.has_value(); }
  bool uses_residual(const std::string& parameter) const override {
    return feedback_ && compresses(parameter);
  }
  // Returns the residuals, (n) f32 on the host, as "residual.<parameter>"; zeros at first.
  NamedTensors named_state() const override;

  // Exchanges the layer dense, or compressed again, from the next step on; the same on all ranks.
  // Its residual is sent with the first dense gradient, or waits during a trial.
  void set_dense(const std::string& parameter, bool dense, bool trial = false) {
    layers_.at(parameter).dense = dense, layers_.at(parameter).trial = trial;
  }
  // Returns the number of compressed steps until every layer is compressed as its setting says.
  virtual int64_t ramp() const { return layers_.ramp(); }
  // Where one rank selects for all, returns the indices that it would select from x (n) f32 on the
  // host; elsewhere none.
  virtual Indices selection(const std::string& /*parameter*/, const Tensor& /*x*/) const {
    return {};
  }
  // Returns the residuals of this rank; null for an algorithm that keeps none.
  ErrorFeedback* feedback() { return feedback_ ? &*feedback_ : nullptr; }
  // Records gradients and times for a planner while it is open.
  WindowRecorder& window() { return window_; }

 protected:
  using Item = Exchange::Item;

  // Encodes the items, runs the collectives, and decodes: puts the sums over ranks into item.sum
  // and into the dense tensors, leaves the new residuals in item.tensor, and returns true. Returns
  // false on all ranks if some rank's gradients or a sum are non-finite; with error feedback it has
  // then not written to item.sum, which holds the old residual.
  virtual bool exchange(Exchange& e) = 0;
  // Returns the length of the chunks whose largest elements this rank wants in item.chunk_indices,
  // found during the pass that adds the residual; 0: none.
  virtual int64_t chunk(const Layer& /*layer*/, const Exchange& /*e*/) const { return 0; }
  // Returns whether exchange() accepts tensors of any device; otherwise they are on the host.
  virtual bool works_on_devices() const { return false; }
  // Returns whether exchange() sends its flag by write_flag(), as sum_values(), sum_at_indices()
  // and sum_blocks() do, and copes with gradients that are not finite: then the host does not check
  // them before on a GPU.
  virtual bool leaves_checks_to_sums() const { return false; }

  // Returns how the values that are sent are coded (values=): fp32 or bf16.
  Coding coding_of_values() const { return coding_of_values_; }
  int64_t value_bytes() const { return encoded_bytes(coding_of_values_, 0, 1); }

  mutable std::optional<ErrorFeedback> feedback_;  // emplaced by algorithms that keep residuals

 private:
  static Coding coding_of_values(const CompressSpec& spec) {
    const auto found = spec.values.find("values");
    return found != spec.values.end() && found->second == 1 ? Coding::bf16 : Coding::fp32;
  }
  void add_residuals(const GradientBucket& bucket, const Tensor& flat, Exchange& e);
  void check_values(Exchange& e, bool on_gpu) const;
  bool exchange_or_restore(Exchange& e);
  void finish_residuals(const Exchange& e, bool accepted);
  void mark_culprit(const GradientBucket& bucket, Exchange& e) const;

  Coding coding_of_values_;
  WindowRecorder window_;
};

}  // namespace heddle
