// Measures training steps of a graph network next to PyTorch's, on the same batches: GraphSAGE, two
// layers, five neighbours of each node. Sampling is timed separately and counts for both.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "apps/benchmarks/bench.h"
#include "apps/cli/format.h"
#include "apps/cli/program.h"
#include "apps/models/evaluate_graph.h"
#include "comm/feature_store.h"
#include "comm/threads.h"
#include "core/context.h"
#include "core/error.h"
#include "data/graph.h"
#include "data/neighbour_sampler.h"
#include "layers/graph_net.h"
#include "layers/loss.h"
#include "optim/data_parallel.h"
#include "optim/update_rule.h"

namespace heddle::bench {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kBatch = 256, kHidden = 64, kSteps = 40;
constexpr double kLearningRate = 0.01;

// Opens the graph of --data, or draws one of the size of Debian's packages.
Graph open_or_draw(const Options& o) {
  if (!o.data.empty()) return open_graph(o.data);
  return block_graph({.nodes = 60000, .classes = 30, .degree = 8.6});
}

struct Batch {
  SampledBatch sampled;
  NodeFeatures x;
  Tensor labels;
};

Tensor dense(const NodeFeatures& x) {
  if (x.dense.defined()) return x.dense;
  const SparseMatrix& a = x.sparse;
  Tensor out = Tensor::zeros({a.rows(), a.cols()});
  for (int64_t r = 0; r < a.rows(); ++r)
    for (int32_t i = a.starts().data<int32_t>()[r]; i < a.starts().data<int32_t>()[r + 1]; ++i)
      out.data<float>()[r * a.cols() + a.columns().data<int32_t>()[i]] = 1;
  return out;
}

// Draws the batches of one learner that owns all nodes, and times each draw.
class Source {
 public:
  Source(const Options& o, const Graph& graph)
      : graph_(graph),
        owners_(to_size(graph.nodes()), 0),
        sampler_(graph, owners_, 0, {}),
        store_(owners_, 0, feature_rows(graph, nodes_of(owners_, 0))),
        size_(to_size(o.batch > 0 ? o.batch : kBatch)) {
    for (size_t v = 0; v < owners_.size(); ++v)
      if (graph.splits[v] == NodeSplit::train) training_.push_back(static_cast<int32_t>(v));
    shuffle(training_, 0, training_.size(), Philox(1, stream_id(Stream::shuffle)));
    check(training_.size() >= size_, "gcn: expected ", size_, " nodes for training, found ",
          training_.size());
  }
  Batch draw(int64_t step) {
    const size_t at = to_size(step) * size_ % (training_.size() - size_ + 1);
    const auto first = training_.begin() + to_int64(at);
    const std::vector<int32_t> nodes(first, first + to_int64(size_));
    const double begin = steady_seconds();
    Batch batch{sampler_.sample(nodes, step), {}, {}};
    const double sampled = steady_seconds();
    batch.x = node_features(graph_, store_.fetch(batch.sampled.inputs, *solo_, ledger_), true);
    fetch_ms.push_back(1000 * (steady_seconds() - sampled));
    sample_ms.push_back(1000 * (sampled - begin));
    batch.labels = labels_of(graph_, nodes);
    return batch;
  }
  std::vector<double> sample_ms, fetch_ms;

 private:
  const Graph& graph_;
  std::vector<int32_t> owners_, training_;
  NeighbourSampler sampler_;
  FeatureStore store_;
  size_t size_;
  std::unique_ptr<Communicator> solo_ = make_solo();
  Ledger ledger_;
};

// Writes the batches for torch_gcn.py, which says how they are read.
void write(Source& source, int64_t steps, int64_t features, const std::string& folder) {
  for (int64_t step = 0; step < steps; ++step) {
    char name[32];
    std::snprintf(name, sizeof name, "/batch-%06lld", static_cast<long long>(step));
    std::ofstream file(folder + name, std::ios::binary);
    const auto put = [&](const Tensor& x) {
      file.write(static_cast<const char*>(x.raw()), x.bytes());
    };
    const auto numbers = [&](std::initializer_list<int64_t> values) {
      for (const int64_t value : values) {
        const auto small = static_cast<int32_t>(value);
        file.write(reinterpret_cast<const char*>(&small), sizeof small);
      }
    };
    const Batch b = source.draw(step);
    numbers({std::ssize(b.sampled.mix), features});
    for (const SparseMatrix& a : b.sampled.mix) {
      numbers({a.rows(), a.cols(), a.entries()});
      put(a.starts()), put(a.columns()), put(a.weights());
    }
    put(dense(b.x)), put(b.labels);
    if (!file.flush()) throw Error(concat(folder, name, ": cannot be written"));
  }
}

// Trains on the batches once, after a warm-up, and returns the milliseconds of each step without
// drawing its batch.
std::vector<double> train(const Options& o, const Graph& graph, Source& source, int64_t steps) {
  ParameterStore store;
  const GraphNet model(
      store,
      {.features = graph.feature_count, .hidden = kHidden, .classes = std::ssize(graph.classes)});
  store.finalize(1);
  const auto solo = make_solo();
  DataParallelOptimizer optimizer(store, make_adam({}), *solo);
  std::vector<double> ms;
  for (int64_t step = -o.warmup; step < steps; ++step) {
    if (step == 0) source.sample_ms.clear(), source.fetch_ms.clear();
    const Batch batch = source.draw(std::max<int64_t>(step, 0));
    const double begin = steady_seconds();
    Tape tape({.step = 0});
    const Var loss =
        softmax_cross_entropy(tape, model.forward(tape, batch.x, batch.sampled.mix), batch.labels);
    (void)loss.value().item();
    optimizer.begin_step(kLearningRate);
    tape.backward(
        loss, [&](Parameter& p) { optimizer.ready(p); },
        [&](Parameter& p) { optimizer.weights_free(p); });
    (void)optimizer.finish_step();
    if (step >= 0) ms.push_back(1000 * (steady_seconds() - begin));
  }
  return ms;
}

}  // namespace

void measure_gcn(const Options& o) {
  const Context context({.threads = to_int(o.threads)});
  const Graph graph = open_or_draw(o);
  const int64_t steps = o.steps > 0 ? o.steps : kSteps;
  Source source(o, graph);
  std::string folder = fs::temp_directory_path() / "heddle-bench-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) throw Error(folder + ": cannot be made");
  const std::shared_ptr<void> removed(nullptr, [&](void*) {
    std::error_code ignored;
    fs::remove_all(folder, ignored);
  });
  write(source, steps, graph.feature_count, folder);

  const std::vector<Python> pythons = find_pythons(o);
  std::map<std::string, std::vector<double>> rounds;  // by program: the median of each
  std::vector<double> samples, fetches;
  for (int64_t round = 0; round < o.rounds; ++round) {
    rounds["heddle"].push_back(median(train(o, graph, source, steps)));
    samples.push_back(median(source.sample_ms));
    fetches.push_back(median(source.fetch_ms));
    for (const Python& python : pythons) {
      for (const char* product : {"coo", "csr", "gather"}) {
        const std::string name = concat("PyTorch ", python.torch_version, " ", product);
        try {
          const nlohmann::json found = run_for_json(
              {python.path, "-Wignore", find_script("torch_gcn.py"), "--folder", folder,
               concat("--hidden=", kHidden), concat("--classes=", graph.classes.size()),
               concat("--threads=", o.threads), concat("--warmup=", o.warmup),
               std::string("--product=") + product});
          rounds[name].push_back(median(found.at("ms").get<std::vector<double>>()));
        } catch (const Error& error) {
          if (round == 0)
            std::fprintf(stderr, "bench: %s is left out: %s\n", name.c_str(), error.what());
        }
      }
    }
  }
  const double sample = median(samples), fetch = median(fetches);
  const double ours = median(rounds["heddle"]) + sample + fetch;
  std::printf(
      "# %s, %lld threads; %s, %lld nodes, %lld edges, %lld features; batches of %lld nodes, "
      "fan-out 5,5, hidden %lld\n# a step is sampling (%.2f ms, %.0f %% of heddle's), features "
      "(%.2f ms) "
      "and "
      "training; sampling and features are heddle's in every row\n",
      cpu_name().c_str(), static_cast<long long>(o.threads), graph.name.c_str(),
      static_cast<long long>(graph.nodes()), static_cast<long long>(graph.edges()),
      static_cast<long long>(graph.feature_count),
      static_cast<long long>(o.batch > 0 ? o.batch : kBatch), static_cast<long long>(kHidden),
      sample, 100 * sample / ours, fetch);
  const TextTable table("program -32|training ms 12.2|step ms 9.2|ratio 7.2");
  print(table.heading());
  for (const auto& [name, ms] : rounds) {
    if (ms.empty()) continue;
    std::vector<double> ratios;  // of steps measured in the same round
    for (size_t i = 0; i < std::min(ms.size(), rounds["heddle"].size()); ++i)
      ratios.push_back((ms[i] + sample + fetch) / (rounds["heddle"][i] + sample + fetch));
    print(table.row({name, median(ms), median(ms) + sample + fetch, median(ratios)}));
  }
}

}  // namespace heddle::bench
