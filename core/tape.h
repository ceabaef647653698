// The tape: a linear list of layer-sized closures (Var, Tape). Forward and its backward closure
// stand in one function; reverse iteration is the topological order, and popping a node frees its
// activations. A parameter's gradient is final by use count: each use in forward counts up, each
// contribution counts down, and at zero on_final fires; tied weights cannot break it.
//
//   Tape tape;
//   Var loss = softmax_cross_entropy(tape, model.forward(tape, x), labels);
//   tape.backward(loss, [&](Parameter& p) { optimizer.ready(p); });
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/parameters.h"
#include "core/tensor.h"

namespace heddle {

// The gradient of a Var: at most two tensors that are still to be added, because the kernel that
// reads them can often add on the way (residual connections).
struct Grad {
  Tensor first, second;

  bool defined() const { return first.defined(); }
  // Both as one tensor; adds in place where the memory is nobody else's.
  Tensor sum() &&;
};

// A tensor with a gradient slot. Copies refer to the same slot.
class Var {
 public:
  Var() = default;
  explicit Var(Tensor value, bool needs_grad = false);

  const Tensor& value() const { return slot_->value; }
  const Shape& shape() const { return slot_->value.shape(); }
  bool needs_grad() const { return slot_ != nullptr && slot_->needs_grad; }

  // Contributes a gradient. The tensor is given away: its next owner may write into it.
  void add_grad(Tensor grad) const;
  // The gradient so far; the slot is empty afterwards.
  Grad take_grad() const;
  // The gradient that backward left in a leaf, without taking it. For tests.
  Tensor grad() const;

 private:
  struct Slot {
    Tensor value;
    Grad grad;
    bool needs_grad;
  };
  std::shared_ptr<Slot> slot_;
};

struct TapeOptions {
  bool training = true;      // false: nothing is recorded, batch norm uses running statistics
  uint64_t seed = 0;         // for dropout
  uint64_t step = 0;         // for dropout
  int64_t first_sample = 0;  // of this batch within the global batch, for dropout
  // i64 (2) on the device, {step, first_sample}: read in their place by the work itself, for steps
  // that are recorded once and done many times (core/step_graph.h).
  Tensor counters = {};
};

class Tape;

// What a closure gets: the gradient of its output, and the way to say that a parameter is done.
class BackwardPass {
 public:
  Grad dy;
  // This node has written its contribution to p.grad. Call it before the input's gradient is
  // computed where that can be, so that an exchange can start early.
  void contributed(Parameter& p);

 private:
  friend class Tape;
  const std::function<void(Parameter&)>* on_final_ = nullptr;
  std::vector<Parameter*>* open_ = nullptr;  // uses that have not contributed yet
};

class Tape {
 public:
  explicit Tape(const TapeOptions& options = {}) : options_(options) {}
  // Takes back the uses that no backward has settled, so that a tape which is dropped, by an
  // exception too, leaves the parameters' counts at zero. The parameters must still be there.
  ~Tape();
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  bool training() const { return options_.training; }
  const TapeOptions& options() const { return options_; }
  // A number for each random operation of this pass, the same in every step.
  int next_random_op() { return random_ops_++; }

  // Records a closure that propagates the gradient of `output`. `uses`: the parameters it
  // contributes to, one entry per contribution. Nothing is kept when not training.
  void record(std::string name, const Var& output, std::vector<Parameter*> uses,
              std::function<void(BackwardPass&)> backward);

  // Runs the closures in reverse, starting from d loss / d loss = scale. on_final(p): p.grad is
  // complete. on_free(p): the last closure that reads p.value has returned. Empties the tape.
  void backward(const Var& loss, const std::function<void(Parameter&)>& on_final = {},
                const std::function<void(Parameter&)>& on_free = {}, float scale = 1.0f);

  size_t size() const { return nodes_.size(); }

 private:
  struct Node {
    std::string name;
    Var output;
    std::vector<Parameter*> uses;  // one reader each
    std::vector<Parameter*> open;  // of these: contributions still owed
    std::function<void(BackwardPass&)> backward;
  };
  TapeOptions options_;
  int random_ops_ = 0;
  std::vector<Node> nodes_;
};

}  // namespace heddle
