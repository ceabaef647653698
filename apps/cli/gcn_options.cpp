#include "apps/cli/gcn_options.h"

#include <filesystem>
#include <limits>

#include "compress/spec.h"
#include "core/error.h"

namespace heddle {
namespace {

constexpr int64_t kBlockBatch = 64, kBatch = 256, kEpochs = 10, kFanout = 5;
constexpr double kAdamLr = 0.01, kSgdLr = 0.1, kAdamwDecay = 0.01, kMaxSize = 1 << 20;
const std::vector<std::string> kModels = {"sage", "gcn"},
                               kWeights = {"unbiased", "normalised", "plain"};

// Returns the settings of the block model, with the defaults of BlockGraphOptions.
std::vector<SpecKey> block_keys() {
  const BlockGraphOptions d;
  return {{"nodes", to_double(d.nodes), 4, 1 << 24, true},
          {"classes", to_double(d.classes), 2, 1000, true},
          {"degree", d.degree, 0, 1000},
          {"between", d.between, 0, 1},
          {"words", to_double(d.words), 0, 16, true},
          {"own", d.own, 0, 1},
          {"seed", to_double(d.seed), 0, 1e9, true}};
}

}  // namespace

bool is_block_model(const std::string& data) { return data == "sbm" || data.starts_with("sbm:"); }

BlockGraphOptions parse_block_model(const std::string& data) {
  if (data == "sbm") return {};
  auto value = parse_settings(data.substr(4), block_keys(), "--data " + data);
  return {.nodes = to_int64(value["nodes"]),
          .classes = to_int64(value["classes"]),
          .degree = value["degree"],
          .between = value["between"],
          .words = to_int64(value["words"]),
          .own = value["own"],
          .seed = static_cast<uint64_t>(value["seed"])};
}

SamplerOptions sampler_options(const TrainGcnOptions& o) {
  SamplerOptions out{.fanout = o.fanout, .seed = static_cast<uint64_t>(o.seed)};
  out.mixing = o.model == "gcn" ? Mixing::symmetric : Mixing::mean;
  out.weights = o.skew_weights == "unbiased"     ? SkewWeights::unbiased
                : o.skew_weights == "normalised" ? SkewWeights::normalised
                                                 : SkewWeights::plain;
  if (o.skew == "local") {
    out.skew = std::numeric_limits<double>::infinity();
    out.weights = SkewWeights::plain;
    return out;
  }
  // "budget=1.5", "s=4" or "4"
  const bool named = o.skew.find('=') != std::string::npos;
  const bool number = !named && o.skew.find_first_not_of("0123456789.") == std::string::npos;
  check(named || (number && !o.skew.empty()), "--skew: expected budget=X, s=X or local, found ",
        o.skew);
  auto value = parse_settings(named ? o.skew : "s=" + o.skew,
                              {{"s", 1, 1, 1e6}, {"budget", 0, 1, 1e6}}, "--skew " + o.skew);
  check(value["budget"] == 0 || value["s"] == 1, "--skew: either budget or s, found ", o.skew);
  out.skew = value["s"];
  out.variance_budget = value["budget"];
  return out;
}

FlagTable gcn_flags(TrainGcnOptions& o) {
  FlagTable flags("train_gcn",
                  concat("Trains a graph convolutional network that classifies the nodes of a "
                         "graph, and writes a run folder. Learners share the nodes; neighbours' "
                         "features travel, and neighbours of the same learner are preferred. "
                         "Without flags it learns a stochastic block model.",
                         kFlagSources, "\n\n", kExitCodes));
  flags.group("Network and graph");
  flags.add("model", &o.model, "NAME",
            "sage: the mean over neighbours and the node itself (GraphSAGE); gcn: their weighted "
            "sum (Kipf and Welling)",
            one_of(kModels));
  flags.add("layers", &o.layers, "N", "graph convolutions", at_least(1), at_most(16));
  flags.add("hidden", &o.hidden, "N", "values of a node between layers", at_least(1),
            at_most(kMaxSize));
  flags.add("dropout", &o.dropout, "X",
            "share of the values between layers that is dropped in training", below(1));
  flags.add("fanout", &o.fanout, "N,N",
            "neighbours that are drawn for a node of the batch, for each of those, and so on, one "
            "number for each layer; 0: all",
            at_most(kMaxSize), otherwise("5 for each layer"));
  flags.add("partition", &o.partition, "HOW",
            "how nodes are divided among learners; ldg: neighbours together (linear deterministic "
            "greedy); random; or a file with a learner for each node and line, as METIS writes");
  flags.add(
      "skew", &o.skew, "HOW",
      "preference for neighbours of the same learner; budget=X: for each node that draws, as much "
      "as multiplies the second moment of an unbiased draw by X; s=X: X times as likely; 1: "
      "none; local: others only where a node has no such neighbour (with weights plain)");
  flags.add("skew-weights", &o.skew_weights, "HOW",
            "weights of neighbours that were drawn with preference; unbiased: the mean is right on "
            "average; normalised: a little bias, less variance; plain: equal, biased",
            one_of(kWeights));
  add_common_flags(flags, o);
  flags.at("data").help =
      "folder with labels.txt, features.txt and edges.txt (docs/howto/graphs.md), or the block "
      "model sbm, also as sbm:nodes=8000,classes=8,degree=8 with further settings between=0.3, "
      "words=4, own=0.3, seed=0";
  flags.at("batch-size").help = "nodes per step and learner";
  flags.at("lr").default_text = "0.01; 0.1 for sgd";
  flags.at("weight-decay").default_text = "0; 0.01 for adamw";
  flags.at("name").apply(otherwise("the model"));
  flags.add("predict", &o.predict, "NODE...",
            "print the five likeliest classes of each node, by name or number, with the weights of "
            "--init, or with --train after training",
            not_saved);
  flags.add("train", &o.train, "",
            "with --predict: train first; without this flag --predict needs --init", not_saved);
  return flags;
}

void resolve(TrainGcnOptions& o, FlagTable& flags) {
  decide_training(o, flags, o.predict.empty() ? "" : "predict");
  parse_texts(o);
  if (o.fanout.empty()) o.fanout.assign(to_size(o.layers), kFanout);
  check(std::ssize(o.fanout) == o.layers, "--fanout: expected a number for each of ", o.layers,
        " layers, found ", o.fanout.size());
  resolve_batch_size(o, flags, is_block_model(o.data) ? kBlockBatch : kBatch);
  if (!flags.given("steps")) set_default(flags, "epochs", o.epochs, kEpochs);
  set_default(flags, "lr", o.lr, o.optimizer == "sgd" ? kSgdLr : kAdamLr);
  set_default(flags, "weight-decay", o.weight_decay, o.optimizer == "adamw" ? kAdamwDecay : 0.0);
  set_default(flags, "name", o.name, o.model);
  if (o.partition != "ldg" && o.partition != "random")
    o.partition = std::filesystem::absolute(o.partition).lexically_normal().string();
  (void)sampler_options(o);
  const bool several = o.parsed.learners.size > 1;
  flags.check_needs(
      {{"workers", false, "has no effect: features are in memory"},
       {"predict", !o.dry_run && o.headroom == 0, "predicts nothing with --dry-run or --headroom"},
       {"skew-weights", o.skew != "local" || o.skew_weights == "plain",
        "has no effect with --skew local, whose weights are plain"},
       {"partition", several, "needs several learners"},
       {"skew", several, "needs several learners"},
       {"skew-weights", several, "needs several learners"}});
  check(o.precision == "fp32", "--precision ", o.precision,
        ": graph networks compute in fp32 only");
  check(o.graph != "on", "--graph on: sampled steps differ in size, so none can be replayed");
  o.graph = "off";
  check(!is_voting(o),
        "--compress topagg: learners read each other's features, which votes do not hide; "
        "train_resnet and train_dpgan can protect their data");
  resolve_common(o, flags, is_block_model(o.data) ? o.data : "sbm");
}

std::string list_gcn_choices() {
  return list_row("models:", kModels) + list_row("partitions:", {"ldg", "random", "a file"}) +
         list_row("weights:", kWeights) + list_training_choices() +
         list_row("data formats:", {"sbm (drawn),", "a folder with labels.txt, features.txt,",
                                    "edges.txt, and perhaps split.txt and names.txt"});
}

}  // namespace heddle
