#include "compress/plan/exchange_chooser.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.h"

namespace heddle {
namespace {

// Rounds in which both ways are tried, so that other load on the machine slows both; more of them
// near a tie, where noise decides.
constexpr int kRounds = 2, kMaxRounds = 8;

// Returns the lower median: disturbances only make times longer.
double lower_median(std::vector<double> values) {
  const auto middle = values.begin() + (std::ssize(values) - 1) / 2;
  std::ranges::nth_element(values, middle);
  return *middle;
}

// Predicts a step with some buckets dense, some compressed. Encoding slows the backward pass that
// runs at the same time: later events are delayed in proportion to the encoding before them, and
// are never earlier.
ExchangeTrial mixture(const ExchangeTrial& dense, const ExchangeTrial& coded,
                      const std::vector<bool>& compressed) {
  constexpr double kSome = 1e-12;  // if nothing takes time, all buckets have equal weight
  ExchangeTrial out;
  double code = 0, all = 0;
  const auto later = [&](double dense_s, double coded_s) {
    return all > 0 ? dense_s + std::max(0.0, coded_s - dense_s) * code / all : dense_s;
  };
  for (size_t i = 0; i < compressed.size(); ++i) {
    const BucketTimes &plain = dense.buckets[i], &small = coded.buckets[i];
    out.buckets.push_back(compressed[i] ? small : plain);
    out.buckets.back().ready_s = later(plain.ready_s, small.ready_s);
    all += small.code_s + kSome;
    if (compressed[i]) code += small.code_s + kSome;
  }
  out.backward_s = later(dense.backward_s, coded.backward_s);
  out.rest_s = later(dense.rest_s, coded.rest_s);
  return out;
}

// Predicts a step with joined buckets: they are ready when the last one is, have the latencies of a
// single one, and take no less time than these latencies or than any of the buckets alone, since
// the measured times of neighbours overlap.
ExchangeTrial merged(const ExchangeTrial& apart, const std::vector<bool>& joined,
                     double latency_s) {
  ExchangeTrial out{.backward_s = apart.backward_s, .rest_s = apart.rest_s};
  for (size_t i = 0; i < joined.size(); ++i) {
    const BucketTimes& b = apart.buckets[i];
    if (!joined[i]) {
      out.buckets.push_back(b);
      continue;
    }
    BucketTimes& a = out.buckets.back();
    const double rest_s = a.comm_s + b.comm_s - std::min(a.latencies, b.latencies) * latency_s;
    a.ready_s = std::max(a.ready_s, b.ready_s);
    a.code_s += b.code_s;
    a.latencies = std::max(a.latencies, b.latencies);
    a.comm_s = std::max({rest_s, a.comm_s, b.comm_s, a.latencies * latency_s});
  }
  return out;
}

// Makes the one change that saves the most time, until none saves any. Returns the step's end.
template <class End, class Allowed>
double descend(std::vector<bool>& choice, const End& end_of, const Allowed& allowed) {
  double end = end_of(choice);
  for (;;) {
    size_t change = choice.size();
    for (size_t i = 0; i < choice.size(); ++i) {
      if (!allowed(i)) continue;
      choice[i] = !choice[i];
      if (const double changed = end_of(choice); changed < end) end = changed, change = i;
      choice[i] = !choice[i];
    }
    if (change == choice.size()) return end;
    choice[change] = !choice[change];
  }
}

}  // namespace

double exchanges_end(const std::vector<BucketTimes>& buckets) {
  double free = 0;
  for (const BucketTimes& b : buckets) free = std::max(free, b.ready_s) + b.code_s + b.comm_s;
  return free;
}

double step_seconds(const ExchangeTrial& trial) {
  return std::max(trial.backward_s, exchanges_end(trial.buckets)) + trial.rest_s;
}

bool ExchangeChoice::tried() const {
  return std::ranges::count(joined, true) == 0 &&
         std::ranges::count(compressed, compressed.front()) == std::ssize(compressed);
}

double ExchangeChoice::used_s() const {
  if (found_s > 0 && !dropped) return found_s;
  return compressed.front() ? compressed_s : dense_s;
}

ExchangeChoice choose_exchange(const ExchangeTrial& dense, const ExchangeTrial& coded,
                               double latency_s, double margin) {
  const size_t n = dense.buckets.size();
  check(n > 0 && n == coded.buckets.size(), "exchange choice: expected the same buckets, found ", n,
        " dense and ", coded.buckets.size(), " compressed ones");
  ExchangeChoice out;
  out.dense_trial = dense;
  out.compressed_trial = coded;
  const std::vector<bool> none(n, false), all(n, true);
  out.dense_s = step_seconds(dense);
  out.compressed_s = step_seconds(mixture(dense, coded, all));
  const bool pure = out.compressed_s < out.dense_s * (1 - margin);
  out.compressed = pure ? all : none;
  out.joined = none;
  out.chosen_s = pure ? out.compressed_s : out.dense_s;
  const auto worth = [&](double end) { return end < out.chosen_s * (1 - margin); };

  std::vector<bool> mixed = out.compressed;
  const double mixed_s = descend(
      mixed, [&](const auto& x) { return step_seconds(mixture(dense, coded, x)); },
      [](size_t) { return true; });
  if (worth(mixed_s)) out.compressed = mixed, out.chosen_s = mixed_s;

  // A choice that is slower with separate buckets may be faster with joined ones.
  ExchangeChoice best = out;
  for (const std::vector<bool>& compressed : {out.compressed, none, all}) {
    const ExchangeTrial apart = mixture(dense, coded, compressed);
    std::vector<bool> joined = none;
    const double joined_s = descend(
        joined, [&](const auto& x) { return step_seconds(merged(apart, x, latency_s)); },
        [&](size_t i) { return i > 0 && compressed[i] == compressed[i - 1]; });
    if (!worth(joined_s) || joined_s >= best.chosen_s) continue;
    best.compressed = compressed;
    best.joined = joined;
    best.chosen_s = joined_s;
  }
  return best;
}

ExchangeChooser::ExchangeChooser(CompressedReducer& reducer,
                                 std::vector<std::vector<std::string>> buckets,
                                 const ExchangeChooserOptions& options, int64_t start)
    : reducer_(reducer),
      buckets_(std::move(buckets)),
      options_(options),
      next_trial_(start),
      joined_(buckets_.size(), false),
      now_(buckets_.size()) {
  check(options.every > 0 && options.trial >= 2 * kRounds,
        "exchange choice: expected every above 0 and trial of at least ", 2 * kRounds, ", found ",
        options.every, " and ", options.trial);
  resume(0);
}

void ExchangeChooser::resume(int64_t step) {
  if (step < next_trial_) return;
  rounds_ = 0;
  trials_.clear();
  try_all(Phase::dense_trial);
}

void ExchangeChooser::start(Phase phase, const std::vector<bool>& compressed,
                            const std::vector<bool>& joined) {
  phase_ = phase, steps_ = 0;
  joined_ = joined;
  now_.assign(to_size(std::ranges::count(joined, false)), {});
  const bool trial = phase == Phase::dense_trial;
  for (size_t i = 0; i < buckets_.size(); ++i)
    for (const auto& name : buckets_[i]) reducer_.set_dense(name, !compressed[i], trial);
}

void ExchangeChooser::begin_step() { begin_ = options_.clock(); }
void ExchangeChooser::ready(size_t bucket) { now_[bucket].ready_s = options_.clock() - begin_; }
void ExchangeChooser::backward_ended() { backward_s_ = options_.clock() - begin_; }

void ExchangeChooser::exchanged(size_t bucket, double code_s, double comm_s, double latencies) {
  now_[bucket] = {now_[bucket].ready_s, code_s, comm_s, latencies};
}

void ExchangeChooser::finish_step(int64_t step, const LayerPlanner::Collective& collective) {
  if (phase_ == Phase::waiting) return resume(step);
  if (++steps_ > 1) {
    trials_[phase_].backward.push_back(backward_s_);
    trials_[phase_].step.push_back(options_.clock() - begin_);
    trials_[phase_].buckets.push_back(now_);
  }
  if (steps_ < options_.trial / (phase_ == Phase::check ? 1 : kRounds)) return;
  if (phase_ == Phase::dense_trial) return try_all(Phase::compressed_trial);
  if (phase_ == Phase::compressed_trial) {
    if (++rounds_ < kRounds) return try_all(Phase::dense_trial);
    const ExchangeTrial dense = mean_of_ranks(Phase::dense_trial, collective);
    choice_ = choose_exchange(dense, mean_of_ranks(phase_, collective), options_.latency_s,
                              options_.margin);
    const double apart_s = std::abs(choice_.dense_s - choice_.compressed_s);
    if (rounds_ < kMaxRounds && apart_s < options_.tie * choice_.dense_s)
      return try_all(Phase::dense_trial);
    choice_.parameters = buckets_;
    if (!choice_.tried()) return start(Phase::check, choice_.compressed, choice_.joined);
  } else {
    check_choice(step_seconds(mean_of_ranks(phase_, collective)));
  }
  adopt(step);
}

// Returns medians over steps, averaged over ranks.
ExchangeTrial ExchangeChooser::mean_of_ranks(Phase phase,
                                             const LayerPlanner::Collective& collective) const {
  const Trial& trial = trials_.at(phase);
  std::vector<double> means = {lower_median(trial.backward), lower_median(trial.step)};
  for (size_t i = 0; i < trial.buckets[0].size(); ++i)
    for (const auto part : {&BucketTimes::ready_s, &BucketTimes::code_s, &BucketTimes::comm_s,
                            &BucketTimes::latencies}) {
      std::vector<double> values;
      for (const auto& step : trial.buckets) values.push_back(step[i].*part);
      means.push_back(lower_median(values));
    }
  collective("exchange choice", [&](Communicator& comm) { means = mean_over_ranks(comm, means); });
  ExchangeTrial out{.backward_s = means[0]};
  for (size_t at = 2; at < means.size(); at += 4)
    out.buckets.push_back({means[at], means[at + 1], means[at + 2], means[at + 3]});
  out.rest_s = std::max(0.0, means[1] - step_seconds(out));
  return out;
}

void ExchangeChooser::check_choice(double found_s) {
  const bool pure = choice_.compressed_s < choice_.dense_s * (1 - options_.margin);
  choice_.found_s = found_s;
  choice_.dropped = found_s >= (pure ? choice_.compressed_s : choice_.dense_s);
  if (!choice_.dropped) return;
  choice_.compressed = every_bucket(pure), choice_.joined = every_bucket(false);
}

void ExchangeChooser::adopt(int64_t step) {
  choice_.step = step;
  start(Phase::waiting, choice_.compressed, choice_.joined);
  // A trial costs the additional time of the way that is not used.
  double excess = 0;
  for (const double tried_s : {choice_.dense_s, choice_.compressed_s})
    excess += std::max(0.0, tried_s / choice_.used_s() - 1);
  const auto tried = to_double(options_.trial * rounds_ / kRounds);
  const double rest = tried * excess / options_.trial_cost;
  next_trial_ = step + std::max(options_.every, to_int64(std::min(rest, 1e12)));
  if (options_.on_choice) options_.on_choice(choice_);
}

}  // namespace heddle
