#include "optim/decentralized.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "compress/codecs/magnitude.h"
#include "core/hash.h"
#include "core/kernels.h"
#include "core/streams.h"
#include "core/trace.h"
#include "optim/replica_check.h"

namespace heddle {
namespace {

constexpr double kLeastRate = 1e-12;  // a learning rate below it does nothing
constexpr double kMostDrift = 1e-3;   // more cannot be rounding
constexpr double kLeastPart = 1e-3;   // of the largest learning rate

std::vector<const Parameter*> in_memory_order(const ParameterStore& store) {
  std::vector<const Parameter*> out;
  for (const Parameter& p : store.parameters()) out.push_back(&p);
  std::ranges::reverse(out);
  return out;
}

std::vector<int64_t> sizes_of(const std::vector<const Parameter*>& parameters) {
  std::vector<int64_t> sizes;
  sizes.reserve(parameters.size());
  for (const Parameter* p : parameters) sizes.push_back(p->size());
  return sizes;
}

// Throws InputError unless all ranks have the same graph and settings.
void check_same(const Topology& topology, double mixing, const PeerOptions& o, Communicator& comm) {
  const std::string settings = concat(topology.hash(), ' ', mixing, ' ', o.innovation, ' ',
                                      o.resync, ' ', o.bucket_bytes, ' ', o.dual);
  const std::vector<uint64_t> mine = {hash_bytes(settings.data(), settings.size())};
  const auto hashes = gather_values(comm, mine);
  for (size_t r = 1; r < hashes.size(); ++r)
    check(hashes[r] == hashes[0], "peers: rank ", r, "'s graph or settings differ from rank 0's");
}

// a += weight * (theirs - own), n elements.
void add_difference(double* a, double weight, const float* theirs, const float* own, int64_t n) {
  for (int64_t i = 0; i < n; ++i) a[i] += weight * (double{theirs[i]} - own[i]);
}

double largest_of(const Tensor& x) {
  return std::bit_cast<float>(largest_magnitude(x.data<float>(), x.size()));
}

// Tensors have no type for doubles: one of i64 holds their bits.
double* doubles(const Tensor& x) { return static_cast<double*>(x.raw()); }

}  // namespace

DecentralizedOptimizer::DecentralizedOptimizer(ParameterStore& store,
                                               std::unique_ptr<UpdateRule> rule, Communicator& comm,
                                               const OptimizerOptions& options,
                                               const PeerOptions& peers)
    : store_(store),
      comm_(comm),
      peers_(peers),
      optimizer_(store, std::move(rule), options),
      topology_(Topology::parse(peers.peers, comm.size())),
      neighbours_(topology_.neighbours(comm.rank())),
      mixing_(peers.mixing > 0 ? peers.mixing : default_mixing(parse_innovation(peers.innovation))),
      parameters_(in_memory_order(store)),
      coder_(parse_innovation(peers.innovation), sizes_of(parameters_),
             peers.seed + static_cast<uint64_t>(comm.rank())),
      buckets_(store, peers.bucket_bytes),
      words_(topology_, comm.rank()),
      outside_(comm.total_traffic()),
      extremes_(Tensor::empty_on(Device{}, {kExtremes}, DType::i64)),
      worker_(Context::current()) {
  extremes_.fill_zero();
  for (int rank = 0; rank < comm.size(); ++rank)
    timeouts_ = std::max(timeouts_, topology_.degree(rank) - 1);
  check(peers.mixing >= 0 && peers.mixing <= 1,
        "peer mixing: expected a number from 0 to 1, found ", peers.mixing);
  check(peers.resync >= 0, "resync: expected a number of steps, found ", peers.resync);
  check(options.learners == 1, "peers: expected an optimizer of one learner, found ",
        options.learners);
  if (alone()) return;
  collective("peers", [&](Communicator& c) { check_same(topology_, mixing_, peers, c); });
  if (peers.broadcast)
    collective("parameters", [&](Communicator& c) { broadcast_replica(store, c); });
  estimate_ = Tensor::empty_on(Device{}, store.values().shape());
  dual_ = Tensor::empty_on(Device{}, estimate_.shape(), DType::i64);
  apart_ = Tensor::empty_on(Device{}, estimate_.shape(), DType::i64);
  begin_anew();
  raise(kWeight, largest_of(estimate_));
  optimizer_.on_update([this](const Parameter& p) { updated(p); });
}

// ------------------------------------------------------------------------------ the main thread

void DecentralizedOptimizer::begin_step(double lr) {
  optimizer_.begin_step(lr);
  buckets_.begin_step();
  next_ = 0;
  raise(kRate, lr);
}

// Called when p.value is x', unless the updates wait for the end of the step.
void DecentralizedOptimizer::updated(const Parameter& p) {
  (void)buckets_.mark_ready(p);
  if (peers_.overlap) post_complete_buckets();
}

// Posts complete buckets in memory order, which is the same on every rank.
void DecentralizedOptimizer::post_complete_buckets() {
  if (optimizer_.lr() < kLeastRate) return;
  for (; next_ < buckets_.size() && buckets_[next_].complete(); ++next_)
    worker_.post([this, index = next_] { exchange(index); });
}

StepReport DecentralizedOptimizer::finish_step() {
  StepReport report = optimizer_.finish_step();
  if (!report.due) return report;
  if (alone()) {
    worker_.drain();
    words_.message();
    words_.end_step();
  } else {
    for (const Parameter* p : parameters_) (void)buckets_.mark_ready(*p);
    post_complete_buckets();
    if (next_ == 0) worker_.post([this] { exchange_words(); });
    const TraceRange range("wait", "exchanges");
    const double begin = steady_seconds();
    worker_.drain();
    totals_.exposed_s += steady_seconds() - begin;
    totals_.compressed_steps += next_ > 0 ? 1 : 0;
    totals_.dense_of_compressed += next_ > 0 ? dense_bytes() : 0;
    if (std::exchange(spoilt_, false)) {
      report.skipped_parameters = std::max<int64_t>(1, report.skipped_parameters);
      if (report.first_skipped.empty()) report.first_skipped = "a weight";
      ++non_finite_;
    } else {
      non_finite_ = 0;
    }
    if (peers_.most_non_finite > 0 && non_finite_ >= peers_.most_non_finite)
      throw Error(concat("the weights of rank ", comm_.rank(), " have not been finite for ",
                         non_finite_, " steps"));
  }
  ++step_;
  if (next_ > 0 && peers_.resync > 0 && step_ % peers_.resync == 0) resync();
  return report;
}

// ------------------------------------------------------------------------ on the worker's thread

// Sends a tensor to all neighbours; returns theirs, of the same shape, in the order of neighbours_.
std::vector<Parcel> DecentralizedOptimizer::exchange_with_neighbours(const Tensor& own) {
  std::vector<Parcel> out, in;
  for (const auto& [rank, weight] : neighbours_) {
    out.push_back({rank, own});
    in.push_back({rank, Tensor::empty_on(Device{}, own.shape(), own.dtype())});
  }
  comm_.exchange(out, in, timeouts_);
  return in;
}

void DecentralizedOptimizer::exchange(size_t index) {
  const Bucket& bucket = buckets_[index];
  comm_.set_tag(concat("bucket ", index));
  comm_.set_step(step_);
  wait_for_stream();  // until a GPU has made x'
  const double begin_s = steady_seconds();
  const int64_t sent_before = comm_.total_traffic().sent;
  const int64_t n = bucket.end - bucket.begin;
  const double lr = optimizer_.lr();
  const auto slice = [&](const Tensor& x) { return x.slice(bucket.begin, bucket.end); };
  const Tensor weights = slice(store_.values()), host = weights.to(Device{});
  float *x = host.data<float>(), *e = slice(estimate_).data<float>();
  double *d = doubles(slice(dual_)), *a = doubles(slice(apart_));

  const Tensor innovation = Tensor::empty_on(Device{}, {n});
  float* v = innovation.data<float>();
  for (int64_t i = 0; i < n; ++i) v[i] = to_float(x[i] - lr * d[i] - e[i]);
  const bool finite = largest_magnitude(v, n) < kInfinite;
  spoilt_ |= !finite;

  // A message is the codes of the layers in memory order; that of the first bucket ends with the
  // control words.
  std::vector<PayloadPart> parts;
  const auto first =
      to_size(std::ranges::find(parameters_, bucket.parameters.front()) - parameters_.begin());
  int64_t bytes = 0;
  for (size_t i = 0; i < bucket.parameters.size(); ++i) {
    parts.push_back({parameters_[first + i]->name, PayloadKind::values, coder_.bytes(first + i)});
    bytes += parts.back().bytes;
  }
  const Tensor words = index == 0 ? words_.message() : Tensor{};
  const int64_t words_at = bytes;
  if (index == 0) {
    parts.push_back({"control words", PayloadKind::control, words.bytes()});
    bytes += words.bytes();
  }
  // Calls code(layer, its bytes in the message, its first element in the bucket).
  const auto for_layers = [&](const Tensor& message, const auto& code) {
    uint8_t* at = message.data<uint8_t>();
    for (size_t i = first; i < first + bucket.parameters.size(); ++i, at += coder_.bytes(i - 1))
      code(i, at, parameters_[i]->offset - bucket.begin);
  };
  const Tensor own = Tensor::empty_on(Device{}, {bytes}, DType::u8);
  {
    const TraceRange range("compress", "encode");
    for_layers(own, [&](size_t layer, uint8_t* at, int64_t begin) {
      finite ? coder_.encode(layer, v + begin, step_, at) : coder_.encode_zero(layer, at);
    });
  }
  if (index == 0) std::memcpy(own.data<uint8_t>() + words_at, words.raw(), to_size(words.bytes()));
  std::vector<Parcel> in;
  ledger_.book(comm_, parts, [&] { in = exchange_with_neighbours(own); });

  const TraceRange range("compress", "decode, mix");
  const auto decode = [&](const Tensor& message, const Tensor& q) {
    q.fill_zero();
    for_layers(message, [&](size_t layer, const uint8_t* at, int64_t begin) {
      coder_.decode(layer, at, q.data<float>() + begin);
    });
  };
  const Tensor theirs = Tensor::empty_on(Device{}, {n});
  decode(own, innovation);  // q in place of what was coded
  for (int64_t i = 0; i < n; ++i) e[i] += v[i];
  for (size_t i = 0; i < in.size(); ++i) {
    if (index == 0) {
      std::memcpy(words.raw(), in[i].data.data<uint8_t>() + words_at, to_size(words.bytes()));
      words_.receive(neighbours_[i].rank, words);
    }
    decode(in[i].data, theirs);
    add_difference(a, neighbours_[i].weight, theirs.data<float>(), v, n);
  }
  // A rate far below the largest would make large duals of rounding errors.
  const double mixing = mixing_ / (2 * std::max(optimizer_.lr(), kLeastPart * extreme(kRate)));
  for (int64_t i = 0; i < n; ++i) {
    if (peers_.dual) d[i] -= mixing * a[i];
    x[i] = to_float(peers_.dual ? x[i] - lr * d[i] : x[i] + mixing_ * a[i]);
  }
  if (index == 0) words_.end_step();
  if (weights.device().is_cuda()) weights.copy_from(host);
  totals_.exchange_s += steady_seconds() - begin_s;
  totals_.compressed_sent += comm_.total_traffic().sent - sent_before;
}

// Exchanges the control words of a step without buckets, whose learning rate is zero.
void DecentralizedOptimizer::exchange_words() {
  comm_.set_tag("control words");
  comm_.set_step(step_);
  const Tensor own = words_.message();
  std::vector<Parcel> in;
  ledger_.book(comm_, {{"control words", PayloadKind::control, own.bytes()}},
               [&] { in = exchange_with_neighbours(own); });
  for (const Parcel& parcel : in) words_.receive(parcel.peer, parcel.data);
  words_.end_step();
}

// Recomputes a, bucket by bucket: it is a sum of many decoded pieces, and e is rounded.
void DecentralizedOptimizer::resync() {
  collective("resync", [this](Communicator& comm) {
    double change = 0;
    for (const Bucket& bucket : buckets_) {
      const int64_t n = bucket.end - bucket.begin;
      const Tensor own = estimate_.slice(bucket.begin, bucket.end);
      const std::vector<Parcel> in = exchange_with_neighbours(own);
      std::vector<double> sums(to_size(n));
      for (size_t i = 0; i < in.size(); ++i)
        add_difference(sums.data(), neighbours_[i].weight, in[i].data.data<float>(),
                       own.data<float>(), n);
      double* a = doubles(apart_) + bucket.begin;
      for (int64_t i = 0; i < n; ++i) {
        change = std::max(change, std::abs(sums[to_size(i)] - a[i]));
        a[i] = sums[to_size(i)];
      }
    }
    raise(kWeight, largest_of(estimate_));
    raise(kDrift, change / std::max(1e-30, extreme(kWeight)));
    if (drift() > kMostDrift)
      throw Error(concat("peers: rank ", comm.rank(), " and its neighbours have decoded different ",
                         "values: their differences are off by ", drift()));
  });
}

void DecentralizedOptimizer::post(const std::string& what,
                                  std::function<void(Communicator&, Ledger&)> call) {
  worker_.post([this, what, call = std::move(call)] {
    comm_.set_tag(what);
    call(comm_, ledger_);
  });
}

void DecentralizedOptimizer::wait() { worker_.drain(); }

// ------------------------------------------------------------------------------- between the steps

Consensus DecentralizedOptimizer::consensus() {
  Consensus out{Tensor::empty_on(Device{}, store_.values().shape())};
  out.mean.copy_from(store_.values());
  if (alone()) return out;
  const Tensor own = out.mean.clone();
  collective("consensus", [&](Communicator& comm) {
    comm.all_reduce(out.mean);
    scale(out.mean, 1 / to_float(comm.size()));
    axpy(-1, out.mean, own);
    const double away = std::pow(norm(own), 2), length = std::pow(norm(out.mean), 2);
    const double squares = mean_over_ranks(comm, {away})[0];
    out.error = std::sqrt(squares / std::max(1e-30, length));
  });
  return out;
}

void DecentralizedOptimizer::use_shared() {
  if (alone()) return;
  own_ = store_.values().clone();
  const Consensus now = consensus();
  error_ = now.error;
  store_.values().copy_from(now.mean);
}

void DecentralizedOptimizer::use_own() {
  if (own_.defined()) store_.values().copy_from(own_);
  own_ = {};
}

void DecentralizedOptimizer::begin_anew() {
  if (alone()) return;
  estimate_.copy_from(store_.values());
  for (const Tensor& x : {dual_, apart_, coder_.scales()}) x.fill_zero();
}

int64_t DecentralizedOptimizer::dense_bytes() const {
  return 2 * store_.count() * 4 * (comm_.size() - 1) / comm_.size();
}

DecentralizedOptimizer::Totals DecentralizedOptimizer::totals() const {
  Totals totals = totals_;
  add(totals.traffic, comm_.total_traffic(), outside_);
  totals.collective_s += ledger_.seconds();
  return totals;
}

DecentralizedOptimizer::State DecentralizedOptimizer::state() {
  return {.steps = step_,
          .totals = totals(),
          .ledger = ledger_.entries(),
          .settings = {{"graph", to_double(topology_.hash() >> 12)}},
          .planner = {}};
}

void DecentralizedOptimizer::restore(const State& state) {
  step_ = state.steps;
  totals_ = state.totals;
  ledger_.restore(state.ledger);
}

NamedTensors DecentralizedOptimizer::named_state() const {
  NamedTensors state;
  if (alone()) return state;
  const std::pair<const char*, const Tensor*> all[] = {
      {"dual", &dual_}, {"estimate", &estimate_}, {"apart", &apart_}};
  for (const Parameter* p : parameters_) state.emplace_back("weights." + p->name, p->value);
  for (const auto& [name, x] : optimizer_.named_state()) state.emplace_back("rule." + name, x);
  for (const auto& [kind, x] : all)
    for (const Parameter* p : parameters_)
      state.emplace_back(concat(kind, ".", p->name),
                         Tensor::view_as(x->slice(p->offset, p->offset + p->size()), p->shape()));
  state.emplace_back("innovation.scales", coder_.scales());
  state.emplace_back("peers.extremes", extremes_);
  return state;
}

}  // namespace heddle
