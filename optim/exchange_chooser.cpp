#include "optim/exchange_chooser.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.h"

namespace heddle {
namespace {

double median(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::ranges::nth_element(values, middle);
  return *middle;
}

double step_end(double backward_s, const std::vector<BucketTimes>& buckets) {
  return std::max(backward_s, exchanges_end(buckets));
}

}  // namespace

double exchanges_end(const std::vector<BucketTimes>& buckets) {
  double free = 0;
  for (const BucketTimes& b : buckets) free = std::max(free, b.ready_s) + b.code_s + b.comm_s;
  return free;
}

ExchangeChoice choose_exchange(double backward_s, const std::vector<BucketTimes>& dense,
                               const std::vector<BucketTimes>& packed, double margin) {
  check(dense.size() == packed.size(), "exchange choice: expected both ways of ", dense.size(),
        " buckets, found ", packed.size());
  ExchangeChoice out;
  out.dense = dense;
  out.packed = packed;
  out.dense_s = step_end(backward_s, dense);
  out.compressed_s = step_end(backward_s, packed);
  const bool pure = out.compressed_s < out.dense_s * (1 - margin);
  const double best = pure ? out.compressed_s : out.dense_s;
  // Downhill from the better one: what changes places is the bucket that saves most.
  std::vector<bool> mixture(dense.size(), pure);
  std::vector<BucketTimes> buckets = pure ? packed : dense;
  double end = best;
  for (bool better = true; better;) {
    better = false;
    size_t change = 0;
    double least = end;
    for (size_t i = 0; i < buckets.size(); ++i) {
      const BucketTimes old = std::exchange(buckets[i], mixture[i] ? dense[i] : packed[i]);
      if (const double changed = step_end(backward_s, buckets); changed < least) {
        least = changed;
        change = i;
        better = true;
      }
      buckets[i] = old;
    }
    if (!better) break;
    buckets[change] = mixture[change] ? dense[change] : packed[change];
    mixture[change] = !mixture[change];
    end = least;
  }
  const bool mix = end < best * (1 - margin);
  out.compressed = mix ? mixture : std::vector<bool>(dense.size(), pure);
  out.chosen_s = mix ? end : best;
  return out;
}

ExchangeChooser::ExchangeChooser(CompressedReducer& reducer,
                                 std::vector<std::vector<std::string>> buckets,
                                 const ExchangeChooserOptions& options, int64_t start)
    : reducer_(reducer),
      buckets_(std::move(buckets)),
      options_(options),
      next_trial_(start),
      chosen_(buckets_.size(), false),
      now_(buckets_.size()) {
  check(options.every > 0 && options.trial > 1,
        "exchange choice: expected every above 0 and trial ", "above 1, found ", options.every,
        ", ", options.trial);
  resume(0);
}

void ExchangeChooser::resume(int64_t step) {
  if (step >= next_trial_) start(Phase::dense_trial, std::vector<bool>(buckets_.size(), false));
}

void ExchangeChooser::start(Phase phase, const std::vector<bool>& compressed) {
  phase_ = phase;
  steps_ = 0;
  for (size_t i = 0; i < buckets_.size(); ++i)
    for (const std::string& parameter : buckets_[i])
      reducer_.travel_dense(parameter, !compressed[i]);
  if (phase == Phase::dense_trial) {
    backward_.clear();
    dense_.assign(buckets_.size(), {});
    packed_.assign(buckets_.size(), {});
  }
}

void ExchangeChooser::begin_step() { begin_ = options_.clock(); }
void ExchangeChooser::ready(size_t bucket) { now_[bucket].ready_s = options_.clock() - begin_; }
void ExchangeChooser::backward_ended() { backward_s_ = options_.clock() - begin_; }

void ExchangeChooser::exchanged(size_t bucket, double code_s, double comm_s) {
  now_[bucket].code_s = code_s;
  now_[bucket].comm_s = comm_s;
}

void ExchangeChooser::finish_step(int64_t step, const LayerPlanner::Collective& collective) {
  if (phase_ == Phase::waiting) return resume(step);
  if (++steps_ > 1) {
    backward_.push_back(backward_s_);
    auto& samples = phase_ == Phase::dense_trial ? dense_ : packed_;
    for (size_t i = 0; i < now_.size(); ++i) {
      samples[i].ready.push_back(now_[i].ready_s);
      samples[i].code.push_back(now_[i].code_s);
      samples[i].comm.push_back(now_[i].comm_s);
    }
  }
  if (steps_ < options_.trial) return;
  if (phase_ == Phase::dense_trial)
    return start(Phase::packed_trial, std::vector<bool>(buckets_.size(), true));
  decide(step, collective);
}

void ExchangeChooser::decide(int64_t step, const LayerPlanner::Collective& collective) {
  std::vector<double> means = {median(backward_)};
  for (const auto* way : {&dense_, &packed_})
    for (const Samples& s : *way)
      means.insert(means.end(), {median(s.ready), median(s.code), median(s.comm)});
  collective("exchange choice", [&](Communicator& comm) { means = mean_over_ranks(comm, means); });
  std::vector<BucketTimes> dense(buckets_.size()), packed(buckets_.size());
  auto at = means.begin() + 1;
  for (auto* way : {&dense, &packed})
    for (BucketTimes& b : *way) {
      b = {at[0], at[1], at[2]};
      at += 3;
    }
  ExchangeChoice choice = choose_exchange(means[0], dense, packed, options_.margin);
  choice.step = step;
  choice.parameters = buckets_;
  chosen_ = choice.compressed;
  start(Phase::waiting, chosen_);
  // A trial is some steps of the way that is not chosen.
  const double dearer = std::max(choice.dense_s, choice.compressed_s) / choice.chosen_s - 1;
  const double rest = static_cast<double>(options_.trial) * dearer / options_.trial_cost;
  next_trial_ = step + std::max(options_.every, static_cast<int64_t>(std::min(rest, 1e12)));
  if (options_.on_choice) options_.on_choice(choice);
}

}  // namespace heddle
