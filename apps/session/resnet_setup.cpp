#include "apps/session/resnet_setup.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "apps/models/evaluate_images.h"
#include "apps/models/weights.h"
#include "apps/session/learners.h"
#include "core/context.h"
#include "core/error.h"
#include "core/files.h"
#include "layers/loss.h"

namespace heddle {

namespace {

// Rendered images cost nothing to keep, and fresh ones teach more than old ones seen again: three
// epochs of these, batch 64, ended at 99.3 % (seed 2); three of 5000, batch 128, at 40 %.
constexpr int64_t kShapes = 15000;

// Peak of the pool in a step of so many images, without the optimizer's state.
int64_t measure_step_bytes(const TrainResnetOptions& o, Context& context, const ResNet& model,
                           ParameterStore& store, int64_t images) {
  const Device device = context.device();
  const auto pool = context.pool(device);
  store.begin_step();
  const Tensor pixels = Tensor::zeros({images, 3, o.image_size, o.image_size});
  const Tensor labels = Tensor::empty_on(Device{}, {images}, DType::i32);
  labels.fill_zero();
  pool->reset_peak();
  Tape tape;
  const Var logits = model.forward(tape, network_input(pixels, device, activation_type(o)));
  tape.backward(softmax_cross_entropy(tape, logits, labels));
  return static_cast<int64_t>(pool->peak_bytes_in_use());
}

}  // namespace

Data open_data(const TrainResnetOptions& o, Split split) {
  DatasetOptions options;
  options.image_size = static_cast<int>(o.image_size);
  options.train_images = kShapes;
  options.seed = static_cast<uint64_t>(o.seed);
  const std::string path = o.data == "shapes" ? "" : o.data;
  Data data;
  data.set = open_dataset(path, split, options);
  data.transform = make_augmentation(split == Split::train ? o.augment : "none", data.set->info(),
                                     split, static_cast<int>(o.image_size));
  return data;
}

Loader make_loader(const TrainResnetOptions& o, const Data& data, bool training,
                   const Communicator* comm) {
  LoaderOptions options;
  options.batch_size = o.batch_size;
  options.workers = static_cast<int>(o.workers);
  options.seed = static_cast<uint64_t>(o.seed);
  options.shuffle = training;
  options.bytes =
      Context::current().device().is_cuda();  // a quarter of the way there, and less work here
  // A short last batch would get the weight of a full one; a set below one batch is used whole.
  if (comm != nullptr) {
    options.rank = comm->rank();
    options.world_size = comm->size();
  }
  options.drop_last = training && data.set->size() >= o.batch_size * options.world_size;
  return Loader(data.set, data.transform, options);
}

ResnetCard read_card(const TrainResnetOptions& o, FlagTable& flags) {
  check(!o.init.empty() || o.head.empty(),
        "--head: names a layer in the file of --init, which is missing");
  if (o.init.empty()) return {};
  ResnetCard card = read_resnet_card(WeightsFile(o.init, o.head));
  if (!o.quiet && !card.found.empty()) std::fprintf(stderr, "%s\n", card.found.c_str());
  if (!card.arch.empty()) flags.suggest("arch", card.arch, o.init + ": arch");
  if (!card.stem.empty()) flags.suggest("stem", card.stem, o.init + ": stem");
  if (card.image_size > 0) {
    flags.suggest("image-size", std::to_string(card.image_size), o.init + ": image_size");
  }
  return card;
}

ResnetCard make_card(const TrainResnetOptions& o, const ResnetCard& loaded, const ImageDataset* set,
                     bool training) {
  ResnetCard card = loaded;
  card.arch = o.arch;
  card.stem = o.stem;
  card.image_size = o.image_size;
  const bool from_data = set != nullptr && (training || o.init.empty());
  // Weights that do not name their classes may know more than the data hold: theirs come first.
  const bool more = !from_data && set != nullptr && loaded.classes.empty() &&
                    loaded.class_count > set->class_count();
  if (set != nullptr) card.classes = set->classes();
  if (set != nullptr && !more) card.class_count = set->class_count();
  if (from_data) card.resize = set->info().image_size > 0 ? 1 : kFolderResize;
  if (from_data || (set != nullptr && card.normalization.std[0] == 0))
    card.normalization = set->info().normalization;
  if (card.normalization.std[0] == 0) card.normalization = kImageNet;
  return card;
}

Augmentation evaluation_transform(const ResnetCard& card) {
  Augmentation out;
  out.size = static_cast<int>(card.image_size);
  out.crop = Crop::center;
  out.resize = card.resize;
  out.normalization = card.normalization;
  return out;
}

void prepare_evaluation(const TrainResnetOptions& o, const ResnetCard& loaded,
                        const ResnetCard& card, Data& valid) {
  if (o.init.empty()) return;
  const bool uncropped = valid.transform.crop == Crop::none && card.resize == 1;
  valid.transform = evaluation_transform(card);
  if (uncropped) valid.transform.crop = Crop::none;
  if (o.quiet) return;
  const std::string data = valid.set->info().name;
  if (card.class_count > valid.set->class_count())
    std::fprintf(stderr,
                 "%s knows %lld classes without their names: class i of %s, in alphabetical order, "
                 "is taken for its class i\n",
                 o.init.c_str(), static_cast<long long>(card.class_count), data.c_str());
  if (!loaded.classes.empty() && loaded.classes != card.classes)
    std::fprintf(stderr, "%s knows other classes (%s, …) than %s (%s, …)\n", o.init.c_str(),
                 loaded.classes[0].c_str(), data.c_str(),
                 card.classes.empty() ? "none" : card.classes[0].c_str());
}

ResNetOptions network_options(const TrainResnetOptions& o, const ResnetCard& card) {
  check(card.class_count > 0, o.init,
        ": expected a tensor fc.weight (classes, features), found none");
  using Stem = ResNetOptions::Stem;
  return {.arch = o.arch,
          .classes = card.class_count,
          .stem = o.stem == "imagenet" ? Stem::imagenet : Stem::cifar};
}

StepPlan plan_steps(const TrainResnetOptions& o, const Loader& train) {
  return plan_updates(o, train.batches_per_epoch(), concat("batches of ", o.batch_size, " images"));
}

std::string describe(const TrainResnetOptions& o, const ParameterStore& store, const Data& train,
                     const Data& valid, const Communicator& comm) {
  char parameters[32];
  std::snprintf(parameters, sizeof parameters, "%.2f M", static_cast<double>(store.count()) / 1e6);
  std::string out = concat(o.arch, ", ", parameters, " parameters, stem ", o.stem);
  if (valid.set != nullptr) {
    out += concat(" | ", valid.set->info().name, ", ", valid.set->class_count(), " classes, ");
    if (train.set != nullptr) out += concat(train.set->size(), " + ");
    out += concat(valid.set->size(), " images of ", o.image_size, " px");
  }
  return out + " | " + describe_learners(comm) + describe_machine_use(o, store);
}

nlohmann::ordered_json identity(const TrainResnetOptions& o, const ResnetCard& card,
                                const ImageDataset& train) {
  return {{"program", "train_resnet"},
          {"arch", o.arch},
          {"stem", o.stem},
          {"image-size", o.image_size},
          {"data", train.info().name},
          {"images", train.size()},
          {"classes", card.classes},
          {"optimizer", o.optimizer}};
}

nlohmann::ordered_json evaluation_json(const Evaluation& valid) {
  if (valid.samples == 0) return {{"valid_loss", nullptr}};
  return {{"valid_loss", valid.loss},
          {"acc1", valid.acc1},
          {"acc5", valid.acc5},
          {"samples", valid.samples}};
}

Evaluation parse_evaluation(const Checkpoint& checkpoint) {
  Evaluation valid;
  try {
    const nlohmann::json& own = checkpoint.state.at("own");
    if (!own.at("valid_loss").is_number()) return valid;
    valid.loss = own["valid_loss"].get<double>();
    valid.acc1 = own.at("acc1").get<double>();
    valid.acc5 = own.at("acc5").get<double>();
    valid.samples = own.at("samples").get<int64_t>();
  } catch (const nlohmann::json::exception& error) {
    throw InputError(concat(checkpoint.file("state.json"), ": ", printable(error.what(), 200)));
  }
  return valid;
}

std::string describe_plan(const TrainResnetOptions& o, Context& context, const ResNet& model,
                          ParameterStore& store, const Loader& train) {
  constexpr int64_t kSmall = 2, kLarge = 4;
  const int64_t small = measure_step_bytes(o, context, model, store, kSmall);
  const int64_t large = measure_step_bytes(o, context, model, store, kLarge);
  const int64_t per_image = (large - small) / (kLarge - kSmall);
  return format_plan(o, store,
                     {.steps = plan_steps(o, train),
                      .model = "arch",
                      .model_name = o.arch,
                      .unit = "image",
                      .units_per_batch = o.batch_size,
                      .activation_bytes = per_image * o.batch_size,
                      .peak_bytes = small + per_image * (o.batch_size - kSmall)});
}

std::string config_text(const TrainResnetOptions& o, const FlagTable& flags) {
  const std::string rule =
      concat("default for ", data_kind_name(data_kind(o.data)), ", ", o.optimizer);
  return format_config("train_resnet", rule, flags);
}

}  // namespace heddle
