#include "compress/compressed_reducer.h"

#include <algorithm>
#include <limits>

#include "compress/codecs/magnitude.h"
#include "compress/codecs/sparse_kernels.h"
#include "compress/dense.h"
#include "core/joined_launches.h"
#include "core/kernels.h"

namespace heddle {
namespace {

constexpr int64_t kChunk = 4096;  // elements per chunk where an algorithm asks for none

bool summable(const Tensor& x) { return largest_magnitude_of({x}) <= magnitude(kMaxAddend); }

}  // namespace

bool CompressedReducer::reduce(const GradientBucket& bucket, Communicator& comm, Ledger& ledger) {
  // A window sums on the host.
  const Device device =
      works_on_devices() && window_.window() == nullptr ? bucket.flat.device() : Device{};
  const Tensor flat = bucket.flat.to(device);
  Exchange e{device, {}, {}, bucket.step, bucket.compressed_steps, comm, ledger};
  window_.begin(ledger);
  add_residuals(bucket, flat, e);
  bool accepted;
  if (e.compressed.empty()) {
    sum_dense(bucket, flat, comm, ledger);
    accepted = summable(flat);
  } else {
    check_values(e, e.device.is_cuda() && leaves_checks_to_sums());
    accepted = exchange_or_restore(e);
  }
  finish_residuals(e, accepted);
  if (bucket.flat.device() != device) bucket.flat.copy_from(flat);
  if (!accepted) mark_culprit(bucket, e);
  return accepted;
}

// Sorts a bucket's layers into compressed and dense ones and adds residuals: by swapping memory to
// a compressed layer, in place to a dense one that still has a residual, unless it is a trial.
void CompressedReducer::add_residuals(const GradientBucket& bucket, const Tensor& flat,
                                      Exchange& e) {
  const TraceRange range("compress", "compensate");
  const int64_t begin = bucket.parameters.front()->offset;
  std::vector<Compensated> held;  // joined loops write to them
  JoinedLaunches joined;
  for (const Parameter* p : bucket.parameters) {
    Layer& layer = layers_.at(p->name);
    const Tensor gradient = flat.slice(p->offset - begin, p->offset - begin + p->size());
    if (!is_compressed(layer)) {
      if (feedback_ && !layer.trial && feedback_->holds(p->name)) {
        explain("compensate", p->name, [&] {
          const Tensor residual = feedback_->residual(p->name, p->size(), e.device);
          return Figures{{"gradient norm", norm(gradient)},
                         {"residual norm, sent whole", norm(residual)}};
        });
        feedback_->compensate(p->name, gradient);
      }
      e.dense.emplace_back(p->name, gradient);
      continue;
    }
    layer.now = layers_.ramped(layer.choice, e.compressed_steps);
    window_.see_alone(p->name, gradient);
    if (!feedback_) {
      e.compressed.push_back({&layer, gradient, gradient, {}, {}});
    } else {
      const int64_t asked = chunk(layer, e);
      const double alone = explaining() ? norm(gradient) : 0;
      const Compensated all = held.emplace_back(
          feedback_->compensate_swapping(p->name, gradient, asked > 0 ? asked : kChunk));
      if (explaining() || held.size() % 8 == 0) joined.launch();  // the GPU begins meanwhile
      explain("compensate", p->name, [&] {
        return Figures{{"gradient norm", alone},
                       {"residual norm", norm(all.old_residual)},
                       {"together", norm(all.x)}};
      });
      e.compressed.push_back(
          {&layer, all.x, all.old_residual, asked > 0 ? all.indices : Tensor{}, all.magnitudes});
    }
  }
  joined.launch();
  if (bucket.control > 0 && !e.compressed.empty())
    e.dense.emplace_back(kControlWords, flat.slice(flat.size() - bucket.control, flat.size()));
}

// If any value is non-finite or too large to be summed, clears the rank's whole bucket, so that
// zeros and a flag are sent, and remembers the first layer with such a value. `on_gpu`: only begins
// the search, so that the host need not wait for its result; if the bucket is rejected, a second
// call looks at the tensors as exchange() left them, which may be sums. A NaN is found in its layer
// either way.
void CompressedReducer::check_values(Exchange& e, bool on_gpu) const {
  const TraceRange range("compress", "check");
  std::vector<Tensor> values;
  for (const Item& item : e.compressed)
    values.push_back(item.magnitudes.defined() ? item.magnitudes : item.tensor);
  for (const auto& [name, x] : e.dense) values.push_back(x);
  e.unchecked = on_gpu ? largest_magnitudes_on_gpu(values) : Tensor{};
  e.finite = on_gpu || largest_magnitude_of(values) <= magnitude(kMaxAddend);
  if (e.finite) return;
  const auto clear = [&](const std::string& name, const Tensor& x) {
    if (name != kControlWords && !summable(x))
      e.culprit = std::max(e.culprit, layers_.at(name).index + 1);
    x.fill_zero();
  };
  for (const Item& item : e.compressed) clear(item.name(), item.tensor);
  for (const auto& [name, x] : e.dense) clear(name, x);
}

// Runs the algorithm. Unless it accepts the bucket, residuals become what they were before it.
bool CompressedReducer::exchange_or_restore(Exchange& e) {
  for (const Item& item : e.compressed) window_.see_compensated(item.name(), item.tensor);
  const auto restore = [&] {
    for (const Item& item : e.compressed)
      if (feedback_) feedback_->restore(item.name(), item.old_residual());
  };
  bool accepted = false;
  try {
    accepted = exchange(e);
  } catch (...) {
    restore();
    throw;
  }
  if (accepted) {
    window_.accept(e.ledger);
  } else {
    if (e.unchecked.defined()) check_values(e, false);  // for mark_culprit()
    restore();
  }
  return accepted;
}

void CompressedReducer::finish_residuals(const Exchange& e, bool accepted) {
  if (!feedback_) return;
  if (accepted)
    for (const auto& [name, x] : e.dense)
      if (feedback_->holds(name) && !layers_.at(name).trial) feedback_->mark_sent_whole(name);
  for (const Item& item : e.compressed)
    explain("residual", item.name(), [&] {
      return Figures{{accepted ? "residual norm" : "as it was: residual norm",
                      norm(feedback_->residual(item.name(), item.n(), e.device))}};
    });
}

// Fills with NaN, on all ranks, whichever of the ranks' culprits comes first in memory, for whoever
// reports it. Layers lie in memory in the reverse order of their creation.
void CompressedReducer::mark_culprit(const GradientBucket& bucket, Exchange& e) const {
  std::vector<std::vector<uint64_t>> culprits;
  e.ledger.book(e.comm, {{"culprit", PayloadKind::control, 8}},
                [&] { culprits = gather_values(e.comm, std::vector{e.culprit}); });
  for (const Parameter* p : bucket.parameters)
    if (layers_.at(p->name).index + 1 == std::ranges::max(culprits)[0])
      fill(p->grad, std::numeric_limits<float>::quiet_NaN());
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
    if (layer.compressed && layers_.has_settings()) choices[name] = layer.choice;
  return choices;
}

void CompressedReducer::set_choice(const std::string& parameter, double value) {
  if (!choices().contains(parameter)) return Reducer::set_choice(parameter, value);
  check_value(layers_.family().keys[0], value, parameter);
  layers_.at(parameter).choice = value;
}

NamedTensors CompressedReducer::named_state() const {
  NamedTensors state;
  for (const auto& [name, layer] : layers_)
    if (feedback_ && layer.compressed && (shrinks(layer) || feedback_->holds(name)))
      state.emplace_back("residual." + name, feedback_->residual(name, layer.size()));
  return state;
}

}  // namespace heddle
