#include "compress/compressed_reducer.h"

#include <algorithm>
#include <regex>

#include "compress/magnitude.h"
#include "core/kernels.h"

namespace heddle {
namespace {

// Of the parameters with four axes the one that was added first, and so lies last.
const Parameter* first_convolution(const ParameterStore& store) {
  for (const Parameter& p : store.parameters())
    if (p.shape().rank() == 4) return &p;
  return nullptr;
}

// Family "none".
class Dense : public Reducer {
 public:
  const char* name() const override { return "none"; }
  bool reduce(const GradientBucket& bucket, Communicator& comm, Ledger& ledger) override {
    return sum_dense(bucket, bucket.flat, comm, ledger);
  }
};

}  // namespace

void Reducer::set_choice(const std::string& parameter, double) {
  throw InputError(concat(parameter, ": ", name(), " has no setting of a single layer"));
}

double Reducer::choice(const std::string&) const { return 0; }

CompressedReducer::CompressedReducer(const ReducerSetup& setup) : family_(setup.family) {
  const ReducerOptions& options = setup.options;
  std::regex dense;
  try {
    dense = std::regex(options.dense_layers);
  } catch (const std::regex_error& error) {
    throw InputError(
        concat("dense layers: \"", options.dense_layers, "\" is no expression: ", error.what()));
  }
  const double choice = family_.keys.empty() ? 0 : setup.spec.values.at(family_.keys[0].name);
  const Parameter* first = first_convolution(setup.store);
  for (const Parameter& p : setup.store.parameters()) {
    const bool named = !options.dense_layers.empty() && std::regex_search(p.name, dense);
    const bool compressed =
        p.shape().rank() > 1 && p.size() >= options.min_compress && &p != first && !named;
    layers_[p.name] = {&p, layers_.size(), compressed, compressed ? choice : 0};
  }
}

bool CompressedReducer::reduce(const GradientBucket& bucket, Communicator& comm, Ledger& ledger) {
  const Tensor flat = bucket.flat.to(Device{});
  Exchange e{{}, {}, true, bucket.step, comm, ledger};
  const int64_t begin = bucket.parameters.front()->offset;
  for (const Parameter* p : bucket.parameters) {
    Layer& layer = layers_.at(p->name);
    const bool compressed = layer.compressed && pays(layer);
    const Tensor x = flat.slice(p->offset - begin, p->offset - begin + p->size());
    const Item item{&layer, x, x.data<float>(), x.size()};
    (compressed ? e.compressed : e.dense).push_back(item);
    if (feedback_ && (compressed || feedback_->holds(p->name)))
      feedback_->compensate(p->name, item.x, item.n);
  }
  bool accepted;
  if (e.compressed.empty()) {
    accepted = sum_dense(bucket, flat, comm, ledger);
  } else {
    e.finite = all_finite(flat);
    if (!e.finite) flat.fill_zero();
    accepted = exchange(e);
  }
  if (accepted && feedback_)
    for (const Item& item : e.dense) feedback_->clear(item.name());
  if (bucket.flat.device().is_cuda()) bucket.flat.copy_from(flat);
  return accepted;
}

void CompressedReducer::set_choice(const std::string& parameter, double value) {
  const auto found = layers_.find(parameter);
  check(found != layers_.end(), "no parameter is called ", parameter);
  check(found->second.compressed, parameter, ": travels dense and has no setting");
  if (family_.keys.empty()) return Reducer::set_choice(parameter, value);
  check_value(family_.keys[0], value, parameter);
  found->second.choice = value;
}

double CompressedReducer::choice(const std::string& parameter) const {
  const auto found = layers_.find(parameter);
  check(found != layers_.end(), "no parameter is called ", parameter);
  return found->second.choice;
}

std::vector<std::pair<std::string, Tensor>> CompressedReducer::named_state() const {
  std::vector<std::pair<std::string, Tensor>> state;
  if (!feedback_) return state;
  for (const auto& [name, layer] : layers_)
    if (layer.compressed && (pays(layer) || feedback_->holds(name)))
      state.emplace_back("residual." + name, feedback_->residual(name, layer.parameter->size()));
  return state;
}

SumPayload::SumPayload(const std::vector<CompressedReducer::Item>& dense, int64_t values)
    : dense_(dense) {
  for (const auto& item : dense) values += item.n;
  data_ = Tensor::empty_on(Device{}, {values + 1});
  for (const auto& item : dense) add(item.name(), {item.n}).copy_from(item.tensor);
}

Tensor SumPayload::add(const std::string& layer, const Shape& shape) {
  const int64_t n = shape.elements();
  parts_.push_back({layer, PayloadKind::values, n * 4});
  used_ += n;
  return data_.slice(used_ - n, used_).reshape(shape);
}

bool SumPayload::all_reduce(const CompressedReducer::Exchange& e) {
  float* flag = data_.data<float>() + used_;
  *flag = e.finite ? 0.0f : 1.0f;
  parts_.push_back({"flag", PayloadKind::control, 4});
  e.ledger.book(e.comm, parts_, [&] { e.comm.all_reduce(data_); });
  return *flag == 0.0f && summable(data_.data<float>(), used_);
}

void SumPayload::take_dense() const {
  int64_t begin = 0;
  for (const auto& item : dense_) {
    item.tensor.copy_from(data_.slice(begin, begin + item.n));
    begin += item.n;
  }
}

bool sum_dense(const GradientBucket& bucket, const Tensor& flat, Communicator& comm,
               Ledger& ledger) {
  std::vector<PayloadPart> parts;
  for (const Parameter* p : bucket.parameters)
    parts.push_back({p->name, PayloadKind::values, p->size() * 4});
  ledger.book(comm, parts, [&] { comm.all_reduce(flat); });
  return all_finite(flat);  // NaN and Inf on one rank are not finite in the sum either
}

std::unique_ptr<Reducer> make_dense(const ReducerSetup& /*setup*/) {
  return std::make_unique<Dense>();
}

}  // namespace heddle
