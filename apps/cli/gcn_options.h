// The options of train_gcn.
//
//   TrainGcnOptions o;
//   FlagTable flags = gcn_flags(o);
//   flags.parse(arguments, environment);
//   resolve(o, flags);
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/cli/common_options.h"
#include "data/graph.h"
#include "data/neighbour_sampler.h"
#include "layers/graph_net.h"

namespace heddle {

struct TrainGcnOptions : CommonOptions {
  TrainGcnOptions() {
    data = "sbm";
    optimizer = "adam";
    lr_scheduler = "cosine";
  }

  std::string model = "sage", partition = "ldg", skew = "budget=1.5";
  std::string skew_weights = "normalised";
  int64_t layers = 2, hidden = 64;
  std::vector<int64_t> fanout;
  double dropout = 0;
  std::vector<std::string> predict;
};

// Returns the table of all flags, bound to `options`.
FlagTable gcn_flags(TrainGcnOptions& options);

// Parses the texts and sets the options that were not given. Throws InputError for flags that
// contradict each other.
void resolve(TrainGcnOptions& options, FlagTable& flags);

// Returns whether --data names the block model, "sbm" or "sbm:nodes=8000,…".
bool is_block_model(const std::string& data);
// Returns the options of such a model. Throws InputError.
BlockGraphOptions parse_block_model(const std::string& data);
// Returns the sampler that --fanout, --skew, --skew-weights and --model name.
SamplerOptions sampler_options(const TrainGcnOptions& o);

// Returns the text of --list.
std::string list_gcn_choices();

}  // namespace heddle
