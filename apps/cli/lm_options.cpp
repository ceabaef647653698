#include "apps/cli/lm_options.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>

#include "core/error.h"

namespace heddle {

namespace {

// Defaults that go together. One place for --help, resolve() and the README.
struct Recipe {
  const char* name;
  int64_t emsize, nhid, nlayers;
  double dropout, init_range;
  int64_t bptt, batch_size, epochs;
  const char* optimizer;
  double lr, clip;  // of the mean over tokens; clip 0: none
  const char* scheduler;
  double gamma;
  int64_t constant_epochs;  // multistep: times gamma at every epoch after so many
};

// A configuration as Zaremba et al. and the code of TensorFlow's tutorial write it, for the sum
// over the T steps of a window.
struct SumOverSteps {
  int64_t nhid;
  double init_range, lr, clip;
  int64_t bptt, epochs;
  double dropout, gamma;
  int64_t constant_epochs;
};

constexpr Recipe translate(const char* name, const SumOverSteps& z) {
  const auto T = static_cast<double>(z.bptt);
  return {.name = name,
          .emsize = z.nhid,
          .nhid = z.nhid,
          .nlayers = 2,
          .dropout = z.dropout,
          .init_range = z.init_range,
          .bptt = z.bptt,
          .batch_size = 20,
          .epochs = z.epochs,
          .optimizer = "sgd",
          .lr = z.lr * T,
          .clip = z.clip / T,
          .scheduler = "multistep",
          .gamma = z.gamma,
          .constant_epochs = z.constant_epochs};
}

constexpr Recipe make_wlm(const char* name) {
  return {.name = name,
          .emsize = 200,
          .nhid = 200,
          .nlayers = 2,
          .dropout = 0.2,
          .init_range = 0,
          .bptt = 35,
          .batch_size = 20,
          .epochs = 40,
          .optimizer = "sgd",
          .lr = 20,
          .clip = 0.25,
          .scheduler = "plateau",
          .gamma = 0.25,
          .constant_epochs = 0};
}

// Characters: few of them, so a small embedding.
constexpr Recipe make_char(const char* name, int64_t nhid, int64_t nlayers, int64_t epochs) {
  return {.name = name,
          .emsize = 64,
          .nhid = nhid,
          .nlayers = nlayers,
          .dropout = 0.1,
          .init_range = 0,
          .bptt = 64,
          .batch_size = 32,
          .epochs = epochs,
          .optimizer = "adam",
          .lr = 0.004,
          .clip = 1,
          .scheduler = "cosine",
          .gamma = 0.1,
          .constant_epochs = 0};
}

constexpr Recipe kSourcesRecipe = make_char("sources", 384, 1, 3);
constexpr Recipe kCharRecipe = make_char("char level", 512, 2, 10);
constexpr Recipe kWordRecipe = make_wlm("word level");
constexpr std::array<Recipe, 4> kPresets = {translate("zaremba-small", {.nhid = 200,
                                                                        .init_range = 0.1,
                                                                        .lr = 1,
                                                                        .clip = 5,
                                                                        .bptt = 20,
                                                                        .epochs = 13,
                                                                        .dropout = 0,
                                                                        .gamma = 0.5,
                                                                        .constant_epochs = 4}),
                                            translate("zaremba-medium", {.nhid = 650,
                                                                         .init_range = 0.05,
                                                                         .lr = 1,
                                                                         .clip = 5,
                                                                         .bptt = 35,
                                                                         .epochs = 39,
                                                                         .dropout = 0.5,
                                                                         .gamma = 0.8,
                                                                         .constant_epochs = 6}),
                                            translate("zaremba-large", {.nhid = 1500,
                                                                        .init_range = 0.04,
                                                                        .lr = 1,
                                                                        .clip = 10,
                                                                        .bptt = 35,
                                                                        .epochs = 55,
                                                                        .dropout = 0.65,
                                                                        .gamma = 1 / 1.15,
                                                                        .constant_epochs = 14}),
                                            make_wlm("wlm")};

// Where the optimizer is not the recipe's.
constexpr double kSgdLr = 20, kAdamLr = 0.002, kAdamwDecay = 0.01;
constexpr double kPlateauGamma = 0.25, kGamma = 0.1;
constexpr int64_t kSampleTokens = 400;

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  names.reserve(kPresets.size());
  for (const Recipe& preset : kPresets) names.emplace_back(preset.name);
  return names;
}

const Recipe& recipe(const TrainLmOptions& o, TextKind kind) {
  for (const Recipe& preset : kPresets) {
    if (o.preset == preset.name) return preset;
  }
  if (o.level == "word") return kWordRecipe;
  return kind == TextKind::sources ? kSourcesRecipe : kCharRecipe;
}

constexpr FlagTexts kTexts = {
    .data =
        "folder with train.txt, valid.txt, test.txt (or ptb.*.txt, or wiki.*.tokens), one text "
        "file, or sources: those of this program",
    .workers =
        "taken for the sake of scripts; text is cut into batches in no time, without threads",
    .epochs = "passes over the training text",
    .batch_size = "columns of text that are read side by side",
    .evaluate = "measure the loss on validation and test text and do not train",
    .list = "print presets, levels, optimizers, schedules and data formats",
    .by_rule = "by recipe",
    .epochs_default = "by recipe, or what --steps needs",
    .lr_default = "by recipe; for another optimizer than its own 20 for sgd, 0.002 for adam, adamw",
    .weight_decay_default = "0; 0.01 for adamw",
    .name_default = "lm, or the preset",
    .milestones_default = "by recipe, or 1/2 and 3/4 of the run",
    .optimizer_default = "by recipe",
    .scheduler_default = "by recipe",
    .gamma_default = "by recipe; for another schedule than its own 0.25 for plateau, else 0.1",
    .clip_default = "by recipe",
};

std::string describe(const Recipe& r) {
  std::string schedule = r.scheduler;
  if (schedule == "plateau") schedule += concat(" x", r.gamma);
  if (r.constant_epochs > 0) {
    char text[40];
    std::snprintf(text, sizeof text, "x%.2g from epoch %d", r.gamma,
                  static_cast<int>(r.constant_epochs) + 1);
    schedule = text;
  }
  char line[160];
  std::snprintf(line, sizeof line, "  %-14s %5d %4d %7g %5g %4d %5d %6d %6s %5g %5.3g  %s\n",
                r.name, static_cast<int>(r.emsize), static_cast<int>(r.nhid), r.dropout,
                r.init_range, static_cast<int>(r.bptt), static_cast<int>(r.batch_size),
                static_cast<int>(r.epochs), r.optimizer, r.lr, r.clip, schedule.c_str());
  return line;
}

std::string describe_recipes() {
  std::string out =
      "  recipe           em nhid dropout  init bptt batch epochs  optim    lr  clip  schedule\n";
  for (const Recipe& r : {kSourcesRecipe, kCharRecipe, kWordRecipe}) out += describe(r);
  for (const Recipe& r : kPresets) out += describe(r);
  return out;
}

void add_network_flags(FlagTable& flags, TrainLmOptions& o) {
  flags.group("Network");
  flags.add("preset", &o.preset,
            {.value = "NAME",
             .help = "take another recipe's defaults",
             .choices = preset_names(),
             .default_text = "by level and data"});
  flags.add("level", &o.level,
            {.value = "NAME",
             .help = "what a token is; auto takes word for a folder, char for a file and sources",
             .choices = {"auto", "word", "char"}});
  const auto size = [&](const char* name, int64_t* target, const char* help, double max) {
    flags.add(name, target,
              {.value = "N", .help = help, .min = 1, .max = max, .default_text = "by recipe"});
  };
  size("emsize", &o.emsize, "numbers that stand for a token", 1 << 20);
  size("nhid", &o.nhid, "hidden units of an LSTM layer", 1 << 20);
  size("nlayers", &o.nlayers, "LSTM layers", 1024);
  flags.add("dropout", &o.dropout,
            {.value = "X",
             .help = "share of the values between layers that is left out while training",
             .max = 1,
             .max_open = true,
             .default_text = "by recipe"});
  flags.add("tied", &o.tied, {.help = "use the embedding as the decoder's weights too"});
  flags.add("init-range", &o.init_range,
            {.value = "X",
             .help = "first values of all parameters, uniform in -X to X; 0: as PyTorch's example",
             .max = 1e3,
             .default_text = "by recipe"});
  size("bptt", &o.bptt, "tokens of a column that backward goes through", 1 << 20);
}

// k, k + 1, ... up to the last epoch: times gamma at every epoch after k constant ones.
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
  check(fs::exists(data, error), "--data ", data, ": no such file or folder");
  return fs::is_directory(data, error) ? TextKind::folder : TextKind::file;
}

FlagTable lm_flags(TrainLmOptions& o) {
  FlagTable flags(
      "train_lm",
      "Trains an LSTM language model on text and writes a run folder. Without flags it learns "
      "this\n"
      "program's own sources and writes some of its own. Every flag can also be set in the\n"
      "environment (HEDDLE_BATCH_SIZE=64) or in a file (--config); the flag wins over the\n"
      "environment, the environment over the file. The loss is the mean over tokens, in nats.\n\n"
      "Recipes, by level and data or with --preset; all have two layers:\n" +
          describe_recipes() +
          "\nWith the plateau schedule the weights of the best validation are kept, else the "
          "last.\n"
          "Exit codes: 0 done, 1 runtime error, 2 usage or bad input, 3 diverged,\n75 stopped by a "
          "signal and saved.");
  add_network_flags(flags, o);
  add_common_flags(flags, o, kTexts);
  flags.add("generate", &o.generate,
            {.value = "N",
             .help = "write a text of N tokens with the weights of --init, or with --train after "
                     "training",
             .max = 1e9,
             .default_text = "400 after training on sources, else 0",
             .replay = false});
  flags.add("train", &o.train,
            {.help = "train, and then --generate, which else needs --init and only writes",
             .replay = false});
  flags.add("prompt", &o.prompt,
            {.value = "TEXT",
             .help = "what the generated text begins with",
             .default_text = "a line end, not shown",
             .replay = false});
  flags.add("temperature", &o.temperature,
            {.value = "X",
             .help = "of generating: 0 takes the likeliest token, 1 draws as the model says",
             .max = 1e6});
  return flags;
}

void resolve(TrainLmOptions& o, FlagTable& flags, TextKind kind) {
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
  if (kind == TextKind::sources && !o.evaluate) {
    set_default(flags, "generate", o.generate, kSampleTokens);
  }
  o.training = decide_training(o, flags.given("generate") && o.generate > 0 ? "generate" : "");
  const bool writes = o.generate > 0 && !o.dry_run && o.headroom == 0;
  flags.check_needs(
      {{"prompt", o.generate > 0, "needs --generate N"},
       {"temperature", o.generate > 0, "needs --generate N"},
       {"generate", writes || o.generate == 0, "writes nothing with --dry-run or --headroom"}});
  check(!o.tied || o.emsize == o.nhid, "--tied needs --emsize equal to --nhid, found ", o.emsize,
        " and ", o.nhid);
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
                   "a folder with train.txt, valid.txt, test.txt,", "ptb.*.txt or wiki.*.tokens"});
}

}  // namespace heddle
