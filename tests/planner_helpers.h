// A model whose layers have different gradients, and ranks that train it under layer plans, for
// tests.
#pragma once

#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "optim/data_parallel.h"
#include "tests/compress_helpers.h"

namespace heddle {

// Layers whose gradients are of different sizes and differently peaked.
struct PlannedModel {
  ParameterStore store;
  PlannedModel() {
    for (int64_t i = 0; i < 6; ++i)
      store.add(concat("layer", i, ".weight"), {40 + 10 * i, 30 + 7 * i}, constant_init(0));
    store.add("bias", {50}, constant_init(0));
    store.finalize(1);
  }
  // Draws gradients of a rank and step around a mean that all ranks share; `shift` permutes layers.
  void fill(uint64_t rank, int64_t step, size_t shift);
  std::vector<std::vector<double>> common;  // by parameter: drawn once, the same in every step
};

inline std::unique_ptr<Reducer> reducer_of(const std::string& spec, const ParameterStore& store) {
  return make_reducer(parse_compress(spec), {.seed = 5, .min_compress = 100}, store);
}

struct PlannedTraining {
  std::string spec = "scalecom:rate=20";
  int64_t steps = 45;
  bool identical = false, overlap = true;
  LayerPlannerOptions planner = {.every = 20, .window = 5};
  std::map<std::string, double> replay = {};  // set after `replay_at` steps
  int64_t replay_at = -1;
  double (*lr)(int64_t step) = [](int64_t) { return 0.1; };
  size_t (*shift)(int64_t step) = [](int64_t) -> size_t { return 0; };
  void (*spoil)(PlannedModel&, int rank, int64_t step) = [](PlannedModel&, int, int64_t) {};
};

struct PlannedRun {
  std::vector<PlanReport> plans;
  std::vector<std::string> log;
  Values values;
  std::vector<int64_t> payload;  // of the planned layers, by step
};

inline int64_t payload_of(const Ledger& ledger, const std::vector<LayerChoices>& layers) {
  int64_t bytes = 0;
  for (const LayerChoices& layer : layers)
    for (const auto kind : {PayloadKind::values, PayloadKind::indices, PayloadKind::scales})
      if (const auto entry = ledger.entries().find({layer.name, kind});
          entry != ledger.entries().end())
        bytes += entry->second.payload;
  return bytes;
}

// True if a step's bytes equal the plan's; for top-k's differences the plan has an upper bound, for
// AdaComp an expectation.
inline bool as_planned(int64_t bytes, int64_t planned, const std::string& spec) {
  if (spec.starts_with("adacomp"))
    return std::abs(std::log(static_cast<double>(bytes) / static_cast<double>(planned))) < 0.3;
  if (!spec.starts_with("topk") || spec.ends_with("indices=plain")) return bytes == planned;
  return bytes <= planned && static_cast<double>(bytes) > 0.9 * static_cast<double>(planned);
}

inline std::vector<PlannedRun> train(int p, const PlannedTraining& o) {
  std::vector<PlannedRun> runs(static_cast<size_t>(p));
  expect_none(run_ranks(p, [&](Communicator& comm) {
    PlannedRun& run = runs[static_cast<size_t>(comm.rank())];
    PlannedModel model;
    auto reducer = reducer_of(o.spec, model.store);
    auto& compressed = dynamic_cast<CompressedReducer&>(*reducer);
    const std::vector<LayerChoices> layers = compressed.candidates();
    DataParallelOptions parallel{.bucket_bytes = 20000, .overlap = o.overlap, .compress_start = 3};
    parallel.planner = o.planner;
    parallel.planner.on_plan = [&](const PlanReport& report) { run.plans.push_back(report); };
    parallel.planner.log = [&](const std::string& line) { run.log.push_back(line); };
    DataParallelOptimizer optimizer(model.store, make_sgd({}), comm, {}, parallel,
                                    std::move(reducer));
    int64_t before = 0;
    for (int64_t step = 0; step < o.steps; ++step) {
      if (step == o.replay_at)
        for (const auto& [name, setting] : o.replay) compressed.set_choice(name, setting);
      optimizer.begin_step(o.lr(step));
      model.fill(o.identical ? 0 : static_cast<uint64_t>(comm.rank()), step, o.shift(step));
      o.spoil(model, comm.rank(), step);
      auto& all = model.store.parameters();
      for (size_t i = all.size(); i-- > 0;) {
        all[i].next_beta();
        optimizer.ready(all[i]);
        optimizer.weights_free(all[i]);
      }
      optimizer.finish_step();
      const int64_t bytes = payload_of(optimizer.ledger(), layers);
      run.payload.push_back(bytes - before);
      before = bytes;
    }
    optimizer.check_replicas();
    run.values = flat_values(model.store.values());
  }));
  return runs;
}

}  // namespace heddle
