// From the options of train_resnet to data, loader and network, and to the plan that --dry-run
// prints.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "apps/checkpoint/checkpoint.h"
#include "apps/cli/resnet_options.h"
#include "apps/models/evaluate_images.h"
#include "apps/models/resnet_card.h"
#include "apps/session/run_plan.h"
#include "comm/communicator.h"
#include "core/context.h"
#include "data/loader.h"
#include "layers/resnet.h"

namespace heddle {

// A set with what turns its images into input.
struct Data {
  std::shared_ptr<ImageDataset> set;
  Augmentation transform;
};

Data open_data(const TrainResnetOptions& o, Split split);
// `comm`: the learners that share the set; null: all of it.
Loader make_loader(const TrainResnetOptions& o, const Data& data, bool training,
                   const Communicator* comm = nullptr);

// Reads what the file or run folder of --init says of its network, so that no flag has to be
// repeated. Throws InputError.
ResnetCard read_card(const TrainResnetOptions& o, FlagTable& flags);

// Returns the card of the network: taken from the data that it is trained on, else from the weights
// file, completed from the data (null: none).
ResnetCard make_card(const TrainResnetOptions& o, const ResnetCard& loaded, const ImageDataset* set,
                     bool training);
// Returns how --predict and --evaluate prepare an image: as the network's training validated.
Augmentation evaluation_transform(const ResnetCard& card);
// Prepares the images of --evaluate like those of --predict where --init gives weights, and warns
// where data and weights know different classes.
void prepare_evaluation(const TrainResnetOptions& o, const ResnetCard& loaded,
                        const ResnetCard& card, Data& valid);
ResNetOptions network_options(const TrainResnetOptions& o, const ResnetCard& card);

// Throws InputError when an epoch has fewer than --accumulate batches.
StepPlan plan_steps(const TrainResnetOptions& o, const Loader& train);

// The first line of every run: network, data, device, threads, precision, seed.
std::string describe(const TrainResnetOptions& o, const ParameterStore& store, const Data& train,
                     const Data& valid, const Communicator& comm);

// Returns what must be equal for a run to resume: network and data.
nlohmann::ordered_json identity(const TrainResnetOptions& o, const ResnetCard& card,
                                const ImageDataset& train);
// The last validation, as a checkpoint keeps it, with "valid_loss"; none yet: null.
nlohmann::ordered_json evaluation_json(const Evaluation& valid);
Evaluation parse_evaluation(const Checkpoint& checkpoint);  // throws InputError

// The text of --dry-run, or one JSON object with --json. The memory of activations is measured on
// two small batches and extrapolated.
std::string describe_plan(const TrainResnetOptions& o, Context& context, const ResNet& model,
                          ParameterStore& store, const Loader& train);

// The resolved configuration as TOML, with a remark on each default.
std::string config_text(const TrainResnetOptions& o, const FlagTable& flags);

}  // namespace heddle
