// A small net that ranks train together, for the tests of data parallel training.
#pragma once

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "compress/families.h"
#include "core/kernels.h"
#include "layers/activation.h"
#include "layers/linear.h"
#include "layers/loss.h"
#include "optim/data_parallel.h"
#include "tests/device.h"
#include "tests/ranks.h"

namespace heddle {
// Three layers without batch norm, and one parameter that only some batches use.
struct Net {
  ParameterStore store;
  Linear first{store, "first", 20, 30}, second{store, "second", 30, 40},
      third{store, "third", 40, 5};
  Linear spare{store, "spare", 20, 5};
  explicit Net(uint64_t seed) { store.finalize(seed); }
  Var forward(Tape& tape, const Var& x, bool use_spare) {
    Var y = relu(tape, first.forward(tape, x));
    y = relu(tape, second.forward(tape, y));
    y = third.forward(tape, y);
    return use_spare ? add(tape, y, spare.forward(tape, x)) : y;
  }
};

// Row r of the global batch of a step: a function of the step and the row.
inline void fill_batch(int64_t step, int64_t first, const Tensor& x, const Tensor& y) {
  const int64_t n = x.shape()[0], width = x.shape()[1];
  for (int64_t i = 0; i < n; ++i) {
    const Philox rng(7, static_cast<uint64_t>(step * 1000 + first + i));
    for (int64_t j = 0; j < width; ++j)
      x.data<float>()[i * width + j] = rng.normal(static_cast<uint64_t>(j));
    y.data<int32_t>()[i] = static_cast<int32_t>(rng.below(1000, 5));
  }
}

struct RunOptions {
  int64_t batch = 12;  // of all ranks together
  int steps = 5;
  int accumulate = 1;
  double clip = 0;
  DataParallelOptions parallel = {};
  bool spare_on_rank_one_only = false;
  std::string compress = {};
  std::string start = {};  // how the steps before parallel.compress_start are compressed
};

inline std::shared_ptr<CompressedReducer> start_reducer(const std::string& spec,
                                                        const ParameterStore& store) {
  const ReducerOptions options{.seed = 5, .min_compress = 100};
  std::shared_ptr<Reducer> made = make_reducer(parse_compress(spec), options, store);
  return std::dynamic_pointer_cast<CompressedReducer>(made);
}

// Returns the parameters' values after some steps.
inline std::vector<float> train(Communicator& comm, const RunOptions& o,
                                std::vector<std::string>* log = nullptr) {
  Net net(static_cast<uint64_t>(comm.rank()) + 1);  // rank 0's values must win
  OptimizerOptions options{.accumulate = o.accumulate, .clip_grad_norm = o.clip};
  if (log != nullptr) options.log = [log](const std::string& line) { log->push_back(line); };
  std::unique_ptr<Reducer> reducer;
  if (!o.compress.empty())
    reducer = make_reducer(parse_compress(o.compress), {.seed = 5, .min_compress = 100}, net.store);
  DataParallelOptions parallel = o.parallel;
  if (!o.start.empty()) parallel.start = start_reducer(o.start, net.store);
  DataParallelOptimizer optimizer(net.store, make_sgd({.momentum = 0.9, .weight_decay = 0.01}),
                                  comm, options, parallel, std::move(reducer));
  const int64_t mine = o.batch / comm.size() / o.accumulate;
  const Tensor x = Tensor::empty_on(Device{}, {mine, 20});
  const Tensor y = Tensor::empty_on(Device{}, {mine}, DType::i32);
  for (int64_t step = 0; step < o.steps; ++step)
    for (int64_t micro = 0; micro < o.accumulate; ++micro) {
      fill_batch(step, (micro * comm.size() + comm.rank()) * mine, x, y);
      Tape tape;
      const bool spare = !o.spare_on_rank_one_only || comm.rank() == 1;
      const Var loss = softmax_cross_entropy(tape, net.forward(tape, Var(here(x)), spare), y);
      optimizer.begin_step(0.1);
      tape.backward(
          loss, [&](Parameter& p) { optimizer.ready(p); },
          [&](Parameter& p) { optimizer.weights_free(p); });
      optimizer.finish_step();
    }
  optimizer.check_replicas();
  return net.store.values().to_vector();
}

// One update of a model whose only parameter is w, with a gradient of `value` everywhere.
inline void make_step(DataParallelOptimizer& optimizer, Parameter& w, float value) {
  optimizer.begin_step(0.1);
  w.next_beta();
  fill(w.grad, value);
  optimizer.ready(w);
  optimizer.weights_free(w);
  optimizer.finish_step();
}

inline double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * static_cast<double>(a[i] - b[i]);
    norm += static_cast<double>(b[i]) * b[i];
  }
  return std::sqrt(difference / norm);
}

inline std::vector<std::vector<float>> train_ranks(int p, const RunOptions& o,
                                                   const ContextOptions& of_rank = {.threads = 1}) {
  std::vector<std::vector<float>> out(static_cast<size_t>(p));
  expect_none(run_ranks(
      p, [&](Communicator& comm) { out[static_cast<size_t>(comm.rank())] = train(comm, o); },
      {.timeout_s = 30}, of_rank));
  return out;
}

}  // namespace heddle
