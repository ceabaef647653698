// One rank that trains a small net as the programs do, and its checkpoints.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "apps/checkpoint/saver.h"
#include "apps/session/training_state.h"
#include "tests/app_helpers.h"
#include "tests/learner_net.h"

namespace heddle {

// The parts with which one rank trains, as the programs combine them.
struct Learner {
  CommonOptions o;
  Net net{1};
  DataParallelOptimizer optimizer;
  Schedule schedule{{.lr = 0.1, .total_steps = 100}};
  TrainingLog log;
  RunSpec spec;
  TrainingParts parts;
  Learner(Communicator& comm, const std::string& compress, const std::vector<int>& hosts = {})
      : optimizer(net.store, make_sgd({.momentum = 0.9}), comm, {},
                  {.hosts = hosts, .control_words = true},
                  make_reducer(parse_compress(compress), {.min_compress = 100}, net.store)),
        log({.program = "test", .rate_key = "rows_per_s"}, options(compress), net.store, optimizer,
            nullptr, nullptr),
        spec{.units_per_batch = 4 * comm.size(),
             .identity = {{"net", "small"}},
             .config = "lr = 0.1\naccumulate = 1  # default\n",
             .model = net.store.named_tensors()},
        parts{.o = o,
              .spec = spec,
              .store = net.store,
              .optimizer = optimizer,
              .schedule = schedule,
              .log = log,
              .rank = comm.rank()} {}
  const CommonOptions& options(const std::string& compress) {
    o.compress = compress;
    parse_texts(o);
    return o;
  }
  void step(int64_t number, int rank, float weight = 1) {
    const Tensor x = Tensor::zeros({4, 20}), y = Tensor::zeros({4}, DType::i32);
    fill_batch(number, rank * 4, x, y);
    Tape tape;
    const Var loss = softmax_cross_entropy(tape, net.forward(tape, Var(x), true), y);
    optimizer.begin_step(0.1);
    tape.backward(
        loss, [&](Parameter& p) { optimizer.ready(p); },
        [&](Parameter& p) { optimizer.weights_free(p); }, weight);
    log.finish_step(optimizer.finish_step(),
                    {.loss = loss.value().item(), .lr = 0.1, .units = 4, .times = {}});
  }
};

using Means = std::map<std::string, std::vector<double>>;

// Adds this rank's residuals, divided by the number of ranks.
inline void add_residuals(const Learner& learner, int ranks, Means& means) {
  for (const auto& [name, x] : learner.optimizer.named_state()) {
    if (!name.starts_with("residual.")) continue;
    std::vector<double>& mean = means[name];
    mean.resize(static_cast<size_t>(x.size()));
    for (size_t i = 0; i < mean.size(); ++i)
      mean[i] += static_cast<double>(x.data<float>()[i]) / ranks;
  }
}

// Trains ranks for some steps and leaves a checkpoint; returns the mean of their residuals.
inline Means leave_checkpoint(const std::string& folder, const std::string& compress, int ranks = 3,
                              const std::vector<int>& hosts = {}) {
  Means means;
  std::mutex mutex;
  expect_none(run_ranks(ranks, [&](Communicator& comm) {
    Learner learner(comm, compress, hosts);
    for (int64_t i = 0; i < 5; ++i) learner.step(i, comm.rank());
    CheckpointWriter writer(folder, comm.rank(), {.ranks = ranks});
    const OwnState own{.rank = {{"rank", Tensor::from({static_cast<float>(comm.rank())})}},
                       .json = {{"valid_loss", 2.5}}};
    writer.begin(5, save_training(learner.parts, 6, own).value());
    if (writer.wait() != Writing::written) throw Error(writer.error());
    comm.barrier();
    writer.commit();
    if (!writer.finish()) throw Error(writer.error());
    std::lock_guard lock(mutex);
    add_residuals(learner, ranks, means);
  }));
  return means;
}

}  // namespace heddle
