#include "core/parameters.h"

#include <algorithm>
#include <utility>

#include "core/parallel.h"

namespace heddle {
namespace {

constexpr int64_t kAlignElements = 256 / sizeof(float);

int64_t elements(const std::deque<Parameter>& parameters) {
  int64_t n = 0;
  for (const Parameter& p : parameters) n += p.shape().elements();
  return n;
}

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

bool any_trained(std::initializer_list<const Parameter*> parameters) {
  return std::ranges::any_of(parameters,
                             [](const Parameter* p) { return p != nullptr && !p->frozen; });
}

void ParameterStore::check_name(const std::string& name) const {
  check(!values_.defined(), "parameter ", name, ": added after finalize");
  for (const Entry& e : order_)
    check(e.name() != name, e.buffer ? "buffer " : "parameter ", name, ": added twice");
}

Parameter& ParameterStore::add(const std::string& name, const Shape& shape, Init init, bool decay) {
  check_name(name);
  const size_t index = parameters_.size() + frozen_.size();
  const bool frozen = chosen_ && chosen_(name);
  Parameter& p = (frozen ? frozen_ : parameters_).emplace_back();
  order_.push_back({.parameter = &p});
  p.store_ = this;
  p.name = name;
  p.frozen = frozen;
  p.decay = decay;
  p.shape_ = shape;
  p.init_ = std::move(init);
  p.index = index;
  return p;
}

Buffer& ParameterStore::add_buffer(const std::string& name, const Shape& shape, DType dtype,
                                   float value, bool frozen) {
  check_name(name);
  Tensor host = Tensor::empty_on(Device{}, shape, dtype);
  for (int64_t i = 0; i < host.size(); ++i) {
    if (dtype == DType::i64)
      host.data<int64_t>()[i] = to_int64(value);
    else
      host.data<float>()[i] = value;
  }
  Buffer& buffer = (frozen ? frozen_buffers_ : buffers_).emplace_back(Buffer{name, host});
  order_.push_back({.buffer = &buffer});
  return buffer;
}

void ParameterStore::finalize(uint64_t seed) {
  check(!values_.defined(), "ParameterStore: finalized twice");
  check(!parameters_.empty() || frozen_.empty(),
        "every parameter is frozen: nothing can be trained");
  const auto initialised = [seed](std::deque<Parameter>& parameters) {
    int64_t total = 0;
    for (auto p = parameters.rbegin(); p != parameters.rend(); ++p) {
      p->offset = total;
      total += padded(p->shape_.elements());
    }
    Tensor host = Tensor::empty_on(Device{}, {total});
    host.fill_zero();
    for (Parameter& p : parameters)
      p.init_(host.data<float>() + p.offset, p.shape_.elements(),
              Philox(seed, stream_id(Stream::init, p.index)));
    Tensor values = Tensor::empty({total});
    values.copy_from(host);
    return values;
  };
  values_ = initialised(parameters_);
  frozen_values_ = initialised(frozen_);
  grads_and_extra_ = Tensor::zeros({values_.size() + kExtra});
  grads_ = grads_and_extra_.slice(0, values_.size());
  const auto view = [](const Tensor& flat, const Parameter& p) {
    return flat.slice(p.offset, p.offset + p.shape_.elements()).reshape(p.shape_);
  };
  for (Parameter& p : parameters_) {
    p.value = view(values_, p);
    p.grad = view(grads_, p);
  }
  for (Parameter& p : frozen_) p.value = view(frozen_values_, p);
  for (auto* buffers : {&buffers_, &frozen_buffers_})
    for (Buffer& b : *buffers) b.value = b.value.to(values_.device());
}

Parameter* ParameterStore::find(const std::string& name) {
  for (auto* parameters : {&parameters_, &frozen_})
    for (Parameter& p : *parameters)
      if (p.name == name) return &p;
  return nullptr;
}

int64_t ParameterStore::count() const { return elements(parameters_); }

int64_t ParameterStore::frozen_count() const { return elements(frozen_); }

void ParameterStore::begin_step() {
  for (Parameter& p : parameters_) p.written = false;
}

std::vector<std::pair<std::string, Tensor>> ParameterStore::named_tensors() const {
  std::vector<std::pair<std::string, Tensor>> out;
  out.reserve(order_.size());
  for (const Entry& e : order_) out.emplace_back(e.name(), e.value());
  return out;
}

}  // namespace heddle
