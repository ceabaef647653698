#include "compress/topagg.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>

#include "compress/codecs/bits.h"
#include "compress/codecs/select.h"
#include "core/bfloat16.h"
#include "core/kernels.h"
#include "core/secret_random.h"
#include "core/trace.h"

namespace heddle {
namespace {

constexpr double kMostClipped = 65536;  // more would make the unit of their sums coarse

// Returns how the votes of a setup are protected.
NoisySum mechanism_of(const ReducerSetup& setup, int64_t chosen) {
  const auto& values = setup.spec.values;
  const VotingOptions& voting = setup.options.voting;
  const bool clipped = values.at("vote") == 2;
  check(voting.rate > 0 && voting.rate <= 1, "topagg: expected a rate in (0, 1], found ",
        voting.rate);
  check(voting.rate == 1 || !voting.replaced,
        "topagg: a rate below 1 protects units that are added or removed, not replaced; expected "
        "replaced = false");
  check(voting.voters > 0 && std::isfinite(voting.voters),
        "topagg: expected a number of voters above 0, found ", voting.voters);
  NoisySum out{.sigma = values.at("sigma"),
               .sensitivity = (voting.replaced ? 2 : 1) * (clipped ? 1 : std::sqrt(chosen)),
               .elements = chosen,
               .rate = voting.rate,
               .replaced = voting.replaced,
               .delta = voting.delta,
               .secret = values.at("noise-seed") == 0};
  check(clipped || values.at("clip") == 1, "topagg: clip needs vote=clip");
  check(!clipped || voting.voters <= kMostClipped, "topagg: vote=clip expects at most ",
        kMostClipped, " voters of a rank, found ", voting.voters);
  check(values.at("output") == 0 || values.at("threshold") == 0,
        "topagg: a threshold needs output=sign");
  const double epsilon = values.at("epsilon");
  check(epsilon == 0 || out.sigma == 0, "topagg: expected sigma or epsilon, found both");
  if (epsilon > 0) {
    check(voting.steps > 0, "topagg: epsilon needs the number of steps that it is for");
    out.sigma = noise_for(epsilon, voting.delta, voting.rate, voting.steps) * out.sensitivity;
  }
  return out;
}

// Returns what one query spends.
RdpCurve query_of(const ReducerSetup& setup, const NoisySum& sum, int64_t chosen) {
  const auto& values = setup.spec.values;
  if (!sum.secret) return gaussian_rdp(0);  // infinitely much
  if (values.at("bound") == 0) return sampled_gaussian_rdp(sum.rate, sum.noise_multiplier());
  check(sum.rate == 1 && values.at("output") == 0 && values.at("vote") != 2,
        "topagg: bound=ternary is known for signs of votes without sampling only");
  check(values.at("epsilon") == 0, "topagg: bound=ternary: give sigma in place of epsilon");
  return ternary_rdp(sum.sigma, values.at("threshold"), chosen, sum.replaced);
}

RdpAccountant accountant_of(const ReducerSetup& setup, int64_t chosen) {
  const NoisySum sum = mechanism_of(setup, chosen);
  return {sum, query_of(setup, sum, chosen)};
}

std::vector<PayloadPart> parts_of(const GradientBucket& bucket, int bits) {
  std::vector<PayloadPart> parts;
  for (const Parameter* p : bucket.parameters)
    parts.push_back({p->name, PayloadKind::values, packed_bytes(p->size(), bits)});
  return parts;
}

}  // namespace

std::vector<TopAgg::Layer> TopAgg::layers_of(const ReducerSetup& setup) {
  check(setup.store.buffers().empty(), "topagg: the network keeps running statistics (",
        setup.store.buffers().empty() ? "" : setup.store.buffers().front().name,
        "), which would be revealed without noise; train one without batch norm (train_resnet: "
        "--arch cnn), or freeze its batch norms");
  check(setup.options.dense_layers.empty(),
        "topagg votes on every layer: dense ones would be revealed without noise");
  std::vector<Layer> layers;
  for (const Parameter& p : setup.store.parameters())
    layers.push_back({&p, kept_elements(setup.spec.values.at("density"), p.size())});
  return layers;
}

TopAgg::TopAgg(const ReducerSetup& setup)
    : voting_(setup.options.voting),
      vote_(static_cast<Vote>(setup.spec.values.at("vote"))),
      signs_(setup.spec.values.at("output") == 0),
      threshold_(setup.spec.values.at("threshold")),
      clip_(vote_ == Vote::clip ? setup.spec.values.at("clip") : 1),
      unit_(vote_ == Vote::clip
                ? std::exp2(std::ceil(std::log2(std::max(1.0, voting_.voters))) - 29)
                : 1),
      noise_seed_(static_cast<uint64_t>(setup.spec.values.at("noise-seed"))),
      layers_(layers_of(setup)),
      votes_(to_size(setup.store.grads().size())),
      accountant_(accountant_of(setup, chosen())) {}

int64_t TopAgg::chosen() const {
  int64_t sum = 0;
  for (const Layer& layer : layers_) sum += layer.chosen;
  return sum;
}

int64_t TopAgg::payload(const Parameter& p) const {
  const auto most = to_int64(std::ceil(voting_.voters));
  const int vote = vote_ == Vote::clip ? 32 : bits_below(2 * most + 1);
  return packed_bytes(p.size(), vote + (signs_ ? 2 : 16)) / 2;
}

std::map<std::string, double> TopAgg::figures() const {
  return {{"epsilon", accountant_.spent().epsilon}};
}

// ------------------------------------------------------------------ a vote: one unit's gradient

void TopAgg::vote(int64_t step, int64_t vote, int rank) {
  check(voting_.rate < 1 || voting_.voters != 1 || vote == 0,
        "topagg: a rank has voted more than once in a step, but voters is 1");
  std::vector<Tensor> gradients;
  std::vector<Indices> indices;
  double squares = 0;
  for (const auto& [p, k] : layers_) {
    const Tensor g = gradients.emplace_back(p->grad.to(Device{}));
    if (!all_finite(g)) return;  // an empty vote
    for (const uint32_t i : indices.emplace_back(select_top(elements(g), k)))
      squares += std::pow(to_double(g.data<float>()[i]), 2);
  }
  // A little less than 1 / clip: rounding must not lengthen a clipped gradient.
  const double scale = (1 - 1e-6) / std::max(clip_, std::sqrt(squares));
  const uint64_t key = static_cast<uint64_t>(step) << 32 | static_cast<uint64_t>(rank) << 20 |
                       static_cast<uint64_t>(vote);
  // Secret: numbers that followed from a seed and the votes before would change with another unit.
  SecretRandom random(noise_seed_, key);
  for (size_t l = 0; l < layers_.size(); ++l) {
    const auto g = elements(gradients[l]);
    const int64_t at = layers_[l].parameter->offset;
    float most = 0;
    for (const uint32_t i : indices[l]) most = std::max(most, std::abs(g[i]));
    for (const uint32_t i : indices[l]) {
      double value = g[i] > 0 ? 1.0 : -1.0;
      if (vote_ == Vote::clip) value = std::trunc(g[i] * scale / unit_);
      if (vote_ == Vote::stochastic)  // its mean is g / most
        value = 2 * random.uniform() < 1 + to_double(g[i] / most) ? 1.0 : -1.0;
      if (g[i] != 0) votes_[to_size(at) + i] += value;
    }
  }
}

// ------------------------------------------------------- the sum of the votes, at its owner

// Returns a bucket's votes in the order of its parameters, and forgets them.
std::vector<double> TopAgg::take_votes(const GradientBucket& bucket) {
  std::vector<double> votes;
  for (const Parameter* p : bucket.parameters) {
    const auto begin = votes_.begin() + p->offset;
    votes.insert(votes.end(), begin, begin + p->size());
    std::fill_n(begin, p->size(), 0.0);
  }
  return votes;
}

// Returns the bits in which every rank's sum of votes fits. Those of clipped gradients fit 32 up to
// four times the expected number of voters; sum_share() clamps larger ones, which cannot raise the
// sensitivity.
int TopAgg::width(const std::vector<double>& votes, Communicator& comm, Ledger& ledger) const {
  if (vote_ == Vote::clip) return 32;
  float most = 0;
  for (const double v : votes) most = std::max(most, to_float(std::abs(v)));
  if (voting_.rate == 1 && voting_.voters == 1) return bits_below(3);
  std::vector<std::vector<float>> all;
  ledger.book(comm, {{"width of votes", PayloadKind::control, 4}},
              [&] { all = gather_values(comm, std::vector{most}); });
  for (const auto& of_rank : all) most = std::max(most, of_rank[0]);
  return bits_below(2 * to_int64(most) + 1);
}

// Returns the sums of this rank's share of the elements over all ranks.
std::vector<double> TopAgg::sum_share(const GradientBucket& bucket,
                                      const std::vector<double>& votes, Communicator& comm,
                                      Ledger& ledger) {
  const int p = comm.size(), bits = width(votes, comm, ledger);
  const int64_t share = ceil_div(to_int64(votes.size()), p), slot = packed_bytes(share, bits);
  const int64_t middle = int64_t{1} << (bits > 0 ? bits - 1 : 0);  // stands for no vote
  const auto limit = to_double(middle - 1);
  std::vector<double> sums(to_size(share));
  if (slot == 0) return sums;  // nobody has voted
  const Tensor ours = Tensor::empty_on(Device{}, {p, slot}, DType::u8);
  const Tensor theirs = Tensor::empty_on(Device{}, {p, slot}, DType::u8);
  std::vector<uint32_t> coded(to_size(share));
  for (int64_t r = 0; r < p; ++r) {
    for (int64_t i = 0; i < share; ++i) {
      const auto at = to_size(r * share + i);
      const double v = at < votes.size() ? std::clamp(votes[at], -limit, limit) : 0.0;
      coded[to_size(i)] = static_cast<uint32_t>(middle + std::llround(v));
    }
    pack_bits(coded.data(), share, bits, ours.data<uint8_t>() + r * slot);
  }
  ledger.book(comm, parts_of(bucket, bits), [&] { comm.all_to_all(ours, theirs); });
  for (int64_t r = 0; r < p; ++r) {
    unpack_bits(theirs.data<uint8_t>() + r * slot, share, bits, coded.data());
    for (size_t i = 0; i < coded.size(); ++i)
      sums[i] += unit_ * to_double(int64_t{coded[i]} - middle);
  }
  return sums;
}

// ------------------------------------------------------ the answer: signs, or noisy sums as bf16

uint32_t TopAgg::answer(double noisy) const {
  if (!signs_) return bfloat16(to_float(noisy)).bits;
  if (std::abs(noisy) <= threshold_) return 1;
  return noisy > 0 ? 2 : 0;
}

float TopAgg::value_of(uint32_t answer, int ranks) const {
  if (signs_) return to_float(ranks) * (to_float(answer) - 1);
  const auto sum = to_double(to_float(std::bit_cast<bfloat16>(static_cast<uint16_t>(answer))));
  return to_float(sum * clip_ / voting_.voters);
}

bool TopAgg::reduce(const GradientBucket& bucket, Communicator& comm, Ledger& ledger) {
  if (bucket.step != std::exchange(step_, bucket.step)) {
    accountant_.count();
    buckets_ = 0;
  }
  const int p = comm.size(), bits = signs_ ? 2 : 16;
  const std::vector<double> votes = take_votes(bucket);
  std::vector<double> sums = sum_share(bucket, votes, comm, ledger);
  const uint64_t key = static_cast<uint64_t>(bucket.step) << 28 |
                       static_cast<uint64_t>(comm.rank()) << 16 | buckets_++;
  SecretRandom random(noise_seed_, key);
  const double sigma = accountant_.mechanism().sigma;
  std::vector<uint32_t> answers;
  answers.reserve(sums.size());
  for (double& sum : sums)
    answers.push_back(answer(sigma > 0 ? sum + sigma * random.normal() : sum));

  const int64_t share = to_int64(sums.size()), slot = packed_bytes(share, bits);
  const int64_t size = slot + 4 * bucket.control;
  const Tensor words = bucket.flat.slice(bucket.flat.size() - bucket.control, bucket.flat.size());
  const Tensor mine = Tensor::empty_on(Device{}, {size}, DType::u8);
  const Tensor all = Tensor::empty_on(Device{}, {p, size}, DType::u8);
  pack_bits(answers.data(), share, bits, mine.data<uint8_t>());
  const Tensor own_words = words.to(Device{});
  std::copy_n(static_cast<const uint8_t*>(own_words.raw()), 4 * bucket.control,
              mine.data<uint8_t>() + slot);
  auto parts = parts_of(bucket, bits);
  if (bucket.control > 0)
    parts.push_back({kControlWords, PayloadKind::control, 4 * bucket.control});
  ledger.book(
      comm, parts, [&] { comm.all_gather(mine, all); }, true);

  const Tensor values = Tensor::empty_on(Device{}, {p * share});
  std::vector<float> total(to_size(bucket.control));
  for (int64_t r = 0; r < p; ++r) {
    const uint8_t* bytes = all.data<uint8_t>() + r * size;
    unpack_bits(bytes, share, bits, answers.data());
    for (int64_t i = 0; i < share; ++i)
      values.data<float>()[r * share + i] = value_of(answers[to_size(i)], p);
    for (size_t i = 0; i < total.size(); ++i) {
      float of_rank = 0;
      std::memcpy(&of_rank, bytes + slot + 4 * to_int64(i), sizeof of_rank);
      total[i] += of_rank;
    }
  }
  int64_t at = 0;
  for (const Parameter* q : bucket.parameters) {
    q->grad.copy_from(Tensor::view_as(values.slice(at, at + q->size()), q->grad.shape()));
    at += q->size();
  }
  if (bucket.control > 0) words.copy_from(Tensor::from(total, {bucket.control}));
  explain("votes", "bucket", [&] {
    return Figures{{"elements", to_double(at), Unit::count},
                   {"noise, standard deviation in votes", sigma}};
  });
  return true;
}

std::unique_ptr<Reducer> make_topagg(const ReducerSetup& setup) {
  return std::make_unique<TopAgg>(setup);
}

}  // namespace heddle
