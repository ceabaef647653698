// Measures how many steps learners that talk to their neighbours only need for strongly convex
// problems, by graph and code: quadratics whose minima differ from learner to learner, condition
// number 10. Next to each the steps that the same recursion needs in double precision without a
// code, and how many bits each learner sends to a neighbour.
#include <cmath>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "apps/benchmarks/bench.h"
#include "apps/cli/format.h"
#include "comm/threads.h"
#include "core/context.h"
#include "optim/decentralized.h"

namespace heddle::bench {
namespace {

constexpr int kRanks = 8, kMostSteps = 2000;
constexpr int64_t kSize = 512;     // of each learner's weights
constexpr double kError = 1e-5;    // that ends a run, relative to that of the start
constexpr double kDiverged = 1e3;  // likewise

// f_i(x) = sum over j of h_ij x_j^2 / 2 - b_ij x_j, with h from 0.1 to 1.
struct Problem {
  std::vector<std::vector<double>> h, b;  // by rank
  std::vector<double> optimum;
  double start = 0;  // square of the distance from zero to the optimum, summed over the ranks

  explicit Problem(uint64_t seed) : h(kRanks), b(kRanks) {
    for (int64_t j = 0; j < kSize; ++j) {
      double hs = 0, bs = 0;
      for (uint64_t r = 0; r < kRanks; ++r) {
        const auto i = static_cast<uint64_t>(j);
        hs += h[r].emplace_back(0.1 + 0.9 * Philox(seed, 2 * r).uniform(i));
        bs += b[r].emplace_back(Philox(seed, 2 * r + 1).normal(i));
      }
      optimum.push_back(bs / hs);
      start += kRanks * optimum.back() * optimum.back();
    }
  }
};

// Returns the steps of the recursion without a code, in double precision, learning rate 1; none if
// they do not suffice.
std::optional<int> exact_steps(const Problem& problem, const Topology& graph, double mixing) {
  std::vector<std::vector<double>> x(kRanks, std::vector<double>(kSize)), d = x, y = x;
  for (int step = 1; step <= kMostSteps; ++step) {
    double error = 0;
    for (size_t r = 0; r < kRanks; ++r)
      for (size_t j = 0; j < kSize; ++j) {
        x[r][j] -= problem.h[r][j] * x[r][j] - problem.b[r][j];  // x'
        y[r][j] = x[r][j] - d[r][j];
      }
    for (size_t r = 0; r < kRanks; ++r)
      for (size_t j = 0; j < kSize; ++j) {
        for (const auto& [q, weight] : graph.neighbours(to_int(r)))
          d[r][j] -= mixing / 2 * weight * (y[to_size(q)][j] - y[r][j]);
        x[r][j] -= d[r][j];
        error += std::pow(x[r][j] - problem.optimum[j], 2);
      }
    if (error < kError * kError * problem.start) return step;
  }
  return std::nullopt;
}

struct Found {
  std::optional<int> steps;  // none: it has diverged or takes too long
  double bits = 0;           // that a learner sends to a neighbour for each weight, in a step
};

// Trains learners as threads.
Found train(const Problem& problem, const PeerOptions& peers) {
  Found found;
  run_threads(kRanks, [&](Communicator& comm) {
    Context context({.threads = 1});
    const auto r = to_size(comm.rank());
    ParameterStore store;
    Parameter& p = store.add("x", {kSize}, constant_init(0));
    store.finalize(1);
    DecentralizedOptimizer optimizer(store, make_sgd({}), comm, {}, peers);
    for (int step = 1; step <= kMostSteps; ++step) {
      optimizer.begin_step(1);
      float *x = p.value.data<float>(), *g = p.grad.data<float>();
      for (size_t j = 0; j < kSize; ++j) g[j] = to_float(problem.h[r][j] * x[j] - problem.b[r][j]);
      p.written = true;
      optimizer.ready(p);
      optimizer.weights_free(p);
      (void)optimizer.finish_step();
      double error = 0;
      for (size_t j = 0; j < kSize; ++j) error += std::pow(x[j] - problem.optimum[j], 2);
      optimizer.collective("error", [&](Communicator& c) {
        error = std::sqrt(kRanks * mean_over_ranks(c, {error})[0] / problem.start);
      });
      if (comm.rank() == 0 && error < kError) found.steps = step;
      if (error < kError || !(error < kDiverged)) break;  // the same on all ranks
    }
    const auto degree = to_double(optimizer.topology().degree(comm.rank()));
    const auto sent = to_double(optimizer.ledger().entries().at({"x", PayloadKind::values}).sent);
    if (comm.rank() == 0)
      found.bits = 8 * sent / degree / kSize / to_double(optimizer.optimizer().steps());
  });
  return found;
}

}  // namespace

void measure_peers(const Options& o) {
  const Context context({.threads = 1});
  const Problem problem(static_cast<uint64_t>(o.seed));
  std::printf(
      "# %d learners, %d weights each, learning rate 1, condition number 10: steps to an error of "
      "%g\n# exact: without a code, in double precision; bits: of a weight, to a neighbour\n"
      "%-22s %-44s %6s %7s %7s %7s %9s\n",
      kRanks, to_int(kSize), kError, "graph", "code", "mixing", "exact", "found", "bits", "in all");
  for (const char* graph : {"ring", "er:p=0.4,seed=12", "complete"}) {
    const Topology topology = Topology::parse(graph, kRanks);
    for (const char* code : {"none", "qsgd:bits=8", "qsgd:bits=4", "qsgd:bits=2",
                             "topk:density=0.25", "topk:density=0.1", "dyna:bits=1", "dyna:bits=2",
                             "dyna:bits=1,scale=geometric,first=32,ratio=0.97"}) {
      const PeerOptions peers{.peers = graph, .innovation = code};
      const double mixing = default_mixing(parse_innovation(code));
      const Found found = train(problem, peers);
      const auto shown = [](const std::optional<int>& n) { return n ? std::to_string(*n) : "-"; };
      std::printf("%-22s %-44s %6.3g %7s %7s %7.2f %9s\n", graph, code, mixing,
                  shown(exact_steps(problem, topology, mixing)).c_str(), shown(found.steps).c_str(),
                  found.bits, found.steps ? decimals(*found.steps * found.bits, 0).c_str() : "-");
      std::fflush(stdout);
    }
  }
}

}  // namespace heddle::bench
