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
//   ParameterStore store;
//   Parameter& w = store.add("fc.weight", {10, 64}, uniform_init(0.125f));
//   store.finalize(seed);
#pragma once

#include <deque>
#include <functional>
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

struct Parameter {
  std::string name;
  Tensor value, grad;          // views into the store's flat buffers, f32, plain
  int64_t offset = 0;          // of both views, in elements
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
  Shape shape_;
  Init init_;
};

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

  // Adds a parameter, whose address stays valid for the life of the store. Throws InputError for a
  // name in use.
  Parameter& add(const std::string& name, const Shape& shape, Init init, bool decay = true);
  // Adds a buffer, f32 or i64, filled with the value; otherwise as add().
  Buffer& add_buffer(const std::string& name, const Shape& shape, DType dtype, float value);

  // Allocates the flat buffers on the Context's device and initialises every parameter from the
  // random stream of its index in the order of creation. Call it once; add() throws afterwards.
  void finalize(uint64_t seed);

  std::deque<Parameter>& parameters() { return parameters_; }  // in order of creation
  const std::deque<Parameter>& parameters() const { return parameters_; }
  std::deque<Buffer>& buffers() { return buffers_; }
  const std::deque<Buffer>& buffers() const { return buffers_; }
  Parameter* find(const std::string& name);  // null if there is none

  const Tensor& values() const { return values_; }  // flat, padding included
  const Tensor& grads() const { return grads_; }
  // The gradients followed by kExtra elements that an exchange may sum along with them (flags,
  // losses); zero when not in use.
  const Tensor& grads_and_extra() const { return grads_and_extra_; }
  static constexpr int64_t kExtra = 4;
  int64_t count() const;  // of trainable values, padding excluded

  // Discards the gradients: the next contributions overwrite them. It does not touch the use counts
  // of tapes, so it may be called between forward and backward.
  void begin_step();

  // Returns views of all tensors of a weights file, parameters and buffers, in order of creation.
  std::vector<std::pair<std::string, Tensor>> named_tensors() const;

 private:
  struct Entry {
    bool is_buffer;
    size_t index;
  };
  void check_name(const std::string& name) const;

  std::deque<Parameter> parameters_;
  std::deque<Buffer> buffers_;
  std::vector<Entry> order_;
  Tensor values_, grads_, grads_and_extra_;
};

}  // namespace heddle
