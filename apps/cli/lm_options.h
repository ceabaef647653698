// The options of train_lm, with the recipes: defaults by level and data, or those of a paper or an
// example that --preset names. A recipe sets defaults only: flags, variables and files override it.
//
// The loss is always the mean over tokens. Zaremba et al. (arXiv 1409.2329) sum it over the T steps
// of a window and divide by the batch size only: their learning rate is ours divided by T, and
// their clipping threshold is ours times T.
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

// Returns the kind of data that --data names: "sources", else an existing path.
TextKind text_kind(const std::string& data);

// Returns the table of all flags, bound to `options`.
FlagTable lm_flags(TrainLmOptions& options);

// Parses the texts and sets the options that were not given, by preset, level and kind of data;
// --level is word or char afterwards. Throws InputError for flags that contradict each other.
void resolve(TrainLmOptions& options, FlagTable& flags, TextKind kind);

// Returns the name of the recipe in use: "zaremba-small", or without a preset "char level" or
// "word level".
std::string recipe_name(const TrainLmOptions& options);

// Returns the text of --list.
std::string list_lm_choices();

}  // namespace heddle
