#include "apps/session/resnet_setup.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "apps/cli/json.h"
#include "apps/session/privacy.h"
#include "comm/launch.h"
#include "core/error.h"
#include "core/kernels.h"
#include "layers/loss.h"
#include "layers/resnet.h"
#include "layers/small_cnn.h"
#include "layers/weights.h"

namespace heddle {
namespace {

// Images rendered in an epoch. They cost nothing to store, and new images teach more than repeated
// ones: three epochs of these, batch 64, reached 99.3 % (seed 2); three of 5000, batch 128, 40 %.
constexpr int64_t kShapes = 15000;

Shards shards_of(const TrainResnetOptions& o, bool training) {
  if (!training || o.shard == "random") return Shards::random;
  return o.shard == "fixed" ? Shards::fixed : Shards::by_class;
}

}  // namespace

Data open_data(const TrainResnetOptions& o, Split split) {
  const DatasetOptions options{.image_size = to_int(o.image_size),
                               .train_images = kShapes,
                               .seed = static_cast<uint64_t>(o.seed)};
  const std::string path = o.data == "shapes" ? "" : o.data;
  Data data;
  data.set = open_dataset(path, split, options);
  data.transform = make_augmentation(split == Split::train ? o.augment : "none", data.set->info(),
                                     split, to_int(o.image_size));
  return data;
}

Loader make_loader(const TrainResnetOptions& o, const Data& data, bool training,
                   const Communicator* comm) {
  LoaderOptions options{.batch_size = o.batch_size,
                        .workers = to_int(o.workers),
                        .seed = static_cast<uint64_t>(o.seed),
                        .shuffle = training,
                        .shards = shards_of(o, training)};
  // Bytes are a quarter of the size of floats on their way to a GPU, and less work for the CPU.
  options.bytes = Context::current().device().is_cuda();
  if (comm != nullptr) {
    options.rank = comm->rank();
    options.world_size = comm->size();
  }
  if (training && o.dp.unit == "group") {
    options.group_rate = o.dp.rate;
    // Not the seed of the noise itself: its numbers must not be used twice.
    const auto seed = static_cast<uint64_t>(o.parsed.compress.spec.values.at("noise-seed"));
    if (seed != 0) options.group_seed = seed + 1;
  }
  // A short last batch would weigh as much as a full one; a set smaller than a batch is used whole.
  options.drop_last = training && data.set->size() >= o.batch_size * options.world_size;
  return Loader(data.set, data.transform, options);
}

ResnetCard read_card(const TrainResnetOptions& o, FlagTable& flags) {
  check(!o.init.empty() || o.head.empty(),
        "--head names a layer in the file of --init, which is not given");
  if (o.init.empty()) return {};
  ResnetCard card = read_resnet_card(WeightsFile(o.init, o.head));
  if (!o.quiet && !card.found.empty() && detect_launch().rank == 0)
    std::fprintf(stderr, "%s\n", card.found.c_str());
  if (!card.arch.empty()) flags.suggest("arch", card.arch, o.init + ": arch");
  if (!card.stem.empty()) flags.suggest("stem", card.stem, o.init + ": stem");
  if (card.image_size > 0)
    flags.suggest("image-size", std::to_string(card.image_size), o.init + ": image_size");
  return card;
}

ResnetCard make_card(const TrainResnetOptions& o, const ResnetCard& loaded, const ImageDataset* set,
                     bool training) {
  ResnetCard card = loaded;
  card.arch = o.arch;
  card.stem = o.stem;
  card.image_size = o.image_size;
  const bool from_data = set != nullptr && (training || o.init.empty());
  // Weights without class names may have more classes than the data, whose classes come first.
  const bool more = !from_data && set != nullptr && loaded.classes.empty() &&
                    loaded.class_count > set->class_count();
  if (set != nullptr) card.classes = set->classes();
  if (set != nullptr && !more) card.class_count = set->class_count();
  if (from_data) card.resize = set->info().image_size > 0 ? 1 : kFolderResize;
  // Layers that stay what they are see what they have seen.
  const bool as_before =
      continues_weights(o) && (card.normalization.std[0] > 0 || o.stem == "imagenet");
  if (!as_before && (from_data || (set != nullptr && card.normalization.std[0] == 0)))
    card.normalization = set->info().normalization;
  if (card.normalization.std[0] == 0) card.normalization = kImageNet;
  return card;
}

Augmentation evaluation_transform(const ResnetCard& card) {
  return {.size = to_int(card.image_size),
          .crop = Crop::center,
          .resize = card.resize,
          .normalization = card.normalization};
}

void prepare_evaluation(const TrainResnetOptions& o, const ResnetCard& loaded,
                        const ResnetCard& card, bool data_given, Data& valid) {
  if (o.init.empty()) return;
  const bool uncropped = valid.transform.crop == Crop::none && card.resize == 1;
  valid.transform = evaluation_transform(card);
  if (uncropped) valid.transform.crop = Crop::none;
  const std::string data = valid.set->info().name;
  const bool others = !loaded.classes.empty() && loaded.classes != card.classes;
  const std::string differ =
      !others ? ""
              : concat(o.init, " has other classes (", loaded.classes[0], ", …) than ", data, " (",
                       card.classes.empty() ? "none" : card.classes[0], ", …)");
  check(data_given || !loaded.classes.empty(), o.init, " does not name its classes: give --data");
  check(data_given || !others, differ, ": give --data");
  if (o.quiet) return;
  std::string warnings;
  if (card.class_count > valid.set->class_count())
    warnings += concat(o.init, " has ", card.class_count, " classes without names: class i of ",
                       data, ", in alphabetical order, is counted as its class i\n");
  if (others) warnings += differ + '\n';
  std::fprintf(stderr, "%s", warnings.c_str());
}

std::unique_ptr<ImageClassifier> make_network(const TrainResnetOptions& o, const ResnetCard& card,
                                              ParameterStore& store) {
  check(card.class_count > 0, o.init,
        ": expected a tensor fc.weight (classes, features), found none");
  using Stem = ResNetOptions::Stem;
  const ResNetOptions options{.arch = o.arch,
                              .classes = card.class_count,
                              .stem = o.stem == "imagenet" ? Stem::imagenet : Stem::cifar};
  if (o.arch != kSmallCnn) return std::make_unique<ResNet>(store, options);
  return std::make_unique<SmallCnn>(
      store, SmallCnn::Options{.classes = card.class_count, .image_size = o.image_size});
}

void load_initial(const TrainResnetOptions& o, const ParameterStore& store) {
  constexpr const char* kHead = "fc.";
  WeightsFile file(o.init, o.head);
  NamedTensors tensors = store.named_tensors();
  check(o.new_head || file.has("fc.weight"), o.init, ": has no last layer, fc.weight",
        o.training ? "; --new-head trains one" : "");
  if (o.new_head) {
    file.leave_out(kHead);
    std::erase_if(tensors, [](const auto& tensor) { return tensor.first.starts_with(kHead); });
  }
  load_weights(file, tensors,
               {{kHead, concat("a different number of classes",
                               o.training ? "; --new-head trains a new last layer" : "")}});
}

StepPlan plan_steps(const TrainResnetOptions& o, const Loader& train) {
  StepPlan plan =
      plan_updates(o, train.batches_per_epoch(), concat("batches of ", o.batch_size, " images"));
  const bool groups = o.dp.unit == "group";
  plan.units = groups ? train.groups() : o.parsed.learners.size;
  if (groups) plan.voters = o.dp.rate * to_double(plan.units) / o.parsed.learners.size;
  return plan;
}

std::string describe(const TrainResnetOptions& o, const ParameterStore& store, const Data& train,
                     const Data& valid, const Communicator& comm) {
  std::string out = concat(o.arch, ", ", describe_size(store), ", stem ", o.stem);
  if (valid.set != nullptr) {
    out += concat(" | ", valid.set->info().name, ", ", valid.set->class_count(), " classes, ");
    if (train.set != nullptr) out += concat(train.set->size(), " + ");
    out += concat(valid.set->size(), " images of ", o.image_size, " px");
  }
  return out + describe_machine_use(o, store, comm);
}

nlohmann::ordered_json identity(const TrainResnetOptions& o, const ResnetCard& card,
                                const ImageDataset& train) {
  nlohmann::ordered_json json = {{"program", "train_resnet"},
                                 {"arch", o.arch},
                                 {"stem", o.stem},
                                 {"image-size", o.image_size},
                                 {"data", train.info().name},
                                 {"images", train.size()},
                                 {"classes", card.classes},
                                 {"optimizer", o.optimizer}};
  if (card.normalization.mean != train.info().normalization.mean)
    json["normalization"] = "of --init";
  if (o.shard != "random") json["shard"] = o.shard;
  if (is_voting(o)) json["privacy-unit"] = privacy_unit(o);
  return json;
}

nlohmann::ordered_json evaluation_json(const Evaluation& valid) {
  if (valid.samples == 0) return {{"valid_loss", nullptr}};
  return {{"valid_loss", valid.loss},
          {"acc1", valid.acc1},
          {"acc5", valid.acc5},
          {"samples", valid.samples}};
}

Evaluation parse_evaluation(const nlohmann::json& json, const char* loss_key) {
  return {.loss = number_at(json, loss_key),
          .acc1 = number_at(json, "acc1"),
          .acc5 = number_at(json, "acc5"),
          .samples = whole_at(json, "samples")};
}

std::string describe_plan(const TrainResnetOptions& o, Context& context,
                          const ImageClassifier& model, ParameterStore& store,
                          const Loader& train) {
  const auto step_bytes = [&](int64_t images) {
    const Tensor pixels = Tensor::zeros({images, 3, o.image_size, o.image_size});
    const Tensor labels = Tensor::from_integers(std::vector<int32_t>(to_size(images)));
    return measure_step_bytes(context, store, [&](Tape& tape) {
      const Var input(converted(pixels.to(context.device()), activation_type(o), Layout::plain));
      return softmax_cross_entropy(tape, model.forward(tape, input), labels);
    });
  };
  return format_plan(o, store,
                     {.steps = plan_steps(o, train),
                      .model = "arch",
                      .model_name = o.arch,
                      .unit = "image",
                      .rows = 2,
                      .most_rows = train.dataset().size() / o.parsed.learners.size,
                      .step_bytes = step_bytes});
}

std::string config_text(const TrainResnetOptions& o, const FlagTable& flags) {
  return format_config("train_resnet",
                       concat("default for ", data_kind_name(data_kind(o.data)), ", ", o.optimizer),
                       flags);
}

}  // namespace heddle
