// The tape: a linear list of layer-sized closures (Var, Tape). Each layer's forward and backward
// pass live in one function; reverse iteration is the topological order, and popping a node frees
// its activations. A parameter's gradient is final by use count: each use in forward counts up,
// each contribution counts down, and at zero on_final fires; tied weights cannot break it.
//
//   record   ── embedding(E) ──▶ lstm(W) ──▶ linear(E) ──▶ loss      uses: E 2, W 1
//   backward ◀───────────────────────────────────────────────────
//              E 1 → 0: final    W 0: final   E 2 → 1
//
// A tape belongs to one thread. It keeps the parameters' counts, so one parameter may be on several
// tapes only if they run one after the other.
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
  // Returns both as one tensor; adds in place where no other tensor shares the memory.
  Tensor sum() &&;
};

// A tensor with a gradient slot, which all copies share. Tape::record keeps one until its closure
// has run.
class Var {
 public:
  Var() = default;
  explicit Var(Tensor value, bool needs_grad = false);

  // An undefined tensor if this Var was made without one.
  const Tensor& value() const { return slot_ == nullptr ? kNone : slot_->value; }
  const Shape& shape() const { return value().shape(); }
  bool needs_grad() const { return slot_ != nullptr && slot_->needs_grad; }

  // Adds a gradient of the value's shape, type and layout (InputError otherwise), without a copy:
  // the next closure may write into the tensor. Ignored where no gradient is needed.
  void add_grad(Tensor grad) const;
  // Returns the gradient added up to now and empties the slot.
  Grad take_grad() const;
  // Returns the gradient that backward left in a leaf and keeps it. For tests.
  Tensor grad() const;

 private:
  struct Slot {
    Tensor value;
    Grad grad;
    bool needs_grad;
  };
  static inline const Tensor kNone;
  std::shared_ptr<Slot> slot_;
};

// The step of a tape that was made without one.
constexpr uint64_t kNoStep = ~uint64_t{0};

struct TapeOptions {
  bool training = true;      // false: nothing is recorded, batch norm uses running statistics
  uint64_t seed = 0;         // for dropout
  uint64_t step = kNoStep;   // for dropout, which refuses a tape that does not know it
  int64_t first_sample = 0;  // of this batch within the global batch, for dropout
  // i64 (2) on the device, {step, first_sample}: replaces both, read by the kernels themselves, for
  // steps that are recorded once and replayed (core/step_graph.h).
  Tensor counters = {};
};

class Tape;

// The argument of a closure: the gradient of its output, and the report that a parameter is done.
class BackwardPass {
 public:
  Grad dy;
  // Reports that this node has written its contribution to p.grad, once per use; ignored for a
  // frozen parameter. Call it before computing the input's gradient if possible, so that the
  // exchange starts early. Throws InputError for a parameter that was not recorded as used.
  void contributed(Parameter& p);

 private:
  friend class Tape;
  const std::function<void(Parameter&)>* on_final_ = nullptr;
  std::vector<Parameter*>* open_ = nullptr;  // uses that have not contributed yet
};

class Tape {
 public:
  explicit Tape(const TapeOptions& options = {}) : options_(options) {}
  // Subtracts the uses that no backward pass has processed, so that a tape which is dropped, even
  // by an exception, leaves the parameters' counts at zero. The parameters must outlive the tape.
  ~Tape();
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  bool training() const { return options_.training; }
  const TapeOptions& options() const { return options_; }
  // Returns the number of the next random operation in this pass, the same in every step.
  int next_random_op() { return random_ops_++; }

  // Records a closure that propagates the gradient of `output`. `uses`: the parameters it
  // contributes to, one entry per contribution; frozen ones are left out. Nothing is kept when not
  // training, or if the output needs no gradient. Throws InputError if it does not although one of
  // `uses` is trained. Not from within a closure.
  void record(std::string name, const Var& output, std::vector<Parameter*> uses,
              std::function<void(BackwardPass&)> backward);

  // Runs the closures in reverse, starting from d loss / d loss = scale, and empties the tape.
  // Calls, on this thread, on_final(p) when p.grad is complete (for CUDA: when its kernels are on
  // the stream), in an order that the recording fixes, and on_free(p) after the last closure that
  // reads p.value. Throws InputError unless loss is a scalar that was computed on this tape, which
  // is training and not empty.
  void backward(const Var& loss, const std::function<void(Parameter&)>& on_final = {},
                const std::function<void(Parameter&)>& on_free = {}, float scale = 1.0f);

  size_t size() const { return nodes_.size(); }

 private:
  struct Node {
    std::string name;
    Var output;
    std::vector<Parameter*> uses;  // one reader each
    std::vector<Parameter*> open;  // of these: not contributed yet
    std::function<void(BackwardPass&)> backward;
  };
  TapeOptions options_;
  int random_ops_ = 0;
  std::vector<Node> nodes_;
};

}  // namespace heddle
