#include "optim/update_rule.h"

#include <cmath>

#include "core/shared_kernel.h"
#include "optim/update.h"

namespace heddle {
namespace {

class Sgd : public UpdateRule {
 public:
  explicit Sgd(const SgdOptions& options)
      : UpdateRule(options.momentum > 0 ? std::vector<std::string>{"momentum_buffer"}
                                        : std::vector<std::string>{},
                   options.decay_norm_bias),
        options_(options) {}

  const char* name() const override { return "sgd"; }

 protected:
  void apply(const Slice& slice, const UpdateInput& input) const override {
    const double scale =
        input.from_residual ? input.grad_scale / (1 - options_.momentum) : input.grad_scale;
    const SgdStep step{.lr = to_float(input.lr),
                       .momentum = to_float(options_.momentum),
                       .weight_decay = to_float(slice.decay ? options_.weight_decay : 0),
                       .grad_scale = to_float(scale),
                       .nesterov = options_.nesterov,
                       .from_residual = input.from_residual};
    float* velocity = slice.state.empty() ? nullptr : slice.state[0];
    HEDDLE_DISPATCH(slice.device, sgd(slice.w, slice.g, velocity, slice.n, step));
  }
  bool keeps_without_gradient(bool decay) const override {
    return options_.momentum == 0 && (!decay || options_.weight_decay == 0);
  }

 private:
  SgdOptions options_;
};

class Adam : public UpdateRule {
 public:
  explicit Adam(const AdamOptions& options)
      : UpdateRule({"exp_avg", "exp_avg_sq"}, options.decay_norm_bias), options_(options) {}

  const char* name() const override { return options_.decoupled ? "adamw" : "adam"; }

 protected:
  void apply(const Slice& slice, const UpdateInput& input) const override {
    const double t = to_double(input.step);
    const double decay = slice.decay ? options_.weight_decay : 0;
    const AdamStep step{
        .beta1 = to_float(options_.beta1),
        .beta2 = to_float(options_.beta2),
        .eps = to_float(options_.eps),
        .rest1 = to_float(1 - options_.beta1),
        .rest2 = to_float(1 - options_.beta2),
        .step_size = to_float(input.lr / (1 - std::pow(options_.beta1, t))),
        .second_moment_scale = to_float(1 / std::sqrt(1 - std::pow(options_.beta2, t))),
        .weight_decay = to_float(options_.decoupled ? 0 : decay),
        .shrink = to_float(options_.decoupled ? 1 - input.lr * decay : 1),
        .grad_scale = to_float(input.grad_scale)};
    HEDDLE_DISPATCH(slice.device,
                    adam(slice.w, slice.g, slice.state[0], slice.state[1], slice.n, step));
  }

 private:
  AdamOptions options_;
};

// Written so that NaN fails too.
void check_at_least_zero(double value, const char* name) {
  check(value >= 0 && std::isfinite(value), name, ": expected a number of at least 0, found ",
        value);
}

void check_fraction(double value, const char* name) {
  check(value >= 0 && value < 1, name, ": expected a number in [0, 1), found ", value);
}

}  // namespace

void UpdateRule::attach(ParameterStore& store) {
  check(store_ == nullptr, name(), ": attached twice");
  check(store.values().defined(), name(), ": attached before the parameters were finalized");
  store_ = &store;
  for (size_t i = 0; i < kinds_.size(); ++i) {
    state_.push_back(Tensor::empty_like(store.values()));
    state_.back().fill_zero();
  }
}

void UpdateRule::update(const Parameter& p, const UpdateInput& input) {
  const bool decay = decays(p);
  // A GPU updates the whole matrix in less time than it takes to start a kernel for each row.
  if (!p.touched_rows || !keeps_without_gradient(decay) || store_->values().device().is_cuda())
    return update_range(p.offset, p.offset + p.size(), decay, input);
  const int64_t row = p.size() / p.shape()[0];
  for (const int64_t r : *p.touched_rows)
    update_range(p.offset + r * row, p.offset + (r + 1) * row, decay, input);
}

void UpdateRule::update_range(int64_t begin, int64_t end, bool decay, const UpdateInput& input) {
  const Tensor& values = store_->values();
  Slice slice{.device = values.device(),
              .w = values.data<float>() + begin,
              .g = store_->grads().data<float>() + begin,
              .state = {},
              .n = end - begin,
              .decay = decay};
  for (const Tensor& state : state_) slice.state.push_back(state.data<float>() + begin);
  apply(slice, input);
}

std::vector<std::pair<std::string, Tensor>> UpdateRule::named_state() const {
  std::vector<std::pair<std::string, Tensor>> out;
  for (size_t k = 0; k < state_.size(); ++k)
    for (const Parameter& p : store_->parameters())
      out.emplace_back(kinds_[k] + "." + p.name,
                       state_[k].slice(p.offset, p.offset + p.size()).reshape(p.shape()));
  return out;
}

std::unique_ptr<UpdateRule> make_sgd(const SgdOptions& options) {
  check_fraction(options.momentum, "momentum");
  check_at_least_zero(options.weight_decay, "weight decay");
  check(!options.nesterov || options.momentum > 0, "nesterov: expected a momentum above 0");
  return std::make_unique<Sgd>(options);
}

std::unique_ptr<UpdateRule> make_adam(const AdamOptions& options) {
  check_fraction(options.beta1, "beta1");
  check_fraction(options.beta2, "beta2");
  check(options.eps > 0 && std::isfinite(options.eps), "eps: expected a number above 0, found ",
        options.eps);
  check_at_least_zero(options.weight_decay, "weight decay");
  return std::make_unique<Adam>(options);
}

}  // namespace heddle
