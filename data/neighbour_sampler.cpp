#include "data/neighbour_sampler.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace heddle {
namespace {

constexpr int64_t kMaxLayers = 64;
constexpr double kMaxSkew = 64;
constexpr int32_t kNew = -2;  // a position that is not known yet

// Returns the number of entries up to here, as a matrix keeps it.
int32_t to_start(size_t entries) {
  check(entries <= INT32_MAX, "sampler: more than ", INT32_MAX, " neighbours in one matrix");
  return static_cast<int32_t>(entries);
}

}  // namespace

double skew_for_budget(double local_share, double budget) {
  const double both = local_share * (1 - local_share);
  if (both <= 0 || budget <= 1) return 1;
  const double c = (budget - 1) / both;
  return std::min(kMaxSkew, 1 + c / 2 + std::sqrt(c + c * c / 4));
}

NeighbourSampler::NeighbourSampler(const Graph& graph, const std::vector<int32_t>& owners, int rank,
                                   const SamplerOptions& options)
    : graph_(graph), options_(options), position_(to_size(graph.nodes()), -1) {
  check(!options.fanout.empty() && std::ssize(options.fanout) <= kMaxLayers &&
            std::ranges::all_of(options.fanout, [](int64_t k) { return k >= 0 && k <= 1 << 20; }),
        "sampler: expected 1 to ", kMaxLayers, " numbers of draws, each at most 2^20");
  check(options.skew >= 1 && (options.variance_budget == 0 || options.variance_budget >= 1),
        "sampler: expected a skew and a variance budget of at least 1, found ", options.skew,
        " and ", options.variance_budget);
  check(std::isfinite(options.skew) || options.weights == SkewWeights::plain,
        "sampler: neighbours of other ranks that are never drawn need plain weights");
  check(std::ssize(owners) == graph.nodes(), "sampler: expected an owner of each of ",
        graph.nodes(), " nodes, found ", owners.size());
  for (const int32_t owner : owners) here_.push_back(owner == rank ? 1 : 0);
  for (int64_t v = 0; v < graph.nodes(); ++v) {
    double all = 0, local = 0;
    for (const int32_t u : graph.neighbours(v)) {
      all += mass(u);
      local += here_[to_size(u)] != 0 ? mass(u) : 0;
      all_.push_back(all);
      local_.push_back(local);
    }
  }
}

double NeighbourSampler::mass(int64_t node) const {
  if (options_.mixing == Mixing::mean) return 1;
  return 1 / std::sqrt(to_double(graph_.degree(node) + 1));
}

NeighbourSampler::Node NeighbourSampler::look_up(int64_t node) const {
  Node out;
  out.first = graph_.starts[to_size(node)];
  out.degree = graph_.degree(node);
  const size_t last = to_size(out.first + out.degree) - 1;
  out.all = out.degree > 0 ? all_[last] : 0;
  out.local = out.degree > 0 ? local_[last] : 0;
  out.scale = options_.mixing == Mixing::mean ? 1 / std::max(out.all, 1.0) : mass(node);
  if (out.local > 0 && out.local < out.all)
    out.s = options_.variance_budget > 0
                ? skew_for_budget(out.local / out.all, options_.variance_budget)
                : options_.skew;
  out.total = std::isinf(out.s) ? out.local : out.all + (out.s - 1) * out.local;
  return out;
}

double NeighbourSampler::skew(int64_t node) const { return look_up(node).s; }

void NeighbourSampler::take_all(const Node& node, std::vector<Entry>& out) const {
  const bool local_only = std::isinf(node.s);
  const double factor = local_only ? node.scale * node.all / node.local : node.scale;
  for (int64_t e = node.first; e < node.first + node.degree; ++e) {
    const int32_t u = graph_.ends[to_size(e)];
    if (!local_only || here_[to_size(u)] != 0) out.push_back({u, to_float(factor * mass(u))});
  }
}

// Returns whether at most `most` neighbours are on this rank.
bool NeighbourSampler::few_local(const Node& node, int64_t most) const {
  int64_t count = 0;
  for (int64_t e = node.first; e < node.first + node.degree && count <= most; ++e)
    count += here_[to_size(graph_.ends[to_size(e)])];
  return count <= most;
}

void NeighbourSampler::draw(const Node& node, const Philox& rng, uint64_t first, int64_t count,
                            std::vector<Entry>& out) {
  const auto mass_to = [&](int64_t edge) {  // of the node's edges up to and including this one
    const double local = local_[to_size(edge)];
    return std::isinf(node.s) ? local : all_[to_size(edge)] + (node.s - 1) * local;
  };
  picks_.clear();
  Philox::Block block = rng.block(first / 4);
  for (uint64_t i = first; i < first + to_size(count); ++i) {
    if (i % 4 == 0) block = rng.block(i / 4);
    const double u = (block.word[i % 4] + 0.5) / 4294967296.0 * node.total;
    int64_t low = node.first, high = node.first + node.degree - 1;
    if (node.s == 1 && options_.mixing == Mixing::mean) low = high = low + to_int64(u);
    while (low < high) {  // the first edge with mass_to(edge) > u; the last if rounding leaves none
      const int64_t middle = (low + high) / 2;
      if (mass_to(middle) > u)
        high = middle;
      else
        low = middle + 1;
    }
    picks_.push_back(graph_.ends[to_size(low)]);
  }
  std::ranges::sort(picks_);
  const size_t begin = out.size();
  double sum = 0;  // of c_j / s_j, with s_j = 1 for neighbours of other ranks
  for (size_t i = 0, next = 0; i < picks_.size(); i = next) {
    while (next < picks_.size() && picks_[next] == picks_[i]) ++next;
    const double c = to_double(to_int64(next - i));
    const bool local = here_[to_size(picks_[i])] != 0;
    const bool plain = options_.weights == SkewWeights::plain;
    const double weight = local && !plain ? c / node.s : c;
    out.push_back({picks_[i], to_float(weight)});
    sum += weight;
  }
  // unbiased: c_j a_j / (k q_j) = c_j total scale / (k s_j); the others: c_j / s_j, or c_j, over
  // their sum, times the sum of a_j.
  const double factor = options_.weights == SkewWeights::unbiased
                            ? node.total * node.scale / to_double(count)
                            : node.all * node.scale / sum;
  for (size_t i = begin; i < out.size(); ++i)
    out[i].weight = to_float(factor * double{out[i].weight});
}

SparseMatrix NeighbourSampler::mix(std::span<const int32_t> rows, int64_t columns,
                                   const std::vector<int32_t>& starts,
                                   const std::vector<Entry>& entries) const {
  std::vector<int32_t> from, places;
  std::vector<float> weights;
  const bool with_self = options_.mixing == Mixing::symmetric;
  from.reserve(rows.size() + 1);
  places.reserve(entries.size() + (with_self ? rows.size() : 0));
  weights.reserve(places.capacity());
  for (size_t r = 0; r < rows.size(); ++r) {
    from.push_back(to_start(places.size()));
    if (with_self) {
      places.push_back(position_[to_size(rows[r])]);
      weights.push_back(1 / to_float(graph_.degree(rows[r]) + 1));
    }
    for (int32_t i = starts[r]; i < starts[r + 1]; ++i) {
      places.push_back(position_[to_size(entries[to_size(i)].node)]);
      weights.push_back(entries[to_size(i)].weight);
    }
  }
  from.push_back(to_start(places.size()));
  return SparseMatrix(columns, from, places, weights);
}

SampledBatch NeighbourSampler::sample(std::span<const int32_t> batch, int64_t step) {
  SampledBatch out;
  std::vector<int32_t>& nodes = out.inputs;
  nodes.assign(batch.begin(), batch.end());
  std::vector<int32_t> sorted = nodes;
  std::ranges::sort(sorted);
  check(std::ranges::adjacent_find(sorted) == sorted.end() &&
            (sorted.empty() || (sorted.front() >= 0 && sorted.back() < graph_.nodes())),
        "sampler: expected different nodes from 0 to ", graph_.nodes() - 1);
  std::vector<Entry> entries;
  for (size_t hop = 0; hop < options_.fanout.size(); ++hop) {
    const int64_t k = options_.fanout[hop];
    const Philox rng(options_.seed, stream_id(Stream::sample, to_size(step) * kMaxLayers + hop));
    entries.clear();
    std::vector<int32_t> starts = {0};
    for (const int32_t v : nodes) {
      Node node = look_up(v);
      if (k == 0) node.s = 1;  // all, wherever they are
      const size_t begin = entries.size();
      const bool all =
          k == 0 || (node.s == 1 && node.degree <= k) || (std::isinf(node.s) && few_local(node, k));
      if (node.degree > 0 && !all) {
        draw(node, rng, to_size(v) * to_size(k), k, entries);
        if (const double share = node.local / node.all; std::isfinite(node.s)) {
          ++out.drawn_nodes;
          out.inflation += 1 + share * (1 - share) * (node.s - 1) * (node.s - 1) / node.s;
        }
        out.draws += k;
        for (const int32_t pick : picks_) out.remote_draws += 1 - here_[to_size(pick)];
      } else if (node.degree > 0) {
        take_all(node, entries);
        out.draws += std::ssize(entries) - to_int64(begin);
        for (size_t i = begin; i < entries.size(); ++i)
          out.remote_draws += 1 - here_[to_size(entries[i].node)];
      }
      starts.push_back(to_start(entries.size()));
    }
    const std::vector<int32_t> rows = nodes;
    for (size_t i = 0; i < rows.size(); ++i) position_[to_size(rows[i])] = to_int(i);
    for (const Entry& entry : entries) {
      int32_t& position = position_[to_size(entry.node)];
      if (position == -1) nodes.push_back(entry.node), position = kNew;
    }
    std::sort(nodes.begin() + std::ssize(rows), nodes.end());
    for (size_t i = rows.size(); i < nodes.size(); ++i) position_[to_size(nodes[i])] = to_int(i);
    out.mix.insert(out.mix.begin(), mix(rows, std::ssize(nodes), starts, entries).with_transpose());
    for (const int32_t v : nodes) position_[to_size(v)] = -1;
  }
  return out;
}

SparseMatrix NeighbourSampler::exact(std::span<const int32_t> rows,
                                     std::span<const int32_t> columns) {
  std::vector<Entry> entries;
  std::vector<int32_t> starts = {0};
  for (const int32_t v : rows) {
    Node node = look_up(v);
    node.s = 1;
    take_all(node, entries);
    starts.push_back(to_start(entries.size()));
  }
  for (size_t i = 0; i < columns.size(); ++i) position_[to_size(columns[i])] = to_int(i);
  SparseMatrix out = mix(rows, std::ssize(columns), starts, entries);
  for (const int32_t v : columns) position_[to_size(v)] = -1;
  return out;
}

}  // namespace heddle
