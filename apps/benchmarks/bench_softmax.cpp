// Measures how far eight learners that talk to neighbours only are from the optimum of a softmax
// regression on CIFAR-10, over bytes sent: strongly convex, and sorted by class, so that each
// learner alone would end elsewhere. For comparison an all-reduce of gradients, and gossip.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "apps/benchmarks/bench.h"
#include "apps/cli/format.h"
#include "apps/cli/program.h"
#include "comm/threads.h"
#include "core/context.h"
#include "core/files.h"
#include "core/kernels.h"
#include "core/parallel.h"
#include "core/tape.h"
#include "data/dataset.h"
#include "layers/linear.h"
#include "layers/loss.h"
#include "optim/data_parallel.h"
#include "optim/decentralized.h"

namespace heddle::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kRanks = 8;
constexpr int64_t kImages = 2500;   // of each learner, all in every step
constexpr double kPenalty = 1e-2;   // the loss is strongly convex with this constant
constexpr double kFullRate = 2;     // the gradient's Lipschitz constant is at most 0.51
constexpr double kEnd = 1e-5;       // distance from the optimum that ends a run
constexpr int kSteps = 700;         // of a run that does not come so near
constexpr int kOptimumSteps = 600;  // of Nesterov's method, momentum for condition number 51
constexpr double kOptimumMomentum = 0.75;

struct Share {
  Tensor images;  // f32 (kImages, 3 * S * S), each of norm 1
  Tensor labels;  // i32 (kImages)
};

// Returns each learner's images: the first ones of the set, sorted by class, in equal parts.
std::vector<Share> share_by_class(const ImageDataset& set) {
  std::vector<int64_t> order(to_size(std::min(set.size(), kRanks * kImages)));
  std::iota(order.begin(), order.end(), int64_t{0});
  std::ranges::stable_sort(order, {}, [&](int64_t i) { return set.label(i); });
  const int64_t each = to_int64(order.size()) / kRanks;
  std::vector<Share> shares;
  Image image;
  for (size_t r = 0; r < kRanks; ++r) {
    Share share;
    for (int64_t i = 0; i < each; ++i) {
      set.read(order[r * to_size(each) + to_size(i)], image);
      const auto n = to_int64(image.pixels.size());
      if (i == 0) {
        share.images = Tensor::empty_on(Device{}, {each, n});
        share.labels = Tensor::empty_on(Device{}, {each}, DType::i32);
      }
      double squares = 1e-12;
      for (const uint8_t v : image.pixels) squares += to_double(v) * v;
      float* x = share.images.data<float>() + i * n;
      for (int64_t j = 0; j < n; ++j)
        x[j] = to_float(image.pixels[to_size(j)] / std::sqrt(squares));
      share.labels.data<int32_t>()[i] = image.label;
    }
    shares.push_back(std::move(share));
  }
  return shares;
}

struct Method {
  std::string name;
  std::string innovation = {};  // empty: no peers, an all-reduce of gradients
  bool dual = true;
  double momentum = 0;
};

struct Trained {
  std::vector<double> distance;  // by step: sqrt(mean over ranks of ||x - x*||^2) / ||x*||
  double bytes = 0;              // that a learner sends in a step
  Tensor weights;                // rank 0's
};

// Trains from zero, and measures the distance from `optimum`, if it is given.
Trained train(const std::vector<Share>& shares, const Method& method, int64_t steps,
              const Tensor& optimum) {
  Trained out;
  run_threads(kRanks, [&](Communicator& comm) {
    const Context context({.threads = 1});
    const Share& share = shares[to_size(comm.rank())];
    ParameterStore store;
    Parameter& weight = store.add("weight", {10, share.images.shape()[1]}, constant_init(0));
    store.finalize(1);
    auto rule = make_sgd(
        {.momentum = method.momentum, .nesterov = method.momentum > 0, .weight_decay = kPenalty});
    std::unique_ptr<LearnerOptimizer> optimizer;
    if (method.innovation.empty())
      optimizer = std::make_unique<DataParallelOptimizer>(store, std::move(rule), comm);
    else
      optimizer = std::make_unique<DecentralizedOptimizer>(
          store, std::move(rule), comm, OptimizerOptions{},
          PeerOptions{.innovation = method.innovation, .dual = method.dual, .resync = 0});
    double distance = 1;
    for (int64_t step = 0; step < steps && distance > kEnd; ++step) {
      Tape tape;
      const Var logits = linear(tape, Var(share.images), weight, nullptr);
      const Var loss = softmax_cross_entropy(tape, logits, share.labels);
      optimizer->begin_step(kFullRate);
      tape.backward(
          loss, [&](Parameter& p) { optimizer->ready(p); },
          [&](Parameter& p) { optimizer->weights_free(p); });
      (void)optimizer->finish_step();
      if (!optimum.defined()) continue;
      const Tensor apart = optimum.clone();
      axpy(-1, weight.value, apart);
      optimizer->collective("distance", [&](Communicator& c) {
        distance = std::sqrt(mean_over_ranks(c, {std::pow(norm(apart), 2)})[0]) / norm(optimum);
      });
      if (comm.rank() == 0) out.distance.push_back(distance);
    }
    if (comm.rank() > 0) return;
    const auto& entries = optimizer->ledger().entries();
    out.bytes = to_double(entries.at({"weight", PayloadKind::values}).sent) /
                to_double(optimizer->optimizer().steps());
    out.weights = weight.value.clone();
  });
  return out;
}

// Returns the steps until the distance is below a limit; 0: never.
int64_t steps_to(const Trained& run, double limit) {
  const auto found = std::ranges::find_if(run.distance, [&](double d) { return d < limit; });
  return found == run.distance.end() ? 0 : found - run.distance.begin() + 1;
}

}  // namespace

void measure_softmax(const Options& o) {
  const Context context({.threads = 1});
  const std::string data = find_cifar(o);
  const auto set = open_dataset(data, Split::train, {.image_size = 32});
  const std::vector<Share> shares = share_by_class(*set);
  const Trained best = train(shares, {.name = "optimum", .momentum = kOptimumMomentum},
                             o.steps > 0 ? o.steps : kOptimumSteps, {});
  const TextTable table(
      "learners -34|to 1e-2 8|to 1e-3 8|to 1e-4 8|to 1e-5 8|closest 10|bytes 10|MB to 1e-5 12");
  std::printf(
      "# %s, %d learners on a ring, %lld images each, sorted by class: steps to a distance "
      "from the optimum\n# bytes: that a learner sends in a step\n",
      set->info().name.c_str(), kRanks, static_cast<long long>(shares[0].labels.size()));
  print(table.heading());
  Json methods = Json::array();
  for (const Method& method : std::vector<Method>{{"all-reduce of gradients"},
                                                  {"gossip", "none", false},
                                                  {"dual", "none"},
                                                  {"dual, qsgd:bits=4", "qsgd:bits=4"},
                                                  {"dual, dyna:bits=2", "dyna:bits=2"},
                                                  {"dual, dyna:bits=1", "dyna:bits=1"}}) {
    const Trained run = train(shares, method, o.steps > 0 ? o.steps : kSteps, best.weights);
    const auto shown = [&](double limit) {
      const int64_t steps = steps_to(run, limit);
      return steps > 0 ? std::to_string(steps) : "–";
    };
    const int64_t steps = steps_to(run, kEnd);
    print(table.row(
        {method.name, shown(1e-2), shown(1e-3), shown(1e-4), shown(kEnd),
         significant(std::ranges::min(run.distance), 2), decimals(run.bytes, 0),
         steps > 0 ? decimals(1e-6 * run.bytes * to_double(steps), 3) : std::string("–")}));
    std::fflush(stdout);
    methods.push_back({{"name", method.name}, {"bytes", run.bytes}, {"distance", run.distance}});
  }
  if (!o.json.empty())
    write_file_atomically(o.json,
                          Json{{"machine", cpu_name()}, {"methods", methods}}.dump() + '\n');
}

}  // namespace heddle::bench
