// A small model, gradients for every rank and step, and ranks that reduce them, for tests.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "compress/compressed_reducer.h"
#include "tests/ranks.h"

namespace heddle {

// Returns parameters [first, last) of a store, in the order of memory, as a bucket.
inline GradientBucket bucket_of(ParameterStore& store, int64_t step, size_t first, size_t last) {
  GradientBucket b{{}, {}, step};
  auto& all = store.parameters();
  for (size_t i = first; i < last; ++i) b.parameters.push_back(&all[all.size() - 1 - i]);
  const Parameter& end = *b.parameters.back();
  b.flat = store.grads().slice(b.parameters[0]->offset, end.offset + end.size());
  return b;
}

// Two convolutions, the first always dense, a batch norm, and a linear layer with bias.
struct CompressModel {
  ParameterStore store;
  CompressModel() {
    store.add("conv1.weight", {40, 3, 3, 3}, constant_init(0));
    store.add("bn1.weight", {40}, constant_init(0));
    store.add("conv2.weight", {16, 8, 3, 3}, constant_init(0));
    store.add("fc.weight", {35, 50}, constant_init(0));
    store.add("fc.bias", {35}, constant_init(0));
    store.finalize(1);
  }
  GradientBucket bucket(int64_t step, size_t first = 0, size_t last = 5) {
    return bucket_of(store, step, first, last);
  }
  void fill(const std::function<float(uint64_t)>& value) {
    uint64_t i = 0;
    for (Parameter& p : store.parameters())
      for (int64_t j = 0; j < p.size(); ++j) p.grad.data<float>()[j] = value(i++);
  }
  // Fills gradients with normal noise by rank and step, around a mean that all of them share.
  void fill_random(int rank, int64_t step) {
    const Philox common(1, 1), own(2, static_cast<uint64_t>(rank * 1000 + step));
    fill([&](uint64_t i) { return common.normal(i) + own.normal(i); });
  }
};

using Values = std::vector<float>;

inline Values flat_values(const Tensor& x) { return x.to_vector(); }

inline std::map<std::string, Values> state_of(const Reducer& reducer) {
  std::map<std::string, Values> state;
  for (const auto& [name, x] : reducer.named_state()) state[name] = x.to_vector();
  return state;
}

// Gradients, sums and state that one rank of a run has seen.
struct RankRun {
  std::vector<Values> given, sums;  // by step, of the flat gradient buffer
  std::vector<bool> accepted;
  std::vector<std::map<std::string, Values>> states;
  Ledger ledger;
  Traffic traffic;
};

struct ReduceOptions {
  int steps = 6;
  ReducerOptions reducer = {.seed = 5};
  std::function<void(CompressModel&, int rank, int64_t step)> fill =
      [](CompressModel& m, int rank, int64_t step) { m.fill_random(rank, step); };
  std::function<void(Reducer&, int64_t step)> before = {};
  std::vector<int64_t> step_numbers = {};  // instead of 0, 1, 2, ...
  bool single_layers = false;              // a bucket for each parameter
};

inline std::vector<RankRun> reduce_ranks(int p, const std::string& spec,
                                         const ReduceOptions& o = {}) {
  std::vector<RankRun> runs(static_cast<size_t>(p));
  expect_none(run_ranks(p, [&](Communicator& comm) {
    RankRun& run = runs[static_cast<size_t>(comm.rank())];
    CompressModel model;
    const auto reducer = make_reducer(parse_compress(spec), o.reducer, model.store);
    const auto steps = o.step_numbers.empty() ? o.steps : std::ssize(o.step_numbers);
    for (int64_t i = 0; i < steps; ++i) {
      const int64_t step = o.step_numbers.empty() ? i : o.step_numbers[static_cast<size_t>(i)];
      if (o.before) o.before(*reducer, step);
      o.fill(model, comm.rank(), step);
      run.given.push_back(flat_values(model.store.grads()));
      bool accepted = true;
      for (size_t b = 0; b < (o.single_layers ? 5 : 1); ++b) {
        comm.set_tag(concat("bucket ", b));
        accepted &= reducer->reduce(
            o.single_layers ? model.bucket(step, b, b + 1) : model.bucket(step), comm, run.ledger);
      }
      run.accepted.push_back(accepted);
      run.sums.push_back(flat_values(model.store.grads()));
      run.states.push_back(state_of(*reducer));
    }
    run.traffic = comm.total_traffic();
  }));
  return runs;
}

// Every family, with settings that compress the small model.
inline const std::vector<std::string> kAllSpecs = {"none",
                                                   "bf16",
                                                   "fp16",
                                                   "topk:density=0.02",
                                                   "randomk:density=0.02",
                                                   "scalecom:rate=50",
                                                   "scalecom:rate=30,beta=0.3,select=exact",
                                                   "adacomp:bin=50",
                                                   "adacomp:bin=30,scale=bin",
                                                   "lgc:density=0.02,train=2,gate=10",
                                                   "lgc:density=0.02,train=2,order=index,"
                                                   "codec=paper,gate=10,refresh=2",
                                                   "qsgd:bits=4,bucket=64",
                                                   "qsgd:bits=3,rounding=nearest",
                                                   "powersgd:rank=2",
                                                   "topk:density=0.02,values=bf16",
                                                   "scalecom:rate=30,beta=0.3,values=bf16",
                                                   "powersgd:rank=2,values=bf16"};

// Where a parameter of the model lies in the flat buffers.
inline std::pair<int64_t, int64_t> place_of(const std::string& name) {
  Context context;
  CompressModel model;
  const Parameter& p = *model.store.find(name);
  return {p.offset, p.size()};
}

inline Values part_of(const Values& flat, const std::string& name) {
  const auto [offset, size] = place_of(name);
  return {flat.begin() + offset, flat.begin() + offset + size};
}

// Returns the factor of a spec's low-pass filter; 1 without one.
inline double beta_of(const std::string& spec) {
  const auto values = parse_compress(spec).values;
  return values.contains("beta") ? values.at("beta") : 1;
}

// Returns the largest difference, over a layer's elements, between all gradients that the ranks
// were given and what they have sent plus their residuals m / beta.
inline double imbalance(const std::vector<RankRun>& runs, const std::string& layer, double beta) {
  const auto [offset, size] = place_of(layer);
  double worst = 0;
  for (int64_t i = 0; i < size; ++i) {
    const auto at = static_cast<size_t>(offset + i);
    double balance = 0;
    for (const RankRun& run : runs) {
      for (const Values& g : run.given) balance += g[at];
      balance -= run.states.back().at("residual." + layer)[static_cast<size_t>(i)] / beta;
    }
    for (const Values& sum : runs[0].sums) balance -= sum[at];
    worst = std::max(worst, std::abs(balance));
  }
  return worst;
}

}  // namespace heddle
