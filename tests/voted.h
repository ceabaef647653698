// A small network whose ranks vote, and what they end up with, for the tests of TopAgg.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "compress/topagg.h"
#include "tests/compress_helpers.h"
#include "tests/data_files.h"

namespace heddle {

// A matrix, a bias and a convolution: kinds of parameters that other algorithms leave dense.
struct Voted {
  ParameterStore store;
  explicit Voted(int64_t rows = 30) {
    store.add("fc.weight", {rows, 50}, constant_init(0));
    store.add("fc.bias", {35}, constant_init(0));
    store.add("conv1.weight", {4, 3, 3, 3}, constant_init(0));
    store.finalize(1);
  }
  GradientBucket bucket(int64_t step, size_t first = 0, size_t last = 3) {
    return bucket_of(store, step, first, last);
  }
};

using Fill = std::function<float(int rank, int64_t step, int64_t vote, int64_t element)>;

inline float normal_gradient(int rank, int64_t step, int64_t vote, int64_t element) {
  const auto key = static_cast<uint64_t>((rank * 100 + step) * 1000 + vote);
  return Philox(3, key).normal(static_cast<uint64_t>(element));
}

// By step, the flat gradients that a rank ends up with.
using Answers = std::vector<std::vector<float>>;

struct VoteRun {
  int ranks = 1, steps = 1;
  std::function<int64_t(int rank, int64_t step)> votes = [](int, int64_t) { return 1; };
  VotingOptions voting = {};
  Fill fill = normal_gradient;
  int64_t rows = 30;
  bool single_layers = false;
  std::function<void(TopAgg&)> before = [](TopAgg&) {};
};

inline std::vector<Answers> run_votes(const std::string& spec, const VoteRun& o) {
  std::vector<Answers> out(static_cast<size_t>(o.ranks));
  expect_none(run_ranks(o.ranks, [&](Communicator& comm) {
    Voted net(o.rows);
    const CompressSpec parsed = parse_compress(spec);
    const ReducerOptions options{.seed = 5, .voting = o.voting};
    TopAgg reducer({find_family("topagg"), parsed, options, net.store});
    o.before(reducer);
    Ledger ledger;
    for (int64_t step = 0; step < o.steps; ++step) {
      for (int64_t vote = 0; vote < o.votes(comm.rank(), step); ++vote) {
        for (const Parameter& p : net.store.parameters())
          for (int64_t i = 0; i < p.size(); ++i)
            p.grad.data<float>()[i] = o.fill(comm.rank(), step, vote, p.offset + i);
        reducer.vote(step, vote, comm.rank());
      }
      for (size_t b = 0; b < (o.single_layers ? 3 : 1); ++b)
        CHECK(reducer.reduce(o.single_layers ? net.bucket(step, b, b + 1) : net.bucket(step), comm,
                             ledger));
      out[static_cast<size_t>(comm.rank())].push_back(net.store.grads().to_vector());
    }
  }));
  return out;
}

// The sums of votes by a plain loop: +1 or -1 at the elements that are chosen in each parameter.
inline std::vector<double> plain_sums(const VoteRun& o, double density, int64_t step = 0) {
  Context context;
  Voted net(o.rows);
  std::vector<double> sums(static_cast<size_t>(net.store.grads().size()));
  for (int rank = 0; rank < o.ranks; ++rank)
    for (int64_t vote = 0; vote < o.votes(rank, step); ++vote)
      for (const Parameter& p : net.store.parameters()) {
        std::vector<std::pair<float, int64_t>> all;
        for (int64_t i = 0; i < p.size(); ++i) {
          const float g = o.fill(rank, step, vote, p.offset + i);
          all.emplace_back(-std::abs(g), i);
        }
        std::ranges::sort(all);
        const auto k = std::max<int64_t>(1, std::llround(density * static_cast<double>(p.size())));
        for (int64_t j = 0; j < k; ++j) {
          const int64_t i = all[static_cast<size_t>(j)].second;
          const float g = o.fill(rank, step, vote, p.offset + i);
          sums[static_cast<size_t>(p.offset + i)] += g > 0 ? 1 : g < 0 ? -1 : 0;
        }
      }
  return sums;
}

inline double l2_distance(const std::vector<float>& a, const std::vector<float>& b) {
  double squares = 0;
  for (size_t i = 0; i < a.size(); ++i)
    squares += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
  return std::sqrt(squares);
}

inline std::string setup_error(const std::string& spec, const VotingOptions& voting = {},
                               ReducerOptions options = {}) {
  return input_error([&] {
    Context context;
    Voted net;
    options.voting = voting;
    (void)make_reducer(parse_compress(spec), options, net.store);
  });
}

}  // namespace heddle
