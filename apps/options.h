// What a user can say to the programs: CommonOptions for both, TrainResnetOptions for train_resnet,
// and the rule for the defaults that depend on the data set. A field's initial value is its
// default; where the default is a rule, resolve() fills it in and --dump-config shows the outcome.
//
//   TrainResnetOptions o;
//   FlagTable flags = resnet_flags(o);
//   flags.parse(arguments, environment);
//   resolve(o, flags, data_kind(o.data));
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/flags.h"

namespace heddle {

struct CommonOptions {
  // data and run
  std::string data = "shapes", device = "auto", precision = "fp32", init;
  int64_t seed = 1, threads = 0, workers = 1;
  bool deterministic = false;
  // how long and how much
  int64_t epochs = 0, steps = 0, batch_size = 0, accumulate = 1;
  // the update rule
  std::string optimizer = "sgd";
  double lr = 0, momentum = 0.9, weight_decay = 0, clip_grad_norm = 0;
  bool nesterov = true, decay_norm_bias = true;
  std::string lr_scheduler = "onecycle";
  double lr_warmup_epochs = 0, lr_gamma = 0.1;
  std::vector<int64_t> lr_milestones;
  int64_t lr_step_size = 0;
  std::string on_nonfinite = "bucket";
  int64_t max_skipped = 10;
  // what is written
  std::string output_dir, name, trace, trace_steps;
  int64_t print_freq = 50;
  bool json = false, quiet = false;
  // instead of training
  bool evaluate = false, dry_run = false, dump_config = false, list = false, version = false;
  bool help = false;
  std::string config;
};

struct TrainResnetOptions : CommonOptions {
  std::string arch, stem = "auto", augment;
  int64_t image_size = 0;
  double label_smoothing = 0;
  std::vector<std::string> predict;
};

enum class DataKind { shapes, cifar, folder };

// What is trained on when --data says this: "shapes", else the path of a folder, which must exist;
// one of CIFAR's file names in it decides for CIFAR. The files are checked when they are opened.
DataKind data_kind(const std::string& data);
const char* data_kind_name(DataKind kind);

FlagTable resnet_flags(TrainResnetOptions& options);

// Fills in what nobody gave, by kind of data and by optimizer, and refuses what cannot go together.
void resolve(TrainResnetOptions& options, const FlagTable& flags, DataKind kind);

// The text of --list.
std::string list_choices();

// "A:B", steps counted from 1, A <= B, both traced. Throws InputError.
struct StepRange {
  int64_t first, last;
};
StepRange parse_step_range(const std::string& text);

}  // namespace heddle
