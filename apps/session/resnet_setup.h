// Makes the data, the loader and the network from the options of train_resnet, and describes them
// for the first line, --dry-run and checkpoints.
//
//   const Data data = open_data(o, Split::train);
//   const Loader train = make_loader(o, data, true, &comm);
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "apps/cli/resnet_options.h"
#include "apps/models/evaluate_images.h"
#include "apps/models/resnet_card.h"
#include "apps/session/run_plan.h"
#include "comm/communicator.h"
#include "core/context.h"
#include "data/loader.h"
#include "layers/image_classifier.h"

namespace heddle {

// A data set, and the transform that turns its images into input.
struct Data {
  std::shared_ptr<ImageDataset> set;
  Augmentation transform;
};

// Opens the set that --data names; --augment is for training only. Throws InputError.
Data open_data(const TrainResnetOptions& o, Split split);
// Returns a loader of batches on the device of the current Context. `comm`: the learners that share
// the set; null: the loader reads all of it.
Loader make_loader(const TrainResnetOptions& o, const Data& data, bool training,
                   const Communicator* comm = nullptr);

// Reads how the network of --init, a file or run folder, is built, so that no flag has to be
// repeated; an empty card without --init. Throws InputError.
ResnetCard read_card(const TrainResnetOptions& o, FlagTable& flags);

// Returns the card of the network: from the data that it is trained on, otherwise from the weights
// file, completed from the data. `set` may be null.
ResnetCard make_card(const TrainResnetOptions& o, const ResnetCard& loaded, const ImageDataset* set,
                     bool training);
// Returns whether a run trains the weights of --init, whose normalisation it then keeps.
inline bool continues_weights(const TrainResnetOptions& o) { return o.training && !o.init.empty(); }
// Returns how --predict and --evaluate prepare an image: as validation did during training.
Augmentation evaluation_transform(const ResnetCard& card);
// Prepares the images of --evaluate like those of --predict if --init gives weights, and warns on
// stderr if data and weights have different classes: InputError if nobody has named the data.
void prepare_evaluation(const TrainResnetOptions& o, const ResnetCard& loaded,
                        const ResnetCard& card, bool data_given, Data& valid);
// Returns the network of --arch, with parameters in the store, which must outlive it. Throws
// InputError if the number of classes is unknown.
std::unique_ptr<ImageClassifier> make_network(const TrainResnetOptions& o, const ResnetCard& card,
                                              ParameterStore& store);

// Fills the network from the file of --init; with --new-head not its last layer.
void load_initial(const TrainResnetOptions& o, const ParameterStore& store);

// Throws InputError if an epoch has fewer than --accumulate batches.
StepPlan plan_steps(const TrainResnetOptions& o, const Loader& train);

// Returns the first line of every run: network, data, device, threads, precision, seed.
std::string describe(const TrainResnetOptions& o, const ParameterStore& store, const Data& train,
                     const Data& valid, const Communicator& comm);

// Returns what must be equal for a run to resume: network and data.
nlohmann::ordered_json identity(const TrainResnetOptions& o, const ResnetCard& card,
                                const ImageDataset& train);
// Returns the last validation as a checkpoint keeps it; "valid_loss" is null before the first one.
nlohmann::ordered_json evaluation_json(const Evaluation& valid);
// Reads an evaluation back, from a checkpoint ("valid_loss") or a line of metrics ("loss").
Evaluation parse_evaluation(const nlohmann::json& json, const char* loss_key);

// Returns the text of --dry-run, or one JSON object with --json.
std::string describe_plan(const TrainResnetOptions& o, Context& context,
                          const ImageClassifier& model, ParameterStore& store, const Loader& train);

// Returns the resolved configuration as TOML, with a remark on each default.
std::string config_text(const TrainResnetOptions& o, const FlagTable& flags);

}  // namespace heddle
