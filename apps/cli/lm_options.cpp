#include "apps/cli/lm_options.h"

#include <algorithm>
#include <filesystem>
#include <span>

#include "apps/cli/format.h"
#include "apps/cli/known_data.h"
#include "core/error.h"

namespace heddle {
namespace {

// Defaults that belong together, for --help, resolve() and the README.
struct Recipe {
  const char* name;
  int64_t emsize, nhid, nlayers;
  double dropout, init_range;
  int64_t bptt, batch_size, epochs;
  const char* optimizer;
  double lr, clip;  // of the mean over tokens; clip 0: none
  const char* scheduler;
  double gamma;
  int64_t constant_epochs;  // multistep: multiply by gamma at every epoch after this many
};

// Zaremba et al. and TensorFlow's tutorial sum the loss over the T steps of a window, so here their
// learning rate is multiplied and their clipping norm divided by T.
constexpr Recipe kRecipes[] = {
    {"sources", 64, 384, 1, 0.1, 0, 64, 32, 3, "adam", 0.004, 1, "cosine", 0.1, 0},
    {"char level", 64, 512, 2, 0.1, 0, 64, 32, 10, "adam", 0.004, 1, "cosine", 0.1, 0},
    {"word level", 200, 200, 2, 0.2, 0, 35, 20, 40, "sgd", 20, 0.25, "plateau", 0.25, 0},
    {"zaremba-small", 200, 200, 2, 0, 0.1, 20, 20, 13, "sgd", 1 * 20.0, 5 / 20.0, "multistep", 0.5,
     4},
    {"zaremba-medium", 650, 650, 2, 0.5, 0.05, 35, 20, 39, "sgd", 1 * 35.0, 5 / 35.0, "multistep",
     0.8, 6},
    {"zaremba-large", 1500, 1500, 2, 0.65, 0.04, 35, 20, 55, "sgd", 1 * 35.0, 10 / 35.0,
     "multistep", 1 / 1.15, 14},
    {"wlm", 200, 200, 2, 0.2, 0, 35, 20, 40, "sgd", 20, 0.25, "plateau", 0.25, 0}};
constexpr size_t kPresets = 3;  // the first recipe that --preset names

// Defaults for an optimizer or schedule other than the recipe's.
constexpr double kSgdLr = 20, kAdamLr = 0.002, kAdamwDecay = 0.01;
constexpr double kPlateauGamma = 0.25, kGamma = 0.1;
constexpr int64_t kSampleTokens = 400;

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Recipe& r : std::span(kRecipes).subspan(kPresets)) names.emplace_back(r.name);
  return names;
}

const Recipe& recipe(const TrainLmOptions& o, TextKind kind) {
  const bool words = o.level == "word";
  const std::string level = kind == TextKind::sources && !words ? "sources" : o.level + " level";
  return *std::ranges::find(kRecipes, o.preset.empty() ? level : o.preset, &Recipe::name);
}

std::string describe_recipes() {
  const TextTable table(
      " 1|recipe -14|em 5|nhid 4|dropout 7|init 5|bptt 4|batch 5|epochs 6|optim 6|lr 5|clip 5| 0|"
      "schedule 0");
  std::string out = table.heading();
  for (const Recipe& r : kRecipes) {
    std::string schedule = r.scheduler;
    if (schedule == "plateau") schedule += concat(" x", r.gamma);
    if (r.constant_epochs > 0)
      schedule = concat("x", significant(r.gamma, 2), " from epoch ", r.constant_epochs + 1);
    out += table.row({"", r.name, r.emsize, r.nhid, significant(r.dropout),
                      significant(r.init_range), r.bptt, r.batch_size, r.epochs, r.optimizer,
                      significant(r.lr), significant(r.clip, 3), "", schedule});
  }
  return out;
}

void add_network_flags(FlagTable& flags, TrainLmOptions& o) {
  const auto recipe = otherwise("by recipe");
  constexpr double kMaxSize = 1 << 20;
  flags.group("Network");
  flags.add("preset", &o.preset, "NAME", "recipe whose defaults to use", one_of(preset_names()),
            otherwise("by level and data"));
  flags.add("level", &o.level, "NAME",
            "what a token is; auto: word for a folder, char for a file and for sources",
            one_of({"auto", "word", "char"}));
  flags.add("emsize", &o.emsize, "N", "size of the embedding of a token", at_least(1),
            at_most(kMaxSize), recipe);
  flags.add("nhid", &o.nhid, "N", "hidden units of each LSTM layer", at_least(1), at_most(kMaxSize),
            recipe);
  flags.add("nlayers", &o.nlayers, "N", "LSTM layers", at_least(1), at_most(1024), recipe);
  flags.add("dropout", &o.dropout, "X",
            "share of the values between layers that is dropped in training", below(1), recipe);
  flags.add("tied", &o.tied, "", "use the embedding as the decoder's weights too");
  flags.add("init-range", &o.init_range, "X",
            "initialize all parameters uniformly in -X to X; 0: as PyTorch's example does",
            at_most(1e3), recipe);
  flags.add("bptt", &o.bptt, "N", "tokens through which gradients are propagated", at_least(1),
            at_most(kMaxSize), recipe);
}

// Returns the milestones after k constant epochs: k, k + 1, ... up to the last epoch.
std::vector<int64_t> every_epoch_after(int64_t k, int64_t epochs) {
  std::vector<int64_t> out;
  for (int64_t epoch = k; epoch < epochs; ++epoch) out.push_back(epoch);
  return out;
}

void resolve_schedule(TrainLmOptions& o, const FlagTable& flags, const Recipe& r) {
  set_default(flags, "lr-scheduler", o.lr_scheduler, r.scheduler);
  const bool own = o.lr_scheduler == r.scheduler;
  const double gamma = o.lr_scheduler == "plateau" ? kPlateauGamma : kGamma;
  set_default(flags, "lr-gamma", o.lr_gamma, own ? r.gamma : gamma);
  if (own && r.constant_epochs > 0) {
    set_default(flags, "lr-milestones", o.lr_milestones,
                every_epoch_after(r.constant_epochs, std::max(o.epochs, r.epochs)));
  }
}

}  // namespace

TextKind text_kind(const std::string& data) {
  namespace fs = std::filesystem;
  if (data == "sources") return TextKind::sources;
  std::error_code error;
  check(fs::exists(data, error), "--data ", data, ": no such file or folder", how_to_get(data));
  return fs::is_directory(data, error) ? TextKind::folder : TextKind::file;
}

FlagTable lm_flags(TrainLmOptions& o) {
  FlagTable flags(
      "train_lm",
      concat(
          "Trains an LSTM language model on text and writes a run folder. Without flags it learns "
          "this program's own sources and generates some more.",
          kFlagSources,
          " The loss is the mean over tokens, in nats.\n\nRecipes, by level and data or with "
          "--preset; two layers, but one for sources:\n",
          describe_recipes(),
          "\nThe plateau schedule keeps the weights with the best validation loss, the others "
          "the last ones.\n",
          kExitCodes));
  add_network_flags(flags, o);
  add_common_flags(flags, o);
  const auto recipe = otherwise("by recipe");
  flags.at("data").help =
      "folder with train.txt, valid.txt, test.txt (or ptb.*.txt, or wiki.*.tokens), one text file, "
      "or sources: the source files of this program";
  flags.at("batch-size").help = "columns of text that a learner reads in parallel";
  for (const char* name : {"optimizer", "lr-scheduler", "clip-grad-norm"})
    flags.at(name).apply(recipe);
  flags.at("lr").default_text =
      "by recipe; with an optimizer other than the recipe's: 20 for sgd, 0.002 for adam, adamw";
  flags.at("weight-decay").default_text = "0; 0.01 for adamw";
  flags.at("lr-milestones").default_text = "by recipe, or 1/2 and 3/4 of the run";
  flags.at("lr-gamma")
      .apply(otherwise(
          "by recipe; with a schedule other than the recipe's: 0.25 for plateau, else 0.1"));
  flags.at("name").apply(otherwise("lm, or the preset"));
  flags.add(
      "generate", &o.generate, "N",
      "generate a text of N tokens with the weights of --init, or with --train after training",
      at_most(1e9), otherwise("400 after training on sources, else 0"), not_saved);
  flags.add("train", &o.train, "",
            "with --generate: train first; without this flag --generate needs --init", not_saved);
  flags.add("prompt", &o.prompt, "TEXT", "beginning of the generated text",
            otherwise("a line end, not shown"), not_saved);
  flags.add("temperature", &o.temperature, "X",
            "randomness of the generated text; 0: the likeliest token, 1: the model's distribution",
            at_most(1e6));
  return flags;
}

void resolve(TrainLmOptions& o, FlagTable& flags, TextKind kind) {
  decide_training(o, flags, flags.given("generate") && o.generate > 0 ? "generate" : "");
  parse_texts(o);
  if (o.level == "auto") o.level = kind == TextKind::folder ? "word" : "char";
  const Recipe& r = recipe(o, kind);
  set_default(flags, "emsize", o.emsize, r.emsize);
  set_default(flags, "nhid", o.nhid, r.nhid);
  set_default(flags, "nlayers", o.nlayers, r.nlayers);
  set_default(flags, "dropout", o.dropout, r.dropout);
  set_default(flags, "init-range", o.init_range, r.init_range);
  set_default(flags, "bptt", o.bptt, r.bptt);
  resolve_batch_size(o, flags, r.batch_size);
  if (!flags.given("steps")) set_default(flags, "epochs", o.epochs, r.epochs);
  set_default(flags, "optimizer", o.optimizer, r.optimizer);
  const double other_lr = o.optimizer == "sgd" ? kSgdLr : kAdamLr;
  set_default(flags, "lr", o.lr, o.optimizer == r.optimizer ? r.lr : other_lr);
  set_default(flags, "weight-decay", o.weight_decay, o.optimizer == "adamw" ? kAdamwDecay : 0.0);
  set_default(flags, "clip-grad-norm", o.clip_grad_norm, r.clip);
  resolve_schedule(o, flags, r);
  set_default(flags, "name", o.name, o.preset.empty() ? "lm" : o.preset);
  if (kind == TextKind::sources && !o.evaluate)
    set_default(flags, "generate", o.generate, kSampleTokens);
  const bool writes = o.generate > 0 && !o.dry_run && o.headroom == 0;
  flags.check_needs(
      {{"prompt", o.generate > 0, "needs --generate N"},
       {"temperature", o.generate > 0, "needs --generate N"},
       {"generate", writes || o.generate == 0, "writes nothing with --dry-run or --headroom"}});
  check(!o.tied || o.emsize == o.nhid, "--tied needs --emsize equal to --nhid, found ", o.emsize,
        " and ", o.nhid);
  check(
      !is_voting(o),
      "--compress topagg: the vocabulary reveals the words of the text, and votes do not hide it; "
      "train_resnet and train_dpgan can protect their data");
  resolve_common(o, flags, "sources");
}

std::string recipe_name(const TrainLmOptions& o) {
  return o.preset.empty() ? o.level + " level" : o.preset;
}

std::string list_lm_choices() {
  return list_row("presets:", preset_names()) + list_row("levels:", {"word", "char"}) +
         list_training_choices() +
         list_row("data formats:",
                  {"sources (embedded),", "a text file,",
                   "a folder with train.txt, valid.txt, test.txt,", "ptb.*.txt or wiki.*.tokens"}) +
         list_known_data(false);
}

}  // namespace heddle
