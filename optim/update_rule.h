// Update rules: SGD, Adam (Kingma and Ba 2015), AdamW (Loshchilov and Hutter 2019). A rule turns a
// slice of the flat gradient buffer into new weights in one pass over memory. It works on any
// slice, so that a parameter or a bucket is updated as soon as its gradient is final; how the
// buffers are cut changes no bit of the result. Results agree with torch.optim.SGD, Adam and AdamW.
//
//   auto rule = make_sgd({.momentum = 0.9, .nesterov = true, .weight_decay = 5e-4});
//   rule->attach(store);
//   rule->update(parameter, {.lr = 0.1});
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/parameters.h"

namespace heddle {

struct UpdateInput {
  double lr = 0;
  double grad_scale = 1;  // factor for the gradient: clip factor / (micro-steps * learners)
  int64_t step = 1;       // number of this update, from 1 (Adam's bias correction)
  // A residual held the gradient back, which delays it as momentum would: SGD applies it at once
  // with the factor 1 / (1 - momentum) and does not add it to the velocity, which keeps weight
  // decay and what it already held. Adam's rule does not change.
  bool from_residual = false;
};

class UpdateRule {
 public:
  virtual ~UpdateRule() = default;

  // Allocates the state: zero, on the store's device, laid out like the parameters. Call it once,
  // after store.finalize(); throws InputError otherwise. The store must outlive the rule.
  void attach(ParameterStore& store);

  // Updates p.value and the state; p.grad stays. Skips rows that are known to have no gradient
  // (Parameter::touched_rows) where that changes no bit. Threads may update different parameters at
  // once.
  void update(const Parameter& p, const UpdateInput& input);
  // Does the same for elements [begin, end) of the flat buffers, padding included (it stays zero);
  // `decay`: weight decay applies.
  void update_range(int64_t begin, int64_t end, bool decay, const UpdateInput& input);

  // Returns whether weight decay applies to this parameter.
  bool decays(const Parameter& p) const { return decay_norm_bias_ || p.decay; }
  virtual const char* name() const = 0;
  // Returns views of the state for checkpoints, in the parameters' shapes, named
  // "<kind>.<parameter>" with PyTorch's kinds (momentum_buffer, exp_avg, exp_avg_sq).
  std::vector<std::pair<std::string, Tensor>> named_state() const;

 protected:
  UpdateRule(std::vector<std::string> state_kinds, bool decay_norm_bias)
      : kinds_(std::move(state_kinds)), decay_norm_bias_(decay_norm_bias) {}

  struct Slice {
    Device device;
    float* w;
    const float* g;
    std::vector<float*> state;  // one pointer per kind
    int64_t n;
    bool decay;
  };
  virtual void apply(const Slice& slice, const UpdateInput& input) const = 0;
  // Returns whether a gradient of zero leaves weight and state unchanged.
  virtual bool keeps_without_gradient(bool /*decay*/) const { return false; }

 private:
  std::vector<std::string> kinds_;
  bool decay_norm_bias_;
  ParameterStore* store_ = nullptr;
  std::vector<Tensor> state_;
};

struct SgdOptions {
  double momentum = 0;
  bool nesterov = false;        // needs momentum
  double weight_decay = 0;      // added to the gradient
  bool decay_norm_bias = true;  // false: batch norm and biases do not decay
};

struct AdamOptions {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double weight_decay = 0;
  bool decoupled = false;  // true: AdamW, the weights shrink by lr * weight_decay instead
  bool decay_norm_bias = true;
};

// Both throw InputError for options out of range.
std::unique_ptr<UpdateRule> make_sgd(const SgdOptions& options);
std::unique_ptr<UpdateRule> make_adam(const AdamOptions& options);

}  // namespace heddle
