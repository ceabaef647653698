#include "apps/benchmarks/headroom.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <numeric>
#include <string_view>
#include <utility>

#include "apps/cli/program.h"
#include "apps/session/exchange.h"
#include "comm/threads.h"
#include "core/error.h"
#include "core/streams.h"
#include "core/trace.h"
#include "optim/data_parallel.h"
#include "optim/host_levels.h"

namespace heddle {
namespace {

// With many short rounds, other work on the machine disturbs all exchanges equally; each round
// costs an uncounted step of every exchange.
constexpr int kLeastRounds = 2, kMostRounds = 8;
constexpr int kFewSteps = 6;  // desired number per exchange and round
const std::vector<std::string> kCandidates = {"bf16", "qsgd:bits=4", "powersgd:rank=4",
                                              "scalecom:rate=100"};

double slowest(Communicator& comm, double seconds) {
  double out = 0;
  for (const auto& of_rank : gather_values(comm, std::vector{seconds}))
    out = std::max(out, of_rank[0]);
  return out;
}

// Ticks of all processors since boot; stolen: those that other guests of a virtual machine's host
// got (proc(5), /proc/stat).
struct ProcessorTicks {
  double stolen = 0, wanted = 0;
};

ProcessorTicks processor_ticks() {
  std::ifstream in("/proc/stat");
  std::string cpu;
  double user = 0, nice = 0, system = 0, idle = 0, iowait = 0, irq = 0, softirq = 0, steal = 0;
  if (!(in >> cpu >> user >> nice >> system >> idle >> iowait >> irq >> softirq >> steal))
    return {};
  return {steal, user + nice + system + irq + softirq + steal};
}

// Returns all times of a profile that are measured in every step.
std::vector<double*> times_of(ExchangeProfile& profile) {
  std::vector<double*> out = {&profile.step_s, &profile.times.backward_s};
  for (BucketTimes& b : profile.times.buckets)
    out.insert(out.end(), {&b.ready_s, &b.code_s, &b.comm_s});
  return out;
}

// Records the times of events within a step. The main thread reports "ready", the worker the
// others; the end of a step comes after both.
class StepRecorder {
 public:
  void use(const DataParallelOptimizer& optimizer) {
    optimizer_ = &optimizer;
    buckets_.resize(optimizer.buckets());
    begin();
  }
  void begin() { begin_ = steady_seconds(); }
  double now() const { return steady_seconds() - begin_; }
  void event(std::string_view what, int bucket) {
    if (optimizer_ == nullptr) return;  // within the constructor
    BucketTimes& b = buckets_[to_size(bucket)];
    if (what == "ready") {
      b.ready_s = now();
    } else if (what == "exchange") {
      if (bucket == 0) first_exchange_ = now();
      exchange_ = now();
      collective_ = optimizer_->ledger().seconds();
    } else {
      b.comm_s = optimizer_->ledger().seconds() - collective_;
      b.code_s = std::max(0.0, now() - exchange_ - b.comm_s);
    }
  }
  // Returns the step that has ended, in the order of times_of().
  std::vector<double> step(double backward_s, double step_s) const {
    // If all exchanges wait for the end of backward, or for clipping by the norm of all gradients
    // after it, buckets count as ready when the first exchange begins.
    const bool deferred = !buckets_.empty() && first_exchange_ >= buckets_.back().ready_s;
    std::vector<double> out = {step_s, backward_s};
    for (const BucketTimes& b : buckets_)
      out.insert(out.end(), {deferred ? first_exchange_ : b.ready_s, b.code_s, b.comm_s});
    return out;
  }

 private:
  const DataParallelOptimizer* optimizer_ = nullptr;
  std::vector<BucketTimes> buckets_;  // of this step
  double begin_ = 0, exchange_ = 0, first_exchange_ = 0, collective_ = 0;
};

// Returns the compression of most steps of the run: the one after its ramp. It has the name of a
// candidate that is the same.
std::string after_ramp(const CommonOptions& o) {
  CompressSpec spec = o.parsed.compress.spec;
  const auto ramp = spec.values.find("ramp");
  const bool ramps = ramp != spec.values.end() && std::exchange(ramp->second, 0) != 0;
  for (const std::string& name : kCandidates)
    if (to_string(parse_compress(name)) == to_string(spec)) return name;
  return ramps || o.parsed.compress.automatic ? to_string(spec) : o.compress;
}

class Measurement {
 public:
  Measurement(const CommonOptions& o, ParameterStore& store, Communicator& comm,
              const StepPlan& plan, const std::function<Var(Tape&)>& forward)
      : o_(o), own_(after_ramp(o)), store_(store), comm_(comm), plan_(plan), forward_(forward) {
    const bool speaks = comm.rank() == 0 && !o.quiet;
    const Logger log = [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); };
    const std::vector<int> hosts = learner_hosts(o, comm, speaks ? log : Logger{});
    if (!hosts.empty()) levels_ = std::make_unique<HostLevels>(comm, hosts);
  }

  Headroom run() {
    Headroom out;
    const ProcessorTicks before = processor_ticks();
    const double begin = steady_seconds();
    out.learners = comm_.size();
    out.hosts = levels_ == nullptr ? 0 : levels_->hosts();
    out.sharing = o_.parsed.learners.on_machine;
    out.net = o_.headroom_net;
    if (Communicator* all = exchanging()) out.link = measure_link(*all);
    if (levels_ != nullptr)
      levels_->wait_within();  // on a slow link that took longer than any message
    std::vector<std::string> names = {"", "none"};
    if (own_ != "none") names.push_back(own_);
    for (const std::string& name : kCandidates)
      if (name != own_) names.push_back(name);
    // The first steps make the kernels' plans, and show how many steps fit into the time.
    ExchangeProfile dense{.compress = "none"};
    measure(dense, 1);
    steps_.clear();
    std::vector<double> trials;
    for (const std::string& name : names) {
      out.profiles.push_back({.compress = name});
      measure(out.profiles.back(), 1);
      trials.push_back(slowest(comm_, out.profiles.back().step_s));
      if (comm_.rank() == 0 && !o_.quiet)
        std::fprintf(stderr, "%s: a step of %.3f s\n", title(out.profiles.back()).c_str(),
                     trials.back());
    }
    const double all = std::accumulate(trials.begin(), trials.end(), 0.0);
    // Where these have taken all the time, they are the result.
    const bool late = slowest(comm_, steady_seconds() - begin) > o_.headroom;
    const int rounds = late ? 0
                            : std::clamp(to_int(std::min(o_.headroom / all, 1e6)) / (kFewSteps + 1),
                                         kLeastRounds, kMostRounds);
    // Each exchange gets the same time, not the same number of steps: short steps scatter more, and
    // dense ones on a slow link would leave them hardly any.
    const double share = o_.headroom / (rounds * to_double(names.size()));
    if (!late) steps_.clear();
    for (size_t i = 0; i < names.size() && !late; ++i) out.profiles[i] = {.compress = names[i]};
    for (int round = 0; round < rounds; ++round)
      for (size_t i = 0; i < names.size(); ++i)
        measure(out.profiles[i], counted_steps(share, trials[i]));
    for (ExchangeProfile& profile : out.profiles) finish(profile);
    const ProcessorTicks now = processor_ticks();
    if (now.wanted > before.wanted)
      out.stolen = (now.stolen - before.stolen) / (now.wanted - before.wanted);
    return out;
  }

 private:
  // Returns the communicator of the ranks that exchange, with two levels the first of each host;
  // null on the others.
  Communicator* exchanging() {
    if (levels_ == nullptr) return &comm_;
    return levels_->first() ? &levels_->between() : nullptr;
  }

  // Measures one step that is not counted, and then `steps` that are added to `sum`.
  void measure(ExchangeProfile& sum, int steps) {
    const std::unique_ptr<Communicator> solo = sum.compress.empty() ? make_solo() : nullptr;
    Communicator& comm = solo == nullptr ? comm_ : *solo;
    CommonOptions o = o_;
    if (solo != nullptr) o.hosts.clear();
    o.compress = sum.compress.empty() ? "none" : sum.compress;
    o.parsed.compress = parse_compress_choice(o.compress);
    o.compress_start = 0;
    o.shadow = 0;
    if (o.compress != own_) o.plan.clear(), o.compressed_momentum.clear();
    o.layerwise = "uniform";
    StepRecorder recorder;
    DataParallelOptimizer optimizer = make_optimizer(
        o, store_, comm, plan_, {},
        {.broadcast = false,
         .on_event = [&](const char* what, int bucket) { recorder.event(what, bucket); }});
    if (solo == nullptr) recorder.use(optimizer);
    const size_t buckets = solo == nullptr ? optimizer.buckets() : 0;
    sum.times.buckets.resize(buckets);
    sum.collectives.resize(buckets);
    std::vector<std::vector<double>>& all = steps_[sum.compress];
    const Communicator* used = solo == nullptr ? optimizer.exchanging() : nullptr;
    double waited = 0;
    CollectiveTraffic traffic;
    int64_t sent = 0;
    comm_.barrier();
    for (int i = -1; i < steps; ++i) {
      if (i == 0) {
        waited = optimizer.totals().exposed_s;
        if (used != nullptr) {
          traffic = used->traffic();
          sent = used->total_traffic().sent;
        }
      }
      recorder.begin();
      const double backward_s = step(optimizer, recorder);
      const double step_s = recorder.now();
      if (i >= 0) all.push_back(recorder.step(backward_s, step_s));
    }
    sum.exposed_s += optimizer.totals().exposed_s - waited;
    if (used != nullptr) {
      sum.sent_bytes += to_double(used->total_traffic().sent - sent);
      add_traffic(sum, traffic, *used);
    }
    sum.step_s = middle_of(all, 0);
  }

  // Runs all micro-steps of an update and returns when the last backward pass ended.
  double step(DataParallelOptimizer& optimizer, const StepRecorder& recorder) {
    double backward_s = 0;
    for (int64_t micro = 0; micro < o_.accumulate; ++micro) {
      Tape tape({.training = true, .seed = static_cast<uint64_t>(o_.seed), .step = 0});
      const Var loss = forward_(tape);
      optimizer.begin_step(0);
      tape.backward(
          loss, [&](Parameter& p) { optimizer.ready(p); },
          [&](Parameter& p) { optimizer.weights_free(p); });
      wait_for_stream();
      backward_s = recorder.now();
      (void)optimizer.finish_step();
    }
    return backward_s;
  }

  static double middle_of(const std::vector<std::vector<double>>& steps, size_t time) {
    std::vector<double> values(steps.size());
    std::ranges::transform(steps, values.begin(), [&](const auto& step) { return step[time]; });
    return middle_mean(std::move(values));
  }

  // Adds the collectives of every bucket since comm.traffic() returned `before`.
  static void add_traffic(ExchangeProfile& sum, const CollectiveTraffic& before,
                          const Communicator& comm) {
    for (size_t i = 0; i < sum.collectives.size(); ++i)
      for (const auto& [key, now] : comm.traffic()) {
        if (key.second != concat("bucket ", i)) continue;
        const auto old = before.find(key);
        const Traffic then = old == before.end() ? Traffic{} : old->second;
        CollectiveCalls& calls = sum.collectives[i][key.first];
        calls.calls += to_double(now.calls - then.calls);
        calls.sent += to_double(now.sent - then.sent);
      }
  }

  // Reduces this rank's steps to one, then averages over the ranks that exchange; step_s is the
  // slowest rank's.
  void finish(ExchangeProfile& profile) {
    std::vector<double*> means = times_of(profile);
    profile.steps = std::ssize(steps_[profile.compress]);
    for (size_t i = 0; i < means.size(); ++i) *means[i] = middle_of(steps_[profile.compress], i);
    profile.times.rest_s = rest_seconds(profile.times, profile.step_s);
    means.push_back(&profile.times.rest_s);
    std::vector<double*> sums = {&profile.exposed_s, &profile.sent_bytes};
    for (BucketCollectives& collectives : profile.collectives)
      for (auto& [name, c] : collectives) sums.insert(sums.end(), {&c.calls, &c.sent});
    for (double* x : sums) *x /= to_double(profile.steps);
    means.insert(means.end(), sums.begin(), sums.end());
    std::vector<double> values(means.size());
    const double slowest_s = slowest(comm_, profile.step_s);
    std::ranges::transform(means, values.begin(), [](double* x) { return std::exchange(*x, 0); });
    if (Communicator* all = exchanging())
      for (const auto& of_rank : gather_values(*all, values))
        for (size_t i = 0; i < means.size(); ++i) *means[i] += of_rank[i] / all->size();
    profile.step_s = slowest_s;
  }

  const CommonOptions& o_;
  const std::string own_;
  ParameterStore& store_;
  Communicator& comm_;
  const StepPlan& plan_;
  const std::function<Var(Tape&)>& forward_;
  std::unique_ptr<HostLevels> levels_;                             // null with one level
  std::map<std::string, std::vector<std::vector<double>>> steps_;  // by exchange, see times_of()
};

}  // namespace

double Headroom::share() const {
  return std::max(0.0, 1 - profiles[0].step_s / profiles[1].step_s);
}
double Headroom::most() const { return gain(0); }
double Headroom::gain(size_t index) const { return profiles[1].step_s / profiles[index].step_s; }
size_t Headroom::best() const {
  const auto best =
      std::ranges::min_element(profiles.begin() + 1, profiles.end(), {}, &ExchangeProfile::step_s);
  return to_size(best - profiles.begin());
}

int run_headroom(const CommonOptions& o, ParameterStore& store, Communicator& comm,
                 const StepPlan& plan, const std::function<Var(Tape&)>& forward) {
  check(comm.size() > 1,
        "--headroom: one learner exchanges nothing; give --learners N or start with mpirun");
  const Headroom headroom = Measurement(o, store, comm, plan, forward).run();
  if (comm.rank() > 0) return 0;
  if (o.layerwise == "lgreco" && !o.quiet)
    std::fprintf(stderr, "--layerwise lgreco: measured with the uniform setting\n");
  print(o.json ? headroom_json(headroom) : describe_headroom(headroom));
  return 0;
}

}  // namespace heddle
