// Trains or applies a graph convolutional network. Read run() first: it is the whole program in
// order; GcnTraining::train_epoch() is the inner loop.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>
#include <vector>

#include "apps/benchmarks/headroom.h"
#include "apps/checkpoint/signals.h"
#include "apps/cli/gcn_options.h"
#include "apps/cli/program.h"
#include "apps/models/evaluate_graph.h"
#include "apps/models/graph_card.h"
#include "apps/models/guesses.h"
#include "apps/session/gcn_setup.h"
#include "apps/session/session.h"
#include "comm/feature_store.h"
#include "core/streams.h"
#include "data/partition.h"
#include "layers/loss.h"
#include "layers/weights.h"

namespace heddle {
namespace {

constexpr const char* kRateKey = "nodes_per_s";
constexpr int kGuesses = 5;

// The task of the program and the graph that it has read, the same for all learners.
struct Job {
  const TrainGcnOptions& o;
  const FlagTable& flags;
  const Arguments& arguments;
  const GraphCard& card;
  const Graph& graph;
  const std::vector<int32_t>& owners;
};

// Holds what a learner needs of the graph.
struct Nodes {
  Nodes(const Job& job, int rank)
      : sampler(job.graph, job.owners, rank, sampler_options(job.o)),
        features(job.owners, rank, feature_rows(job.graph, nodes_of(job.owners, rank))),
        whole(job.graph, job.owners, rank, sampler, features) {}

  NeighbourSampler sampler;
  FeatureStore features;
  WholeGraph whole;
};

// A batch whose features have arrived.
struct ReadyBatch {
  SampledBatch sampled;
  NodeFeatures x;  // of sampled.inputs
  Tensor labels;   // i32 (nodes), all on the host
};

Var loss_of(const GraphNet& model, Tape& tape, const ReadyBatch& batch, Device device) {
  std::vector<SparseMatrix> mix;
  for (const SparseMatrix& a : batch.sampled.mix) mix.push_back(a.to(device));
  const Var logits = model.forward(tape, batch.x.to(device), mix);
  return softmax_cross_entropy(tape, logits, batch.labels);
}

// Counts what the steps of a run have drawn and fetched on this rank, in a tensor, for checkpoints.
class SamplingTotals {
 public:
  enum Word : size_t { batches, rows, draws, remote_draws, drawn_nodes, inflation, kWords };
  SamplingTotals() : words_(Tensor::empty_on(Device{}, {kWords}, DType::i64)) {
    words_.fill_zero();
  }
  void add(const SampledBatch& batch, int64_t fetched) {
    const int64_t counts[] = {1, fetched, batch.draws, batch.remote_draws, batch.drawn_nodes};
    for (size_t i = 0; i < std::size(counts); ++i) words_.data<int64_t>()[i] += counts[i];
    const double sum = get(inflation) + batch.inflation;
    words_.data<int64_t>()[inflation] = std::bit_cast<int64_t>(sum);
  }
  double get(Word word) const {
    const int64_t value = words_.data<int64_t>()[word];
    return word == inflation ? std::bit_cast<double>(value) : to_double(value);
  }
  const Tensor& words() const { return words_; }

 private:
  Tensor words_;
};

class GcnTraining : public TrainingLoop {
 public:
  GcnTraining(const Job& job, Learner& learner, const GraphNet& model, Nodes& nodes,
              NodeBatches& train, Session& session)
      : TrainingLoop(session),
        o_(job.o),
        graph_(job.graph),
        device_(learner.context.device()),
        rank_(learner.comm.rank()),
        model_(model),
        nodes_(nodes),
        train_(train) {
    if (session.checkpoint() != nullptr)
      valid_ = parse_node_score(session.own_json({"acc1", "nodes"}), "valid_loss");
  }

  // Waits for what the communicating thread still does to this object.
  ~GcnTraining() override {
    try {
      optimizer_.wait();
    } catch (...) {  // known already: it has ended the run
    }
  }

  // The inner loop: an update from the mean gradient of --accumulate batches. While a batch is
  // computed, the next one is drawn and its features are fetched on the communicating thread.
  void train_epoch() override {
    prepare(session_.batch(), 0);
    StepFacts step;
    StepReport report;
    do {
      step = {.lr = session_.lr()};
      int64_t fetched = 0;
      for (int64_t micro = 0; micro < o_.accumulate; ++micro) {
        StepTimes& t = step.times;
        optimizer_.wait();
        const ReadyBatch batch = std::exchange(next_, {});
        const int64_t rows = nodes_.features.remote(batch.sampled.inputs);
        totals_.add(batch.sampled, rows);
        fetched += rows;
        prepare(session_.batch(), micro + 1);
        t.data += t.lap();
        Tape tape({.training = true,
                   .seed = static_cast<uint64_t>(o_.seed),
                   .step = static_cast<uint64_t>(log_.step() * o_.accumulate + micro),
                   .first_sample = int64_t{rank_} << 32});
        const Var loss = loss_of(model_, tape, batch, device_);
        step.loss += to_double(loss.value().item()) / to_double(o_.accumulate);
        t.forward += t.lap();
        if (!log_.check_loss(step.loss, step.lr)) return;

        optimizer_.begin_step(step.lr);
        tape.backward(loss, ready_, weights_free_);
        wait_for_stream();
        t.backward += t.lap();
        report = optimizer_.finish_step();
        t.update += t.lap();
        step.units += batch.labels.size();
      }
      step.figures = {{"feature_rows", to_double(fetched)}};
    } while (session_.finish_step(report, step));
  }

  double validate() override {
    valid_ = measure().valid;
    char text[160];
    std::snprintf(text, sizeof text, "train loss %.4f, valid loss %.4f, accuracy %.2f %%",
                  log_.result().train_loss, valid_.loss, valid_.acc1);
    record("valid", valid_, text);
    return valid_.loss;
  }
  // Records the accuracy on the test set, which the last validation has measured along with its
  // own; measures it now if a finished run was resumed.
  void test() {
    if (test_.nodes == 0) (void)measure();
    char text[80];
    std::snprintf(text, sizeof text, "test loss %.4f, accuracy %.2f %%", test_.loss, test_.acc1);
    record("test", test_, text);
  }

  OwnState own_state() const override {
    OwnState own;
    own.rank = {{"sampling", totals_.words()}};
    own.json = node_score_json(valid_);
    return own;
  }

  // Returns the program's keys of the final JSON object, means over steps and ranks. Collective.
  nlohmann::ordered_json sampling() {
    std::vector<double> sums;
    for (size_t i = 0; i < SamplingTotals::kWords; ++i)
      sums.push_back(totals_.get(SamplingTotals::Word{i}));
    optimizer_.collective("sampling",
                          [&](Communicator& comm) { sums = mean_over_ranks(comm, sums); });
    const double rows = to_double(o_.accumulate) * sums[SamplingTotals::rows] /
                        std::max(1.0, sums[SamplingTotals::batches]);
    const auto share = [&](SamplingTotals::Word a, SamplingTotals::Word b) {
      return sums[b] > 0 ? sums[a] / sums[b] : 0;
    };
    return {{"feature_rows", rows},
            {"feature_bytes", rows * to_double(graph_.row_bytes())},
            {"remote_share", share(SamplingTotals::remote_draws, SamplingTotals::draws)},
            {"inflation", share(SamplingTotals::inflation, SamplingTotals::drawn_nodes)}};
  }

  const NodeScore& valid() const { return valid_; }  // the last
  const NodeScore& last_test() const { return test_; }

 private:
  // Begins to draw and fetch the batch of this epoch that is `after` ones ahead, if there is one.
  void prepare(int64_t batch, int64_t after) {
    if (batch + after >= train_.size() / o_.accumulate * o_.accumulate) return;
    const int64_t epoch = log_.epoch(), step = log_.step() * o_.accumulate + after;
    optimizer_.post("features",
                    [this, epoch, step, at = batch + after](Communicator& comm, Ledger& ledger) {
                      const std::vector<int32_t> nodes = train_.batch(epoch, at);
                      next_.sampled = nodes_.sampler.sample(nodes, step);
                      next_.labels = labels_of(graph_, nodes);
                      next_.x = node_features(
                          graph_, nodes_.features.fetch(next_.sampled.inputs, comm, ledger), true);
                    });
    if (o_.overlap == "off") optimizer_.wait();
  }

  GraphEvaluation measure() {
    GraphEvaluation e = nodes_.whole.evaluate(model_, on_ranks(optimizer_));
    test_ = e.test;
    seconds_ = e.seconds;
    return e;
  }
  void record(const char* split, const NodeScore& score, const char* text) {
    log_.evaluated(split, score.loss,
                   {{"acc1", score.acc1},
                    {"nodes", score.nodes},
                    {kRateKey, to_double(graph_.nodes()) / seconds_}},
                   text);
  }

  const TrainGcnOptions& o_;
  const Graph& graph_;
  Device device_;
  int rank_;
  const GraphNet& model_;
  Nodes& nodes_;
  NodeBatches& train_;
  ReadyBatch next_;  // written by the communicating thread until wait() returns
  SamplingTotals totals_;
  NodeScore valid_, test_;
  double seconds_ = 0;  // of the last evaluation
};

void set_results(const Job& job, const NodeScore& valid, const NodeScore& test, Outcome& out) {
  const TrainGcnOptions& o = job.o;
  out.results = {{"valid_loss", valid.loss},
                 {"valid_acc1", valid.acc1},
                 {"test_loss", test.loss},
                 {"test_acc1", test.acc1},
                 {"feature_rows", nullptr},
                 {"feature_bytes", nullptr},
                 {"remote_share", nullptr},
                 {"inflation", nullptr},
                 {"cut", cut_share(job.graph, job.owners)},
                 {"graph_hash", graph_hash(job.graph)}};
  if (o.quiet || test.nodes == 0) return;
  char text[160];
  std::snprintf(text, sizeof text, "test accuracy %.2f %% (valid %.2f %%), loss %.4f on %lld nodes",
                test.acc1, valid.acc1, test.loss, static_cast<long long>(test.nodes));
  out.text = text;
}

// Trains in a run folder and saves the weights there.
Outcome train(const Job& job, Learner& learner, const GraphNet& model, Nodes& nodes) {
  const TrainGcnOptions& o = job.o;
  NodeBatches batches(o, job.graph, job.owners, learner.comm.rank());
  const StepPlan plan = plan_steps(o, batches);
  const std::string config = config_text(o, job.flags);
  Outcome out;
  if (const auto done =
          find_finished(o, config, false, learner.store.named_tensors(), learner.comm)) {
    out = {.run = done->result, .run_folder = o.output_dir};
    set_results(job, parse_node_score(done->valid, "loss"), parse_node_score(done->test, "loss"),
                out);
    return out;
  }
  Session session(o, job.arguments, learner,
                  {.log = {.program = "train_gcn", .rate_key = kRateKey},
                   .unit = "nodes",
                   .units_per_batch = o.batch_size * learner.comm.size(),
                   .plan = plan,
                   .schedule = schedule_options(o, plan),
                   .identity = identity(o, job.graph),
                   .config = config,
                   .model = learner.store.named_tensors(),
                   .metadata = graph_metadata(job.card)});
  GcnTraining training(job, learner, model, nodes, batches, session);
  session.run(training);
  nlohmann::ordered_json sampling;
  if (session.log().running()) {
    session.save_weights([&](const std::string& file) {
      save_safetensors(file, learner.store.named_tensors(), graph_metadata(job.card));
    });
    training.test();
    sampling = training.sampling();
  }
  out = session.finish();
  set_results(job, training.valid(), training.last_test(), out);
  if (!sampling.empty()) out.results.update(sampling);
  return out;
}

// Returns each node's best classes, for the final JSON object; prints them unless --json is given.
nlohmann::ordered_json predictions(const Job& job, const std::vector<int32_t>& nodes,
                                   const Tensor& logits) {
  const auto classes = to_size(logits.shape()[1]);
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  std::string text;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const auto at = to_size(nodes[i]);
    const std::span row(logits.data<float>() + i * classes, classes);
    const std::string name = job.graph.names.empty() ? std::to_string(at) : job.graph.names[at];
    out.push_back(
        guesses_json("node", name, best_classes(row, kGuesses, name), job.graph.classes, text));
    if (const int32_t label = job.graph.labels[at]; label >= 0)
      out.back()["label"] = job.graph.classes[to_size(label)];
  }
  if (!job.o.json) print(text);
  return out;
}

// Runs one learner and returns its exit code.
int run_rank(const Job& job, Communicator& started) {
  const TrainGcnOptions& o = job.o;
  Learner learner(o, started);
  const GraphNet model(learner.store, network_options(o, job.card));
  learner.finalize_store();
  if (!o.init.empty()) load_weights(WeightsFile(o.init), learner.store.named_tensors());
  check_same_graph(job.graph, job.owners, learner.comm);
  learner.announce(describe(o, learner.store, job.graph, job.owners, learner.comm));
  Nodes nodes(job, learner.comm.rank());
  if (o.dry_run || o.headroom > 0) {
    NodeBatches batches(o, job.graph, job.owners, learner.comm.rank());
    if (o.dry_run) {
      if (learner.is_first())
        print(describe_plan(o, job.graph, learner.context, model, learner.store, nodes.sampler,
                            batches));
      return 0;
    }
    Ledger ledger;
    ReadyBatch batch;
    const std::vector<int32_t> first = batches.batch(0, 0);
    batch.sampled = nodes.sampler.sample(first, 0);
    batch.labels = labels_of(job.graph, first);
    batch.x = node_features(job.graph,
                            nodes.features.fetch(batch.sampled.inputs, learner.comm, ledger), true);
    return run_headroom(o, learner.store, learner.comm, plan_steps(o, batches), [&](Tape& tape) {
      return loss_of(model, tape, batch, learner.context.device());
    });
  }
  Outcome out;
  if (o.training) out = train(job, learner, model, nodes);
  const OnRanks together = [&](const auto& call) {
    Ledger ledger;
    call(learner.comm, ledger);
  };
  if (!o.training) set_results(job, {}, {}, out);
  if (!o.training && o.evaluate) {
    const GraphEvaluation e = nodes.whole.evaluate(model, together);
    if (!std::isfinite(e.valid.loss) || !std::isfinite(e.test.loss)) out.run.status = "diverged";
    set_results(job, e.valid, e.test, out);
  }
  if (out.run.status == "done" && !o.predict.empty()) {  // on all ranks
    const std::vector<int32_t> wanted = find_nodes(o, job.graph);
    const Tensor logits = nodes.whole.logits_of(wanted, model, together);
    if (learner.is_first()) out.appended["predictions"] = predictions(job, wanted, logits);
  }
  return report(o, kRateKey, learner, out);
}

int run(const Arguments& arguments, const Arguments& environment) {
  watch_signals();
  TrainGcnOptions o;
  FlagTable flags = gcn_flags(o);
  flags.parse({arguments.begin() + 1, arguments.end()}, environment);
  if (answer_questions(o, flags, list_gcn_choices())) return 0;
  o.data = find_data(o.data, is_block_model(o.data) ? o.data : "sbm");
  const GraphCard loaded = read_card(o, flags);
  resolve(o, flags);
  check_options(o);
  if (o.dump_config) return print(config_text(o, flags)), 0;
  print_warnings(o, flags);
  const int learners = check_machine(o);

  const Graph graph = open_data(o);
  const GraphCard card = make_card(o, loaded, graph);
  (void)find_nodes(o, graph);  // fails before training instead of after it
  const std::vector<int32_t> owners = divide(o, graph, learners);
  const Job job{o, flags, arguments, card, graph, owners};
  return start_learners(o, [&](Communicator& comm) { return run_rank(job, comm); });
}
}  // namespace
}  // namespace heddle

int main(int argc, char** argv) {
  return heddle::run_program("train_gcn", argc, argv, heddle::run);
}
