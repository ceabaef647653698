// The neighbour sampler: its estimates are right on average, their spread and the share of remote
// draws are what the formulas say, and blocks fit together.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "core/context.h"
#include "core/error.h"
#include "data/neighbour_sampler.h"

namespace heddle {
namespace {

constexpr double kLocalOnly = std::numeric_limits<double>::infinity();

// Node 0 has neighbours 1 … degree; each of these another neighbour or a few, so that degrees
// differ.
Graph star(int32_t degree) {
  Graph graph;
  std::vector<std::pair<int32_t, int32_t>> edges;
  int32_t next = degree + 1;
  for (int32_t v = 1; v <= degree; ++v) {
    edges.emplace_back(0, v);
    for (int32_t i = 0; i < v % 4; ++i) edges.emplace_back(v, next++);
  }
  set_edges(graph, next, edges);
  return graph;
}

// The first `local` neighbours of node 0 are rank 0's, as is node 0; all other nodes are rank 1's.
std::vector<int32_t> owners(const Graph& graph, int32_t local) {
  std::vector<int32_t> out(to_size(graph.nodes()), 1);
  std::fill_n(out.begin(), local + 1, 0);
  return out;
}

// The weights of node 0's row, by node.
std::map<int32_t, double> row_of(const SampledBatch& batch) {
  std::map<int32_t, double> out;
  const SparseMatrix& a = batch.mix.back();
  for (int32_t i = 0; i < a.starts().data<int32_t>()[1]; ++i)
    out[batch.inputs[to_size(a.columns().data<int32_t>()[i])]] =
        double{a.weights().data<float>()[i]};
  return out;
}

// Mean and second moment of sum_j w_j x_j over draws of node 0.
struct Moments {
  double mean = 0, second = 0, remote = 0, draws = 0, error = 0;
};
Moments measure(const Graph& graph, int32_t local, const SamplerOptions& options, int64_t draws,
                const std::vector<double>& x) {
  NeighbourSampler sampler(graph, owners(graph, local), 0, options);
  Moments out;
  const std::vector<int32_t> batch = {0};
  for (int64_t step = 0; step < draws; ++step) {
    const SampledBatch sampled = sampler.sample(batch, step);
    double sum = 0;
    for (const auto& [node, weight] : row_of(sampled)) sum += weight * x[to_size(node)];
    out.mean += sum;
    out.second += sum * sum;
    out.remote += to_double(sampled.remote_draws);
    out.draws += to_double(sampled.draws);
  }
  const auto n = to_double(draws);
  out.mean /= n;
  out.second /= n;
  out.error = std::sqrt((out.second - out.mean * out.mean) / n);
  return out;
}

}  // namespace

TEST_CASE("sampler: unbiased for every skew and both ways to mix, over 1e5 draws") {
  Context context;
  const Graph graph = star(10);
  std::vector<double> x(to_size(graph.nodes()));
  for (size_t v = 0; v < x.size(); ++v) x[v] = std::sin(to_double(to_int64(3 * v))) + 0.5;
  for (const Mixing mixing : {Mixing::mean, Mixing::symmetric}) {
    double expected = 0;
    for (int32_t v = 1; v <= 10; ++v) {
      const double d = to_double(graph.degree(v) + 1);
      expected += x[to_size(v)] * (mixing == Mixing::mean ? 0.1 : 1 / std::sqrt(11 * d));
    }
    if (mixing == Mixing::symmetric) expected += x[0] / 11;
    for (const double skew : {1.0, 2.0, 8.0, 64.0}) {
      CAPTURE(skew);
      const Moments m =
          measure(graph, 4, {.fanout = {3}, .skew = skew, .mixing = mixing}, 100000, x);
      CHECK(std::abs(m.mean - expected) < 4 * m.error);
      CHECK(m.error < 0.03);
    }
  }
}

TEST_CASE("sampler: the share of remote draws and the second moment are what the formulas say") {
  Context context;
  const Graph graph = star(10);
  // All terms a_j x_j / p_j are equal: that of one draw is 1 / q_j over 10.
  const std::vector<double> x(to_size(graph.nodes()), 1.0);
  const int64_t draws = 100000;
  const double uniform = measure(graph, 5, {.fanout = {1}}, draws, x).second;
  CHECK(uniform == doctest::Approx(1));
  for (const double s : {2.0, 4.0, 8.0}) {
    CAPTURE(s);
    const Moments m = measure(graph, 5, {.fanout = {1}, .skew = s}, draws, x);
    CHECK(m.remote / m.draws == doctest::Approx(1 / (1 + s)).epsilon(0.03));
    CHECK(m.second / uniform == doctest::Approx(1 + 0.25 * (s - 1) * (s - 1) / s).epsilon(0.02));
  }
  const Moments quarter = measure(graph, 8, {.fanout = {1}, .skew = 4}, draws, x);
  CHECK(quarter.remote / quarter.draws == doctest::Approx(0.2 / (0.2 + 4 * 0.8)).epsilon(0.05));
  CHECK(quarter.second == doctest::Approx(1 + 0.16 * 9 / 4).epsilon(0.02));
  // For P_L and D, s solves 1 + P_L P_R (s - 1)^2 / s = D.
  CHECK(skew_for_budget(0.5, 1.25) == doctest::Approx(2.618).epsilon(1e-4));
  CHECK(skew_for_budget(0.5, 1.5) == doctest::Approx(3.732).epsilon(1e-4));
  CHECK(skew_for_budget(0.5, 2) == doctest::Approx(5.828).epsilon(1e-4));
  CHECK(skew_for_budget(0.25, 1.5) == doctest::Approx(4.442).epsilon(1e-3));
  CHECK(skew_for_budget(0.75, 1.5) == doctest::Approx(4.442).epsilon(1e-3));
  CHECK(skew_for_budget(0, 1.5) == 1);
  CHECK(skew_for_budget(1, 1.5) == 1);
  CHECK(skew_for_budget(0.5, 1) == 1);
  CHECK(skew_for_budget(1e-9, 1.5) == 64);
  // A budget is what the draws then have.
  for (const int32_t local : {2, 5, 9}) {
    NeighbourSampler sampler(graph, owners(graph, local), 0,
                             {.fanout = {1}, .variance_budget = 1.5});
    const double s = sampler.skew(0), share = local / 10.0;
    CHECK(1 + share * (1 - share) * (s - 1) * (s - 1) / s == doctest::Approx(1.5));
    const Moments m = measure(graph, local, {.fanout = {1}, .variance_budget = 1.5}, draws, x);
    CHECK(m.second == doctest::Approx(1.5).epsilon(0.03));
  }
}

TEST_CASE("sampler: weights that sum to one, and neighbours of other ranks that are left out") {
  Context context;
  const Graph graph = star(10);
  const auto sum = [](const SampledBatch& batch) {
    double total = 0;
    for (const auto& [node, weight] : row_of(batch)) total += weight;
    return total;
  };
  for (const SkewWeights weights : {SkewWeights::normalised, SkewWeights::plain}) {
    NeighbourSampler sampler(graph, owners(graph, 4), 0,
                             {.fanout = {3}, .skew = 8, .weights = weights});
    for (int64_t step = 0; step < 50; ++step)
      CHECK(sum(sampler.sample(std::vector{0}, step)) == doctest::Approx(1));
  }
  // normalised: a neighbour of another rank weighs s times as much as one of this rank.
  NeighbourSampler normalised(graph, owners(graph, 4), 0,
                              {.fanout = {2}, .skew = 8, .weights = SkewWeights::normalised});
  int mixed = 0;
  for (int64_t step = 0; step < 200; ++step) {
    const auto row = row_of(normalised.sample(std::vector{0}, step));
    if (row.size() < 2) continue;
    const auto [first, a] = *row.begin();
    const auto [last, b] = *row.rbegin();
    if (first > 4 || last <= 4) continue;
    ++mixed;
    CHECK(b / a == doctest::Approx(8));
  }
  CHECK(mixed > 10);
  const SamplerOptions local{.fanout = {3}, .skew = kLocalOnly, .weights = SkewWeights::plain};
  for (const int32_t locals : {2, 6}) {
    NeighbourSampler sampler(graph, owners(graph, locals), 0, local);
    for (int64_t step = 0; step < 50; ++step) {
      const SampledBatch batch = sampler.sample(std::vector{0}, step);
      CHECK(batch.remote_draws == 0);
      CHECK(sum(batch) == doctest::Approx(1));
      if (locals == 2) CHECK(row_of(batch).size() == 2);  // both, not drawn
    }
  }
  NeighbourSampler none_here(graph, owners(graph, 0), 0, local);
  CHECK(none_here.sample(std::vector{0}, 0).remote_draws == 3);
  CHECK_THROWS_AS(NeighbourSampler(graph, owners(graph, 0), 0, {.skew = kLocalOnly}), InputError);
  CHECK_THROWS_AS(NeighbourSampler(graph, owners(graph, 0), 0, {.skew = 0.5}), InputError);
  CHECK_THROWS_AS(NeighbourSampler(graph, owners(graph, 0), 0, {.fanout = {-1}}), InputError);
  CHECK_THROWS_AS(NeighbourSampler(graph, owners(graph, 0), 0, {.fanout = {}}), InputError);
  CHECK_THROWS_AS(NeighbourSampler(graph, {0}, 0, {}), InputError);
}

TEST_CASE("sampler: blocks fit together, draws do not depend on batch or rank") {
  Context context;
  const Graph graph = block_graph({.nodes = 600, .classes = 3, .degree = 6});
  std::vector<int32_t> halves(600);
  for (size_t v = 0; v < 600; ++v) halves[v] = static_cast<int32_t>(v % 2);
  const SamplerOptions options{.fanout = {4, 3}, .seed = 7};
  NeighbourSampler sampler(graph, halves, 0, options), other(graph, halves, 1, options);
  int32_t busy = 0;
  while (graph.degree(busy) < 9) ++busy;
  const std::vector<int32_t> nodes = {17, 3, busy, 100, 599};
  const SampledBatch batch = sampler.sample(nodes, 12);
  REQUIRE(batch.mix.size() == 2);
  CHECK(batch.mix[1].rows() == 5);
  CHECK(batch.mix[0].rows() == batch.mix[1].cols());
  CHECK(batch.mix[0].cols() == std::ssize(batch.inputs));
  for (const SparseMatrix& a : batch.mix) CHECK(a.transpose() != nullptr);
  CHECK(std::vector(batch.inputs.begin(), batch.inputs.begin() + 5) == nodes);
  const auto first = batch.inputs.begin(), second = first + batch.mix[1].cols();
  CHECK(std::is_sorted(first + 5, second));
  CHECK(std::is_sorted(second, batch.inputs.end()));
  CHECK(std::set(batch.inputs.begin(), batch.inputs.end()).size() == batch.inputs.size());
  for (int64_t r = 0; r < 5; ++r) {  // entries are neighbours
    const auto real = graph.neighbours(nodes[to_size(r)]);
    const int32_t* starts = batch.mix[1].starts().data<int32_t>();
    CHECK(starts[r + 1] - starts[r] <= 4);
    for (int32_t i = starts[r]; i < starts[r + 1]; ++i)
      CHECK(std::ranges::binary_search(
          real, batch.inputs[to_size(batch.mix[1].columns().data<int32_t>()[i])]));
  }
  const auto one = [](NeighbourSampler& from, int32_t node, int64_t step) {
    return row_of(from.sample(std::vector{node}, step));
  };
  CHECK(one(sampler, busy, 12) == one(other, busy, 12));
  std::map<int32_t, double> in_batch;
  const int32_t* starts = batch.mix[1].starts().data<int32_t>();
  for (int32_t i = starts[2]; i < starts[3]; ++i)
    in_batch[batch.inputs[to_size(batch.mix[1].columns().data<int32_t>()[i])]] =
        double{batch.mix[1].weights().data<float>()[i]};
  CHECK(in_batch == one(sampler, busy, 12));
  int different = 0;
  for (int64_t step = 0; step < 20; ++step)
    different += one(sampler, busy, step) != one(sampler, busy, step + 1) ? 1 : 0;
  CHECK(different > 5);
  CHECK(sampler.sample(std::vector<int32_t>{}, 0).inputs.empty());
  CHECK_THROWS_AS(sampler.sample(std::vector{1, 1}, 0), InputError);
  CHECK_THROWS_AS(sampler.sample(std::vector{600}, 0), InputError);
  CHECK_THROWS_AS(sampler.sample(std::vector{-1}, 0), InputError);
}

TEST_CASE("sampler: all neighbours are exact, isolated nodes have none") {
  Context context;
  Graph graph;
  set_edges(graph, 5, {{0, 1}, {0, 2}, {2, 3}});
  const std::vector<int32_t> here(5, 0);
  for (const Mixing mixing : {Mixing::mean, Mixing::symmetric}) {
    NeighbourSampler sampler(graph, here, 0, {.fanout = {2}, .mixing = mixing});
    const std::vector<int32_t> all = {0, 1, 2, 3, 4};
    const SampledBatch batch = sampler.sample(all, 0);
    const SparseMatrix exact = sampler.exact(all, all);
    const auto values = [](const SparseMatrix& a) {
      std::vector<float> out(25);
      for (int64_t r = 0; r < 5; ++r)
        for (int32_t i = a.starts().data<int32_t>()[r]; i < a.starts().data<int32_t>()[r + 1]; ++i)
          out[to_size(5 * r + a.columns().data<int32_t>()[i])] = a.weights().data<float>()[i];
      return out;
    };
    CHECK(values(batch.mix[0]) == values(exact));
    CHECK(batch.draws == 6);
    CHECK(batch.drawn_nodes == 0);
    std::vector<float> expected(25);
    const std::vector<double> d = {2, 1, 2, 1, 0};
    for (const auto& [i, j] : {std::pair{0, 1}, {0, 2}, {2, 3}, {1, 0}, {2, 0}, {3, 2}}) {
      const double a = mixing == Mixing::mean
                           ? 1 / d[to_size(i)]
                           : 1 / std::sqrt((d[to_size(i)] + 1) * (d[to_size(j)] + 1));
      expected[to_size(5 * i + j)] = static_cast<float>(a);
    }
    for (size_t i = 0; i < 5 && mixing == Mixing::symmetric; ++i)
      expected[6 * i] = static_cast<float>(1 / (d[i] + 1));
    for (size_t i = 0; i < 25; ++i)
      CHECK(values(exact)[i] == doctest::Approx(expected[i]).epsilon(1e-6));
  }
  NeighbourSampler all(graph, {0, 1, 1, 1, 1}, 0, {.fanout = {0}, .skew = 8});
  CHECK(row_of(all.sample(std::vector{0}, 0)).size() == 2);
  NeighbourSampler every(graph, {0, 1, 0, 0, 0}, 0,
                         {.fanout = {0}, .skew = kLocalOnly, .weights = SkewWeights::plain});
  CHECK(row_of(every.sample(std::vector{0}, 0)).size() == 2);  // 0 is all, of other ranks too
}

}  // namespace heddle
