// Parameters and their two flat buffers. Values and gradients of a model lie in one buffer each, in
// reverse order of creation, each parameter at a multiple of 256 bytes: memory order is backward
// order is bucket order, so that a bucket is a view, and norm, clip and all-reduce are one call.
// The padding between parameters is always zero.
//
//   created:   conv1.weight (432)   bn1.weight (16)   fc.weight (640)
//
//   offset:    0                640        704                1152       1156    elements of f32
//   values()   | fc.weight       | bn1.weight 000 | conv1.weight 000 |
//   grads()    | fc.weight       | bn1.weight 000 | conv1.weight 000 | extra |
//              ▲ final first in backward             final last ▲
//
// Frozen parameters (freeze()) are not trained: they have values in a buffer of their own and no
// gradient, so that the optimizer, the exchange and the tape never meet them.
//
//   ParameterStore store;
//   Parameter& w = store.add("fc.weight", {10, 64}, uniform_init(0.125f));
//   store.finalize(seed);
#pragma once

#include <deque>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/random.h"
#include "core/tensor.h"

namespace heddle {

// Fills the `size` values of a parameter, on the host, from the parameter's own random stream.
using Init = std::function<void(float* values, int64_t size, const Philox& rng)>;

Init constant_init(float value);
Init normal_init(float stddev);
Init uniform_init(float bound);  // uniform in [-bound, bound)

class ParameterStore;

struct Parameter {
  std::string name;
  Tensor value, grad;          // views into the store's flat buffers, f32, plain
  bool frozen = false;         // not trained: value lies in frozen_values(), grad is undefined
  int64_t offset = 0;          // of both views, in elements
  size_t index = 0;            // in the order of creation, frozen ones included
  bool decay = true;           // false for batch norm and biases: weight decay may leave them out
  double uses_per_sample = 0;  // multiply-accumulates per weight and sample; set by forward

  int pending = 0;       // contributions still to come in backward (kept by Tape)
  int readers = 0;       // closures that will still read the value (kept by Tape)
  bool written = false;  // the gradient holds a contribution of this step

  // The only rows in which the gradient may differ from zero, ascending (embeddings); none:
  // unknown. Kept after a step, because the next one has to clear these rows. Code that writes into
  // the gradient without next_beta (an exchange) must reset it.
  std::optional<std::vector<int32_t>> touched_rows;

  // Returns the next contribution's factor on the old gradient: 0 for the first of a step, then 1.
  float next_beta() {
    const float beta = written ? 1.0f : 0.0f;
    written = true;
    touched_rows.reset();
    return beta;
  }
  int64_t size() const { return value.size(); }
  const Shape& shape() const { return shape_; }

 private:
  friend class ParameterStore;
  const ParameterStore* store_ = nullptr;  // that has made it
  Shape shape_;
  Init init_;
};

// Returns whether one of these is trained, so that their layer's output needs a gradient. A layer
// without a bias passes null for it.
bool any_trained(std::initializer_list<const Parameter*> parameters);

// A named tensor of the model that is saved but not trained: running statistics, counters.
struct Buffer {
  std::string name;
  Tensor value;
};

class ParameterStore {
 public:
  ParameterStore() = default;
  ParameterStore(const ParameterStore&) = delete;
  ParameterStore& operator=(const ParameterStore&) = delete;

  // Freezes every parameter that is added from now on and whose name `chosen` accepts.
  void freeze(std::function<bool(const std::string&)> chosen) { chosen_ = std::move(chosen); }
  // Adds a parameter, whose address stays valid for the life of the store. Throws InputError for a
  // name in use.
  Parameter& add(const std::string& name, const Shape& shape, Init init, bool decay = true);
  // Adds a buffer, f32 or i64, filled with the value; otherwise as add(). `frozen`: it belongs to
  // frozen parameters and never changes.
  Buffer& add_buffer(const std::string& name, const Shape& shape, DType dtype, float value,
                     bool frozen = false);

  // Allocates the flat buffers on the Context's device and initialises every parameter from the
  // random stream of its index in the order of creation. Call it once; add() throws afterwards.
  // Throws InputError if every parameter is frozen.
  void finalize(uint64_t seed);

  // All that is trained, and the buffers that training changes, in order of creation.
  std::deque<Parameter>& parameters() { return parameters_; }
  const std::deque<Parameter>& parameters() const { return parameters_; }
  std::deque<Buffer>& buffers() { return buffers_; }
  const std::deque<Buffer>& buffers() const { return buffers_; }
  const std::deque<Parameter>& frozen() const { return frozen_; }
  const std::deque<Buffer>& frozen_buffers() const { return frozen_buffers_; }
  Parameter* find(const std::string& name);  // frozen or not; null if there is none
  // Returns whether this store has made the parameter, frozen or not. Any thread.
  bool owns(const Parameter& p) const { return p.store_ == this; }

  const Tensor& values() const { return values_; }  // flat, padding included, without frozen ones
  const Tensor& frozen_values() const { return frozen_values_; }  // likewise; may be empty
  const Tensor& grads() const { return grads_; }
  // The gradients followed by kExtra elements that an exchange may sum along with them (flags,
  // losses); zero when not in use.
  const Tensor& grads_and_extra() const { return grads_and_extra_; }
  static constexpr int64_t kExtra = 4;
  int64_t count() const;  // of trained values, padding excluded
  int64_t frozen_count() const;

  // Discards the gradients: the next contributions overwrite them. It does not touch the use counts
  // of tapes, so it may be called between forward and backward.
  void begin_step();

  // Returns views of all tensors of a weights file, parameters and buffers, frozen or not, in order
  // of creation.
  std::vector<std::pair<std::string, Tensor>> named_tensors() const;

 private:
  // One of the two; both have a name and a value.
  struct Entry {
    const Parameter* parameter = nullptr;
    const Buffer* buffer = nullptr;
    const std::string& name() const { return parameter ? parameter->name : buffer->name; }
    const Tensor& value() const { return parameter ? parameter->value : buffer->value; }
  };
  void check_name(const std::string& name) const;

  std::function<bool(const std::string&)> chosen_;
  std::deque<Parameter> parameters_, frozen_;
  std::deque<Buffer> buffers_, frozen_buffers_;
  std::vector<Entry> order_;
  Tensor values_, frozen_values_, grads_, grads_and_extra_;
};

}  // namespace heddle
