#include "apps/options.h"

#include <cstdio>
#include <filesystem>
#include <set>

#include "core/error.h"
#include "core/parallel.h"
#include "layers/resnet.h"

namespace heddle {

namespace {

// The defaults that depend on the data set. One place for --help, resolve() and the README.
struct Recipe {
  const char* arch;
  int64_t image_size, batch_size, epochs;
  double lr, weight_decay;
  const char* augment;
};

constexpr Recipe kShapesRecipe = {"resnet20", 32, 64, 3, 0.1, 5e-4, "none"};
constexpr Recipe kCifarRecipe = {"resnet20", 32, 64, 24, 0.2, 5e-4, "standard"};
constexpr Recipe kFolderRecipe = {"resnet18", 224, 32, 30, 0.05, 1e-4, "standard"};
constexpr double kAdamLr = 0.001, kAdamDecay = 0, kAdamwDecay = 0.01;

const Recipe& recipe(DataKind kind) {
  if (kind == DataKind::shapes) return kShapesRecipe;
  return kind == DataKind::cifar ? kCifarRecipe : kFolderRecipe;
}

const std::vector<std::string> kOptimizers = {"sgd", "adam", "adamw"};
const std::vector<std::string> kSchedules = {"step", "multistep", "cosine", "onecycle", "plateau"};

void add_run_flags(FlagTable& flags, CommonOptions& o) {
  flags.group("Data and machine");
  flags.add("data", &o.data,
            {.value = "PATH",
             .help = "folder of CIFAR-10/100 binary files, folder with "
                     "train/<class>/*.jpg|png, or shapes: ten classes drawn on the fly"});
  flags.add("device", &o.device, {.value = "NAME", .help = "auto, cpu, cuda or cuda:N"});
  flags.add("precision", &o.precision,
            {.value = "P",
             .help = "of activations and products; weights stay "
                     "fp32",
             .choices = {"fp32", "bf16"}});
  flags.add(
      "threads", &o.threads,
      {.value = "N", .help = "that compute", .min = 1, .max = 1024, .default_text = "all cores"});
  flags.add("workers", &o.workers,
            {.value = "N",
             .help = "threads that prepare batches; 0: between the "
                     "steps; the batches are the same for every number",
             .max = 256});
  flags.add("seed", &o.seed, {.value = "N", .help = "of everything random"});
  flags.add("deterministic", &o.deterministic,
            {.help = "same bits in every run with equal --threads; "
                     "on the CPU that holds anyway"});
}

void add_training_flags(FlagTable& flags, CommonOptions& o) {
  flags.group("Training");
  flags.add("epochs", &o.epochs,
            {.value = "N",
             .help = "passes over the training images",
             .min = 1,
             .max = 1e6,
             .default_text = "by data set, or what --steps needs"});
  flags.add("steps", &o.steps,
            {.value = "N",
             .help = "stop after N updates",
             .min = 1,
             .max = 1e12,
             .default_text = "no limit"});
  flags.add("batch-size", &o.batch_size,
            {.value = "N",
             .help = "images per step",
             .min = 1,
             .max = 1 << 20,
             .default_text = "by data set"});
  flags.add("accumulate", &o.accumulate,
            {.value = "N",
             .help = "batches whose mean gradient makes one "
                     "update",
             .min = 1,
             .max = 1 << 20});
  flags.add("optimizer", &o.optimizer,
            {.value = "NAME", .help = "update rule", .choices = kOptimizers});
  flags.add("lr", &o.lr,
            {.value = "X",
             .help = "learning rate; the peak of one-cycle",
             .max = 1e9,
             .default_text = "by data set; 0.001 for adam, adamw"});
  flags.add("momentum", &o.momentum, {.value = "X", .help = "of sgd", .max = 1, .max_open = true});
  flags.add("nesterov", &o.nesterov,
            {.help = "Nesterov's momentum for sgd; --no-nesterov: heavy ball"});
  flags.add("weight-decay", &o.weight_decay,
            {.value = "X",
             .help = "L2 penalty; decoupled for adamw",
             .default_text = "by data set; 0 for adam, 0.01 for adamw"});
  flags.add("decay-norm-bias", &o.decay_norm_bias,
            {.help = "weight decay on batch norm and biases too"});
  flags.add("clip-grad-norm", &o.clip_grad_norm,
            {.value = "X",
             .help = "scale the gradient down to this "
                     "norm",
             .min_open = true});
  flags.add("lr-scheduler", &o.lr_scheduler,
            {.value = "NAME", .help = "learning rate over time", .choices = kSchedules});
  flags.add("lr-warmup-epochs", &o.lr_warmup_epochs,
            {.value = "X",
             .help = "linear warm-up before the "
                     "schedule",
             .max = 1e6});
  flags.add("lr-milestones", &o.lr_milestones,
            {.value = "N...",
             .help = "epochs at which multistep "
                     "multiplies by --lr-gamma",
             .min = 1,
             .max = 1e6,
             .default_text = "1/2 and 3/4 of the run"});
  flags.add("lr-step-size", &o.lr_step_size,
            {.value = "N",
             .help = "epochs between the drops of step",
             .min = 1,
             .max = 1e6,
             .default_text = "1/3 of the run"});
  flags.add(
      "lr-gamma", &o.lr_gamma,
      {.value = "X", .help = "factor of step, multistep and plateau", .max = 1, .min_open = true});
  flags.add("on-nonfinite", &o.on_nonfinite,
            {.value = "WHAT",
             .help = "with a NaN or Inf in a gradient, "
                     "leave out the update of its tensor (bucket) or of all (step)",
             .choices = {"bucket", "step"}});
  flags.add("max-skipped", &o.max_skipped,
            {.value = "N",
             .help = "such steps in a row before the run "
                     "counts as diverged",
             .max = 1e9});
}

void add_output_flags(FlagTable& flags, CommonOptions& o) {
  flags.group("Output");
  flags.add("output-dir", &o.output_dir,
            {.value = "DIR",
             .help = "run folder; must be new or empty",
             .default_text = "runs/<name>-<time>",
             .replay = false});
  flags.add("name", &o.name,
            {.value = "TEXT", .help = "of the run", .default_text = "the architecture"});
  flags.add("print-freq", &o.print_freq,
            {.value = "N",
             .help = "steps between two lines when stderr is "
                     "not a terminal",
             .min = 1,
             .max = 1e12});
  flags.add("json", &o.json, {.help = "one JSON object as the last line of stdout"});
  flags.add("quiet", &o.quiet, {.help = "nothing on stderr but errors"});
  flags.add("trace", &o.trace,
            {.value = "FILE", .help = "write a Chrome/Perfetto trace", .replay = false});
  flags.add("trace-steps", &o.trace_steps,
            {.value = "A:B",
             .help = "steps that are traced, from 1",
             .default_text = "2:6",
             .replay = false});
}

void add_action_flags(FlagTable& flags, CommonOptions& o) {
  flags.group("Weights, configuration, questions");
  flags.add("init", &o.init, {.value = "FILE", .help = "start from these weights (safetensors)"});
  flags.add("evaluate", &o.evaluate, {.help = "validate once and do not train", .replay = false});
  flags.add("dry-run", &o.dry_run,
            {.help = "print the plan: parameters, memory, steps, bytes", .replay = false});
  flags.add("config", &o.config,
            {.value = "FILE",
             .help = "read flags from TOML, one per line, without "
                     "the dashes",
             .replay = false});
  flags.add("dump-config", &o.dump_config,
            {.help = "print the resolved configuration as TOML", .replay = false});
  flags.add(
      "list", &o.list,
      {.help = "print architectures, optimizers, schedules and data formats", .replay = false});
  flags.add("version", &o.version, {.help = "print the version", .replay = false});
  flags.add("help", &o.help, {.help = "print this text", .replay = false});
}

// Made for 32 pixels (He et al., section 4.2), whatever the image size.
bool is_cifar_arch(const std::string& arch) {
  const std::set<std::string> names = {"resnet20", "resnet32", "resnet44", "resnet56", "resnet110"};
  return names.contains(arch);
}

template <class T, class U>
void set_default(const FlagTable& flags, const char* name, T& target, const U& value) {
  if (!flags.given(name)) target = value;
}

std::string describe(const Recipe& r, const char* name) {
  char line[160];
  std::snprintf(line, sizeof line, "  %-8s %-9s %10d %10d %6d %6g %12g  %s\n", name, r.arch,
                static_cast<int>(r.image_size), static_cast<int>(r.batch_size),
                static_cast<int>(r.epochs), r.lr, r.weight_decay, r.augment);
  return line;
}

}  // namespace

DataKind data_kind(const std::string& data) {
  namespace fs = std::filesystem;
  if (data == "shapes") return DataKind::shapes;
  std::error_code error;
  check(fs::exists(data, error), "--data ", data, ": no such folder");
  check(fs::is_directory(data, error), "--data ", data, ": expected a folder, found a file");
  for (const char* name : {"data_batch_1.bin", "test_batch.bin", "train.bin", "test.bin"}) {
    if (fs::exists(fs::path(data) / name, error)) return DataKind::cifar;
  }
  return DataKind::folder;
}

const char* data_kind_name(DataKind kind) {
  if (kind == DataKind::shapes) return "shapes";
  return kind == DataKind::cifar ? "CIFAR" : "image folders";
}

FlagTable resnet_flags(TrainResnetOptions& o) {
  FlagTable flags(
      "train_resnet",
      "Trains a residual network on images and writes a run folder. Without flags it "
      "learns ten\nrendered shapes. Every flag can also be set in the environment "
      "(HEDDLE_BATCH_SIZE=64) or in a\nfile (--config); the flag wins over the "
      "environment, the environment over the file.\n\nDefaults by data set:\n"
      "  data     arch      image-size batch-size epochs     lr weight-decay  augment\n" +
          describe(kShapesRecipe, "shapes") + describe(kCifarRecipe, "CIFAR") +
          describe(kFolderRecipe, "folders") +
          "\nExit codes: 0 done, 1 runtime error, 2 usage or bad input, 3 diverged.");
  flags.group("Network");
  flags.add("arch", &o.arch,
            {.value = "NAME",
             .help = "architecture",
             .choices = resnet_archs(),
             .default_text = "by data set"});
  flags.add("stem", &o.stem,
            {.value = "NAME",
             .help = "first layers; auto takes cifar (3x3, no pooling) "
                     "up to 64 pixels and in resnet20 to resnet110",
             .choices = {"auto", "cifar", "imagenet"}});
  flags.add("image-size", &o.image_size,
            {.value = "N",
             .help = "pixels on a side",
             .min = 1,
             .max = 4096,
             .default_text = "by data set"});
  flags.add("label-smoothing", &o.label_smoothing,
            {.value = "X",
             .help = "share of the target that "
                     "is spread over all classes",
             .max = 1,
             .max_open = true});
  flags.add("augment", &o.augment,
            {.value = "NAME",
             .help = "of training images",
             .choices = {"none", "standard", "cutout"},
             .default_text = "by data set"});
  add_run_flags(flags, o);
  add_training_flags(flags, o);
  add_output_flags(flags, o);
  add_action_flags(flags, o);
  flags.add("predict", &o.predict,
            {.value = "IMAGE...",
             .help = "print the five best classes of each "
                     "image, with the weights of --init or after training",
             .replay = false});
  return flags;
}

void resolve(TrainResnetOptions& o, const FlagTable& flags, DataKind kind) {
  const Recipe& r = recipe(kind);
  set_default(flags, "arch", o.arch, r.arch);
  set_default(flags, "image-size", o.image_size, r.image_size);
  set_default(flags, "batch-size", o.batch_size, r.batch_size);
  set_default(flags, "augment", o.augment, r.augment);
  set_default(flags, "name", o.name, o.arch);
  if (o.stem == "auto") o.stem = is_cifar_arch(o.arch) || o.image_size <= 64 ? "cifar" : "imagenet";
  set_default(flags, "threads", o.threads, omp_get_max_threads());
  if (!flags.given("steps")) set_default(flags, "epochs", o.epochs, r.epochs);
  const bool sgd = o.optimizer == "sgd";
  set_default(flags, "lr", o.lr, sgd ? r.lr : kAdamLr);
  const double adam_decay = o.optimizer == "adam" ? kAdamDecay : kAdamwDecay;
  set_default(flags, "weight-decay", o.weight_decay, sgd ? r.weight_decay : adam_decay);

  // The configuration of a run is read again from other folders.
  for (std::string* path : {&o.data, &o.init}) {
    const bool is_path = !path->empty() && !(path == &o.data && kind == DataKind::shapes);
    if (is_path) *path = std::filesystem::absolute(*path).lexically_normal().string();
  }

  check(o.name.find('/') == std::string::npos && o.name != "." && o.name != "..",
        "--name: expected a name without '/', found '", o.name, "'");
  if (!sgd) {
    // A dumped configuration carries them for every optimizer; typed by hand they are a mistake.
    for (const char* name : {"momentum", "nesterov"}) {
      check(flags.source(name) <= FlagSource::config, "--", name,
            " belongs to sgd; --optimizer is ", o.optimizer);
    }
  } else {
    check(!o.nesterov || o.momentum > 0, "--nesterov needs a --momentum above 0");
  }
  check(!flags.given("lr-milestones") || o.lr_scheduler == "multistep",
        "--lr-milestones belongs to --lr-scheduler multistep, found ", o.lr_scheduler);
  check(!flags.given("lr-step-size") || o.lr_scheduler == "step",
        "--lr-step-size belongs to --lr-scheduler step, found ", o.lr_scheduler);
  check(!flags.given("trace-steps") || flags.given("trace"), "--trace-steps needs --trace FILE");
  if (o.trace_steps.empty()) o.trace_steps = "2:6";
  (void)parse_step_range(o.trace_steps);
}

std::string list_choices() {
  std::string out;
  auto row = [&](const char* title, const std::vector<std::string>& names) {
    out += title;
    for (const std::string& name : names) out += " " + name;
    out += '\n';
  };
  row("architectures:", resnet_archs());
  row("optimizers:", kOptimizers);
  row("schedules:", kSchedules);
  row("augmentations:", {"none", "standard", "cutout"});
  row("data formats:", {"shapes (embedded),", "CIFAR-10 and CIFAR-100 binary,",
                        "train/<class>/*.jpg|png with val/ beside train/"});
  return out;
}

StepRange parse_step_range(const std::string& text) {
  long long first = 0, last = 0;
  int used = 0;
  const bool ok = std::sscanf(text.c_str(), "%lld:%lld%n", &first, &last, &used) == 2 &&
                  static_cast<size_t>(used) == text.size() && first >= 1 && first <= last;
  check(ok, "--trace-steps: expected A:B with 1 <= A <= B, found '", text, "'");
  return {first, last};
}

}  // namespace heddle
