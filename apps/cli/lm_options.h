// What a user can say to train_lm: its flags, the recipes that the data choose, and the presets of
// papers and examples. A preset sets defaults only: whatever is given, as a flag, in the
// environment or in a file, wins.
//
// The loss is the mean over tokens everywhere. Zaremba et al. (arXiv 1409.2329) sum it over the T
// steps of a window and divide by the batch size only: their learning rate is ours divided by T,
// and their threshold of clipping is ours times T.
//
//   TrainLmOptions o;
//   FlagTable flags = lm_flags(o);
//   flags.parse(arguments, environment);
//   resolve(o, flags, text_kind(o.data));
#pragma once

#include <cstdint>
#include <string>

#include "apps/cli/common_options.h"

namespace heddle {

struct TrainLmOptions : CommonOptions {
  TrainLmOptions() {
    data = "sources";
    momentum = 0;
    nesterov = false;
  }

  std::string preset, level = "auto";
  int64_t emsize = 0, nhid = 0, nlayers = 0, bptt = 0;
  double dropout = 0, init_range = 0;
  bool tied = false;
  int64_t generate = 0;
  std::string prompt;
  double temperature = 1;
};

enum class TextKind { sources, file, folder };

// What is trained on when --data says this: "sources", else a path, which must exist.
TextKind text_kind(const std::string& data);

FlagTable lm_flags(TrainLmOptions& options);

// Fills in what nobody gave, by preset, level and kind of data, and refuses what cannot go
// together.
// --level is word or char afterwards.
void resolve(TrainLmOptions& options, FlagTable& flags, TextKind kind);

// "zaremba-small", or without a preset "text at character level" and so on: what the defaults are
// for.
std::string recipe_name(const TrainLmOptions& options);

// The text of --list.
std::string list_lm_choices();

}  // namespace heddle
