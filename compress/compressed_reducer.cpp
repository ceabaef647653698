#include "compress/compressed_reducer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <regex>
#include <set>

#include "compress/codecs/magnitude.h"
#include "compress/codecs/sparse_kernels.h"
#include "compress/dense.h"
#include "core/kernels.h"

namespace heddle {
namespace {

// What a rank may add to a sum leaves room for others: a residual beyond it could never be sent.
constexpr float kMaxAddend = 1e30f;
constexpr double kFirstRate = 4;  // of a ramp
constexpr int64_t kChunk = 4096;  // elements in which residuals are added where nobody asks

// Of the parameters with four axes the one that was added first, and so lies last.
const Parameter* first_convolution(const ParameterStore& store) {
  for (const Parameter& p : store.parameters())
    if (p.shape().rank() == 4) return &p;
  return nullptr;
}

void add_up(const NamedTensors& seen, std::map<std::string, Tensor>& sums) {
  for (const auto& [name, x] : seen) {
    const auto [sum, first] = sums.emplace(name, x);
    if (!first) axpy(1, x, sum->second);
  }
}

PayloadKind kind_of(const std::string& name) {
  return name == kControlWords ? PayloadKind::control : PayloadKind::values;
}

}  // namespace

void Reducer::set_choice(const std::string& parameter, double) {
  throw InputError(concat(parameter, ": ", name(), " has no setting for this layer"));
}

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
  if (const auto ramp = setup.spec.values.find("ramp"); ramp != setup.spec.values.end())
    ramp_ = static_cast<int64_t>(ramp->second);
  const Parameter* first = first_convolution(setup.store);
  for (const Parameter& p : setup.store.parameters()) {
    const bool named = !options.dense_layers.empty() && std::regex_search(p.name, dense);
    const bool compressed =
        p.shape().rank() > 1 && p.size() >= options.min_compress && &p != first && !named;
    layers_[p.name] = {&p, layers_.size(), compressed, compressed ? choice : 0, false};
  }
}

bool CompressedReducer::reduce(const GradientBucket& bucket, Communicator& comm, Ledger& ledger) {
  // A window sums up on the host.
  const Device device = works_on_devices() && !window_ ? bucket.flat.device() : Device{};
  const Tensor flat = bucket.flat.to(device);
  Exchange e{device, {}, {}, true, 0, bucket.step, bucket.compressed_steps, comm, ledger};
  NamedTensors gradients;  // for a window, as they are before residuals
  sort(bucket, flat, e, gradients);
  bool accepted;
  if (e.compressed.empty()) {
    sum_dense(bucket, flat, comm, ledger);
    // Beyond it a gradient that a skipped step left owed could never be sent.
    accepted = largest_magnitude_of({flat}) <= magnitude(kMaxAddend);
  } else {
    if (bucket.control > 0)
      e.dense.emplace_back(kControlWords, flat.slice(flat.size() - bucket.control, flat.size()));
    check_finite(e);
    accepted = window_ ? exchange_in_window(e, gradients) : exchange_or_restore(e);
  }
  if (accepted && feedback_)
    for (const auto& [name, x] : e.dense) feedback_->mark_sent_whole(name);
  for (const Item& item : e.compressed)
    if (feedback_)
      explain("residual", item.name(), [&] {
        return Figures{{accepted ? "residual norm" : "as it was: residual norm",
                        norm(feedback_->residual(item.name(), item.n(), device))}};
      });
  if (bucket.flat.device() != device) bucket.flat.copy_from(flat);
  if (!accepted) mark_culprit(bucket, e);
  return accepted;
}

// Of all ranks' culprits the first becomes NaN on each of them, for whoever names it.
void CompressedReducer::mark_culprit(const GradientBucket& bucket, Exchange& e) const {
  std::vector<std::vector<uint64_t>> culprits;
  e.ledger.book(e.comm, {{"culprit", PayloadKind::control, 8}},
                [&] { culprits = gather_values(e.comm, std::vector{e.culprit}); });
  for (const Parameter* p : bucket.parameters)
    if (layers_.at(p->name).index + 1 == std::ranges::max(culprits)[0])
      fill(p->grad, std::numeric_limits<float>::quiet_NaN());
}

// A bucket's layers into those that are compressed and those that travel dense, residuals added.
void CompressedReducer::sort(const GradientBucket& bucket, const Tensor& flat, Exchange& e,
                             NamedTensors& gradients) {
  const TraceRange range("compress", "compensate");
  const int64_t begin = bucket.parameters.front()->offset;
  for (const Parameter* p : bucket.parameters) {
    Layer& layer = layers_.at(p->name);
    const Tensor x = flat.slice(p->offset - begin, p->offset - begin + p->size());
    if (layer.compressed && !layer.dense && shrinks(layer)) {
      layer.now = ramped(layer.choice, e.compressed_steps);
      if (window_ && window_has_gradients_ && feedback_) gradients.emplace_back(p->name, x.clone());
      e.compressed.push_back(item_of(layer, x, e));
    } else {
      if (feedback_ && feedback_->holds(p->name)) compensate(p->name, x);
      e.dense.emplace_back(p->name, x);
    }
  }
}

// Nothing but zeros travels of what is not finite, with a flag; remembers the first culprit.
void CompressedReducer::check_finite(Exchange& e) const {
  const TraceRange range("compress", "check");
  std::vector<Tensor> values, known;
  for (const Item& item : e.compressed)
    if (item.magnitudes.defined())
      known.push_back(item.magnitudes);
    else
      values.push_back(item.tensor);
  for (const auto& [name, x] : e.dense) values.push_back(x);
  e.finite = largest_magnitude_of(values, known) <= magnitude(kMaxAddend);
  if (e.finite) return;
  const auto clear = [&](const std::string& name, const Tensor& x) {
    if (layers_.contains(name) && largest_magnitude_of({x}) > magnitude(kMaxAddend))
      e.culprit = std::max(e.culprit, layers_.at(name).index + 1);
    x.fill_zero();
  };
  for (const Item& item : e.compressed) clear(item.name(), item.tensor);
  for (const auto& [name, x] : e.dense) clear(name, x);
}

CompressedReducer::Item CompressedReducer::item_of(Layer& layer, const Tensor& gradient,
                                                   const Exchange& e) {
  if (!feedback_) return {&layer, gradient, gradient, {}, {}};
  const int64_t asked = chunk(layer, e);
  const double alone = explaining() ? norm(gradient) : 0;
  const Accumulated all =
      feedback_->accumulate(layer.parameter->name, gradient, asked > 0 ? asked : kChunk);
  explain("compensate", layer.parameter->name, [&] {  // the old residual lies in the gradient now
    return Figures{
        {"gradient norm", alone}, {"residual norm", norm(gradient)}, {"together", norm(all.x)}};
  });
  return {&layer, all.x, gradient, asked > 0 ? all.indices : Tensor{}, all.magnitudes};
}

// Of a layer that travels dense and is still owed something.
void CompressedReducer::compensate(const std::string& name, const Tensor& x) {
  explain("compensate", name, [&] {
    return Figures{
        {"gradient norm", norm(x)},
        {"residual norm, sent whole", norm(feedback_->residual(name, x.size(), x.device()))}};
  });
  feedback_->compensate(name, x);
}

// Leaves the residuals as they were unless the step counts.
bool CompressedReducer::exchange_or_restore(Exchange& e) {
  const auto restore = [&] {
    for (const Item& item : e.compressed)
      if (feedback_) feedback_->restore(item.name(), item.sum);
  };
  try {
    if (exchange(e)) return true;
  } catch (...) {
    restore();
    throw;
  }
  restore();
  return false;
}

bool CompressedReducer::exchange_in_window(Exchange& e, const NamedTensors& gradients) {
  NamedTensors seen;
  for (const Item& item : e.compressed) seen.emplace_back(item.name(), item.tensor.clone());
  const int64_t payload = e.ledger.total().payload;
  const double seconds = e.ledger.seconds();
  if (!exchange_or_restore(e)) return false;
  window_->exchanges.push_back({e.ledger.total().payload - payload, e.ledger.seconds() - seconds});
  add_up(seen, window_->sums);
  add_up(gradients, window_->gradients);
  return true;
}

void CompressedReducer::open_window(bool gradients) {
  window_.emplace();
  window_has_gradients_ = gradients;
}

GradientWindow CompressedReducer::close_window() {
  GradientWindow window;
  if (window_) window = std::move(*window_);
  if (window_has_gradients_ && !feedback_) window.gradients = window.sums;
  window_.reset();
  return window;
}

int64_t CompressedReducer::payload(const std::string& parameter) const {
  const Layer& layer = layers_.at(parameter);
  const bool open = !family_.keys.empty() && undecided(layer.choice);
  return compresses(parameter) && !open ? bytes(layer, layer.choice) : layer.parameter->size() * 4;
}

std::vector<LayerChoices> CompressedReducer::candidates() const {
  std::vector<LayerChoices> layers;
  for (const auto& [name, layer] : layers_) {
    if (!layer.compressed || family_.keys.empty() || !shrinks(layer)) continue;
    LayerChoices& choices = layers.emplace_back();
    choices.name = name;
    const bool open = undecided(layer.choice);
    choices.settings = open ? std::vector<double>{0} : settings(layer);
    for (const double setting : choices.settings)
      choices.bytes.push_back(open ? layer.parameter->size() * 4 : bytes(layer, setting));
    const auto uniform = std::ranges::find(choices.settings, layer.choice);
    choices.uniform = static_cast<size_t>(uniform - choices.settings.begin());
  }
  return layers;
}

std::vector<double> CompressedReducer::errors(const LayerChoices& layer, const Tensor& x) const {
  if (undecided(layer.settings[0])) return {std::numeric_limits<double>::infinity()};
  return lost_norms(layers_.at(layer.name), x, layer.settings);
}

std::vector<double> CompressedReducer::seconds(const LayerChoices& layer, const Tensor& x) const {
  if (undecided(layer.settings[0])) return {std::numeric_limits<double>::infinity()};
  std::vector<double> seconds;
  for (const double setting : layer.settings)
    seconds.push_back(codec_seconds(layers_.at(layer.name), x, setting));
  return seconds;
}

double CompressedReducer::codec_seconds(const Layer& layer, const Tensor& x, double setting) const {
  return timed([&] { (void)lost_norms(layer, x, {setting}); });
}

std::vector<double> CompressedReducer::settings(const Layer& layer) const {
  const SpecKey& key = family_.keys[0];
  std::set<double> around;
  for (int i = -4; i <= 4; ++i) {
    const double setting = layer.choice * std::exp2(i / 2.0);
    around.insert(std::clamp(key.whole ? std::round(setting) : setting, key.low, key.high));
  }
  return {around.begin(), around.end()};
}

std::vector<double> CompressedReducer::lost_norms(const Layer& /*layer*/, const Tensor& /*x*/,
                                                  const std::vector<double>& /*settings*/) const {
  throw InputError(concat(name(), " does not say what it loses: no plan of its settings"));
}

double CompressedReducer::ramped(double choice, int64_t compressed_steps) const {
  const double rate = choice < 1 ? 1 / choice : choice;
  if (compressed_steps >= ramp_ || undecided(choice) || rate <= kFirstRate) return choice;
  const double done = static_cast<double>(compressed_steps) / static_cast<double>(ramp_);
  const double now = kFirstRate * std::pow(rate / kFirstRate, done);
  return choice < 1 ? 1 / now : std::round(now);
}

bool CompressedReducer::compresses(const std::string& parameter) const {
  const Layer& layer = layers_.at(parameter);
  return layer.compressed && !layer.dense && shrinks(layer);
}

void CompressedReducer::set_dense(const std::string& parameter, bool dense) {
  layers_.at(parameter).dense = dense;
}

void CompressedReducer::return_unapplied(const GradientBucket& bucket, int ranks) {
  if (!feedback_) return;
  for (const Parameter* p : bucket.parameters)
    if (layers_.at(p->name).compressed)
      feedback_->return_unapplied(p->name, p->grad.reshape({p->size()}), 1.0 / ranks);
}

std::map<std::string, double> CompressedReducer::choices() const {
  std::map<std::string, double> choices;
  for (const auto& [name, layer] : layers_)
    if (layer.compressed && !family_.keys.empty()) choices[name] = layer.choice;
  return choices;
}

void CompressedReducer::set_choice(const std::string& parameter, double value) {
  if (!choices().contains(parameter)) return Reducer::set_choice(parameter, value);
  check_value(family_.keys[0], value, parameter);
  layers_.at(parameter).choice = value;
}

NamedTensors CompressedReducer::named_state() const {
  NamedTensors state;
  for (const auto& [name, layer] : layers_)
    if (feedback_ && layer.compressed && (shrinks(layer) || feedback_->holds(name)))
      state.emplace_back("residual." + name, feedback_->residual(name, layer.parameter->size()));
  return state;
}

void CompressedReducer::explain_selection(const Item& item, const Tensor& values, const char* file,
                                          int line) {
  const auto figures = [&] {
    const double kept = squared_norm(values) / squared_norm(item.tensor);
    return Figures{{"chosen", static_cast<double>(values.size()), Unit::count},
                   {"elements", static_cast<double>(item.n()), Unit::count},
                   {"energy kept", 100 * kept, Unit::percent}};
  };
  explain("select", item.name(), figures, file, line);
}

bool CompressedReducer::all_reduce(Exchange& e, const NamedTensors& tensors) {
  std::vector<PayloadPart> parts;
  int64_t n = 0;
  for (const auto& [name, x] : tensors) {
    parts.push_back({name, kind_of(name), x.bytes()});
    n += x.size();
  }
  parts.push_back({"flag", PayloadKind::control, 4});
  const Tensor payload = Tensor::empty_on(e.device, {n + 1}), sums = payload.slice(0, n);
  const Tensor flag = payload.slice(n, n + 1);
  fill(flag, e.finite ? 0.0f : 1.0f);
  const auto for_all = [&](const auto& each) {
    int64_t at = 0;
    for (const auto& [name, x] : tensors) {
      const Tensor values = x.reshape({x.size()});
      each(values, sums.slice(at, at + x.size()));
      at += x.size();
    }
  };
  for_all([](const Tensor& x, const Tensor& part) { part.copy_from(x); });
  e.ledger.book(e.comm, parts, [&] { e.comm.all_reduce(payload); });
  if (flag.item() != 0 || largest_magnitude_of({sums}) > magnitude(kMaxSum)) return false;
  for_all([](const Tensor& x, const Tensor& part) { x.copy_from(part); });
  return true;
}

}  // namespace heddle
