// What a user can say to train_resnet, and the rule for the defaults that depend on the data set.
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

  std::string arch, stem = "auto", augment;
  int64_t image_size = 0;
  double label_smoothing = 0;
  std::vector<std::string> predict;
  std::string head;  // the last layer's name in the file of --init; empty: fc
};

enum class DataKind { shapes, cifar, folder };

// What is trained on when --data says this: "shapes", else the path of a folder, which must exist;
// one of CIFAR's file names in it decides for CIFAR. The files are checked when they are opened.
DataKind data_kind(const std::string& data);
const char* data_kind_name(DataKind kind);

FlagTable resnet_flags(TrainResnetOptions& options);

// Fills in what nobody gave, by kind of data and by optimizer, and refuses what cannot go together.
void resolve(TrainResnetOptions& options, FlagTable& flags, DataKind kind);

// The text of --list.
std::string list_choices();

}  // namespace heddle
