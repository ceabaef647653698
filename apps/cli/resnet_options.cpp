#include "apps/cli/resnet_options.h"

#include <filesystem>
#include <set>

#include "apps/cli/format.h"
#include "apps/cli/known_data.h"
#include "core/error.h"
#include "data/cifar.h"
#include "data/mnist.h"
#include "layers/resnet.h"

namespace heddle {
namespace {

// Defaults by data set, for --help, resolve() and the README.
struct Recipe {
  const char *name, *arch;
  int64_t image_size, batch_size, epochs;
  double lr, weight_decay;
  const char* augment;
};

constexpr Recipe kRecipes[] = {  // in the order of DataKind
    {"shapes", "resnet20", 32, 64, 3, 0.1, 5e-4, "none"},
    {"CIFAR", "resnet20", 32, 64, 24, 0.1, 5e-4, "standard"},
    {"MNIST", "resnet20", 28, 64, 3, 0.1, 5e-4, "none"},
    {"folders", "resnet18", 224, 32, 30, 0.05, 1e-4, "standard"}};
const std::vector<std::string> kAugmentations = {"none", "standard", "cutout"};
constexpr double kAdamLr = 0.001, kAdamDecay = 0, kAdamwDecay = 0.01;

std::vector<std::string> image_archs() {
  std::vector<std::string> names = resnet_archs();
  names.emplace_back(kSmallCnn);
  return names;
}

// Returns whether the network is made for 32 pixels (He et al., section 4.2).
bool is_cifar_arch(const std::string& arch) {
  const std::set<std::string> names = {"resnet20", "resnet32", "resnet44", "resnet56", "resnet110"};
  return names.contains(arch);
}

std::string describe_recipes() {
  const TextTable table(
      " 1|data -8|arch -9|image-size 10|batch-size 10|epochs 6|lr 6|weight-decay 12| 0|augment 0");
  std::string out = table.heading();
  for (const Recipe& r : kRecipes)
    out += table.row({"", r.name, r.arch, r.image_size, r.batch_size, r.epochs, significant(r.lr),
                      significant(r.weight_decay), "", r.augment});
  return out;
}

}  // namespace

DataKind data_kind(const std::string& data) {
  namespace fs = std::filesystem;
  if (data == "shapes") return DataKind::shapes;
  std::error_code error;
  check(fs::exists(data, error), "--data ", data, ": no such folder", how_to_get(data));
  check(fs::is_directory(data, error), "--data ", data,
        ": expected a folder, found a file; ./run "
        "unpack_data unpacks archives of CIFAR");
  if (holds_cifar10(data) || holds_cifar100(data)) return DataKind::cifar;
  if (holds_mnist(data)) return DataKind::mnist;
  return DataKind::folder;
}

const char* data_kind_name(DataKind kind) {
  return kind == DataKind::folder ? "image folders" : kRecipes[to_size(kind)].name;
}

FlagTable resnet_flags(TrainResnetOptions& o) {
  FlagTable flags(
      "train_resnet",
      concat("Trains a residual network on images and writes a run folder. Without flags "
             "it learns ten rendered shapes.",
             kFlagSources, "\n\nRecipes, the defaults by data set:\n", describe_recipes(), '\n',
             kExitCodes));
  flags.group("Network");
  flags.add("arch", &o.arch, "NAME", "architecture", one_of(image_archs()), otherwise("by recipe"));
  flags.add("stem", &o.stem, "NAME",
            "first layers; auto: cifar (3x3, no pooling) up to 64 pixels and for resnet20 to "
            "resnet110, else imagenet",
            one_of({"auto", "cifar", "imagenet"}));
  flags.add("image-size", &o.image_size, "N", "height and width of the network's input in pixels",
            at_least(1), at_most(4096), otherwise("by recipe"));
  flags.add("label-smoothing", &o.label_smoothing, "X",
            "share of the target that is spread over all classes", below(1));
  flags.add("augment", &o.augment, "NAME", "augmentation of training images",
            one_of(kAugmentations), otherwise("by recipe"));
  flags.add("head", &o.head, "NAME", "name of the last layer in the file of --init",
            otherwise("fc"));
  flags.add("new-head", &o.new_head, "",
            "train a new last layer for the classes of --data, whatever the file of --init has");
  add_common_flags(flags, o);
  flags.at("compress").help += "; topagg:epsilon=3: see differential privacy below";
  flags.at("compress").examples.push_back("topagg");
  flags.group("Learners");
  flags.add("shard", &o.shard, "HOW",
            "learners share the images at random, anew in each epoch; fixed: each has a random "
            "part of its own, the same in every run; by-class: each has a part of the images "
            "sorted by label",
            one_of({"random", "fixed", "by-class"}),
            otherwise("random; fixed where the data of a learner are protected"));
  add_privacy_flags(flags, o.dp);
  flags.at("data").help =
      "folder of CIFAR-10/100 binary files, of MNIST, or with train/<class>/*.jpg|png, or shapes: "
      "ten classes drawn on the fly";
  flags.at("batch-size").help = "images per step and learner, or of a group (--dp-unit)";
  flags.at("lr").default_text = "by recipe; 0.001 for adam, adamw";
  flags.at("weight-decay").default_text = "by recipe; 0 for adam, 0.01 for adamw";
  flags.at("name").apply(otherwise("the architecture"));
  flags.group(kQuestions);
  flags.add("predict", &o.predict, "IMAGE...",
            "print the five best classes of each image with the weights of --init, or with --train "
            "after training",
            not_saved);
  flags.add("train", &o.train, "",
            "with --predict: train first; without this flag --predict needs --init", not_saved);
  return flags;
}

void resolve(TrainResnetOptions& o, FlagTable& flags, DataKind kind) {
  decide_training(o, flags, o.predict.empty() ? "" : "predict");
  parse_texts(o);
  const Recipe& r = kRecipes[to_size(kind)];
  set_default(flags, "arch", o.arch, r.arch);
  set_default(flags, "image-size", o.image_size, r.image_size);
  resolve_batch_size(o, flags, r.batch_size);
  set_default(flags, "augment", o.augment, r.augment);
  set_default(flags, "name", o.name, o.arch);
  if (o.stem == "auto") o.stem = is_cifar_arch(o.arch) || o.image_size <= 64 ? "cifar" : "imagenet";
  if (!flags.given("steps")) set_default(flags, "epochs", o.epochs, r.epochs);
  const bool sgd = o.optimizer == "sgd";
  set_default(flags, "lr", o.lr, sgd ? r.lr : kAdamLr);
  const double adam_decay = o.optimizer == "adam" ? kAdamDecay : kAdamwDecay;
  set_default(flags, "weight-decay", o.weight_decay, sgd ? r.weight_decay : adam_decay);

  flags.check_needs(
      {{"predict", !o.dry_run && o.headroom == 0, "predicts nothing with --dry-run or --headroom"},
       {"new-head", !o.init.empty() && o.training, "needs --init, and training"},
       {"shard", o.parsed.learners.size > 1, "needs several learners"}});
  o.new_head = o.new_head && o.training;  // a run's config.toml may be used for its evaluation
  const bool voting = is_voting(o);
  flags.check_needs(privacy_needs(o.dp, voting));
  if (!voting) o.dp.unit = "learner";  // a file may set it for other runs
  if (voting && o.dp.unit == "learner") set_default(flags, "shard", o.shard, "fixed");
  check(!voting || o.shard == (o.dp.unit == "learner" ? "fixed" : "random"),
        "--compress topagg: expected --shard fixed to protect a learner's images, whatever the "
        "others have, and no --shard for groups; found ",
        o.shard);
  resolve_common(o, flags, "shapes");
}

std::string list_choices() {
  return list_row("architectures:", image_archs()) + list_training_choices() +
         list_row("augmentations:", kAugmentations) +
         list_row("data formats:", {"shapes (embedded),", "CIFAR-10 and CIFAR-100 binary, MNIST,",
                                    "train/<class>/*.jpg|png with val/ next to train/"}) +
         list_known_data(true);
}

}  // namespace heddle
