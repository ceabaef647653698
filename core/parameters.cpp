#include "core/parameters.h"

#include <algorithm>

#include "core/parallel.h"

namespace heddle {
namespace {

constexpr int64_t kAlignElements = 256 / sizeof(float);

int64_t padded(int64_t n) { return ceil_div(n, kAlignElements) * kAlignElements; }

}  // namespace

Init constant_init(float value) {
  return [value](float* out, int64_t n, const Philox&) { std::fill(out, out + n, value); };
}

Init normal_init(float stddev) {
  return [stddev](float* out, int64_t n, const Philox& rng) {
    parallel_for(n, 4096, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) out[i] = stddev * rng.normal(i);
    });
  };
}

Init uniform_init(float bound) {
  return [bound](float* out, int64_t n, const Philox& rng) {
    for (int64_t i = 0; i < n; ++i) out[i] = bound * (2.0f * rng.uniform(i) - 1.0f);
  };
}

void ParameterStore::check_name(const std::string& name) const {
  check(!values_.defined(), "parameter ", name, ": added after finalize");
  for (const Parameter& p : parameters_) check(p.name != name, "parameter ", name, ": added twice");
  for (const Buffer& b : buffers_) check(b.name != name, "buffer ", name, ": added twice");
}

Parameter& ParameterStore::add(const std::string& name, const Shape& shape, Init init, bool decay) {
  check_name(name);
  order_.push_back({false, parameters_.size()});
  Parameter& p = parameters_.emplace_back();
  p.name = name;
  p.decay = decay;
  p.shape_ = shape;
  p.init_ = std::move(init);
  return p;
}

Buffer& ParameterStore::add_buffer(const std::string& name, const Shape& shape, DType dtype,
                                   float value) {
  check_name(name);
  order_.push_back({true, buffers_.size()});
  Tensor host = Tensor::empty_on(Device{}, shape, dtype);
  for (int64_t i = 0; i < host.size(); ++i) {
    if (dtype == DType::i64)
      host.data<int64_t>()[i] = to_int64(value);
    else
      host.data<float>()[i] = value;
  }
  return buffers_.emplace_back(Buffer{name, host});
}

void ParameterStore::finalize(uint64_t seed) {
  check(!values_.defined(), "ParameterStore: finalized twice");
  int64_t total = 0;
  for (auto p = parameters_.rbegin(); p != parameters_.rend(); ++p) {
    p->offset = total;
    total += padded(p->shape_.elements());
  }
  Tensor host = Tensor::empty_on(Device{}, {total});
  host.fill_zero();
  for (size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& p = parameters_[i];
    p.init_(host.data<float>() + p.offset, p.shape_.elements(),
            Philox(seed, stream_id(Stream::init, i)));
  }
  values_ = Tensor::empty({total});
  values_.copy_from(host);
  grads_and_extra_ = Tensor::zeros({total + kExtra});
  grads_ = grads_and_extra_.slice(0, total);
  for (Parameter& p : parameters_) {
    const int64_t n = p.shape_.elements();
    p.value = values_.slice(p.offset, p.offset + n).reshape(p.shape_);
    p.grad = grads_.slice(p.offset, p.offset + n).reshape(p.shape_);
  }
  for (Buffer& b : buffers_) b.value = b.value.to(values_.device());
}

Parameter* ParameterStore::find(const std::string& name) {
  auto found = std::find_if(parameters_.begin(), parameters_.end(),
                            [&](const Parameter& p) { return p.name == name; });
  return found == parameters_.end() ? nullptr : &*found;
}

int64_t ParameterStore::count() const {
  int64_t n = 0;
  for (const Parameter& p : parameters_) n += p.shape_.elements();
  return n;
}

void ParameterStore::begin_step() {
  for (Parameter& p : parameters_) p.written = false;
}

std::vector<std::pair<std::string, Tensor>> ParameterStore::named_tensors() const {
  std::vector<std::pair<std::string, Tensor>> out;
  for (const Entry& e : order_) {
    if (e.is_buffer)
      out.emplace_back(buffers_[e.index].name, buffers_[e.index].value);
    else
      out.emplace_back(parameters_[e.index].name, parameters_[e.index].value);
  }
  return out;
}

}  // namespace heddle
