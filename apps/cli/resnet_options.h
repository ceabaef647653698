// The options of train_resnet, with the recipes: defaults by data set.
//
//   TrainResnetOptions o;
//   FlagTable flags = resnet_flags(o);
//   flags.parse(arguments, environment);
//   resolve(o, flags, data_kind(o.data));
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/cli/common_options.h"

namespace heddle {

struct TrainResnetOptions : CommonOptions {
  TrainResnetOptions() { data = "shapes"; }

  std::string arch, stem = "auto", augment, shard = "random";
  int64_t image_size = 0;
  double label_smoothing = 0;
  std::vector<std::string> predict;
  std::string head;  // the last layer's name in the file of --init; empty: fc
  bool new_head = false;
};

// The --arch that is no residual network (layers/small_cnn.h).
constexpr const char* kSmallCnn = "cnn";

enum class DataKind { shapes, cifar, mnist, folder };

// Returns the kind of data that --data names: "shapes", else an existing folder: CIFAR or MNIST if
// it holds one of their file names. The files are checked when they are opened.
DataKind data_kind(const std::string& data);
const char* data_kind_name(DataKind kind);

// Returns the table of all flags, bound to `options`.
FlagTable resnet_flags(TrainResnetOptions& options);

// Parses the texts and sets the options that were not given, by recipe and optimizer. Throws
// InputError for flags that contradict each other.
void resolve(TrainResnetOptions& options, FlagTable& flags, DataKind kind);

// Returns the text of --list.
std::string list_choices();

}  // namespace heddle
