#include "apps/setup.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "apps/evaluate.h"
#include "apps/run_folder.h"
#include "core/error.h"
#include "layers/loss.h"

namespace heddle {

namespace {

// For weights that do not say how their images were normalised: torchvision's.
constexpr Normalization kImageNet = {{0.485f, 0.456f, 0.406f}, {0.229f, 0.224f, 0.225f}};

// Rendered images cost nothing to keep, and fresh ones teach more than old ones seen again: three
// epochs of these, batch 64, ended at 99.3 % (seed 2); three of 5000, batch 128, at 40 %.
constexpr int64_t kShapes = 15000;

std::string mebibytes(int64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f MiB", static_cast<double>(bytes) / (1 << 20));
  return text;
}

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
  const Var logits = model.forward(tape, network_input(pixels, device, input_type(o)));
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

Loader make_loader(const TrainResnetOptions& o, const Data& data, bool training) {
  LoaderOptions options;
  options.batch_size = o.batch_size;
  options.workers = static_cast<int>(o.workers);
  options.seed = static_cast<uint64_t>(o.seed);
  options.shuffle = training;
  // A short last batch would get the weight of a full one; a set below one batch is used whole.
  options.drop_last = training && data.set->size() >= o.batch_size;
  return Loader(data.set, data.transform, options);
}

std::unique_ptr<UpdateRule> make_rule(const TrainResnetOptions& o) {
  if (o.optimizer == "sgd") {
    return make_sgd({.momentum = o.momentum,
                     .nesterov = o.nesterov,
                     .weight_decay = o.weight_decay,
                     .decay_norm_bias = o.decay_norm_bias});
  }
  AdamOptions options;
  options.weight_decay = o.weight_decay;
  options.decoupled = o.optimizer == "adamw";
  options.decay_norm_bias = o.decay_norm_bias;
  return make_adam(options);
}

Schedule make_schedule(const TrainResnetOptions& o, int64_t total_steps, int64_t steps_per_epoch) {
  const double epochs = static_cast<double>(total_steps) / static_cast<double>(steps_per_epoch);
  ScheduleOptions options;
  options.kind = parse_schedule_kind(o.lr_scheduler);
  options.lr = o.lr;
  options.total_steps = total_steps;
  options.steps_per_epoch = steps_per_epoch;
  options.warmup_epochs = o.lr_warmup_epochs;
  options.gamma = o.lr_gamma;
  options.step_epochs = o.lr_step_size > 0 ? static_cast<double>(o.lr_step_size) : epochs / 3;
  options.milestones = {epochs / 2, epochs * 3 / 4};
  if (!o.lr_milestones.empty()) {
    options.milestones.assign(o.lr_milestones.begin(), o.lr_milestones.end());
  }
  return Schedule(options);
}

// What the network is and knows, from the weights file where it says so, else from the data.
ModelCard make_card(const TrainResnetOptions& o, const ModelCard& loaded, const ImageDataset* set) {
  ModelCard card = loaded;
  card.arch = o.arch;
  card.stem = o.stem;
  card.image_size = o.image_size;
  if (set != nullptr) {
    card.classes = set->classes();
    card.class_count = set->class_count();
    card.normalization = set->info().normalization;
  } else if (card.normalization.std[0] == 0) {
    card.normalization = kImageNet;
  }
  return card;
}

ResNetOptions network_options(const TrainResnetOptions& o, const ModelCard& card) {
  check(card.class_count > 0, o.init,
        ": expected a tensor fc.weight (classes, features), found none");
  using Stem = ResNetOptions::Stem;
  return {.arch = o.arch,
          .classes = card.class_count,
          .stem = o.stem == "imagenet" ? Stem::imagenet : Stem::cifar};
}

DType input_type(const TrainResnetOptions& o) {
  return o.precision == "bf16" ? DType::bf16 : DType::f32;
}

StepPlan plan_steps(const TrainResnetOptions& o, const Loader& train) {
  const int64_t batches = train.batches_per_epoch();
  check(batches >= o.accumulate, "--accumulate ", o.accumulate, ": an epoch has only ", batches,
        " batches of ", o.batch_size, " images");
  StepPlan plan;
  plan.steps_per_epoch = batches / o.accumulate;
  plan.total_steps = o.epochs > 0 ? o.epochs * plan.steps_per_epoch : o.steps;
  if (o.steps > 0) plan.total_steps = std::min(plan.total_steps, o.steps);
  return plan;
}

std::string describe(const TrainResnetOptions& o, const ParameterStore& store, const Data& train,
                     const Data& valid) {
  char parameters[32];
  std::snprintf(parameters, sizeof parameters, "%.2f M", static_cast<double>(store.count()) / 1e6);
  std::string out = concat(o.arch, ", ", parameters, " parameters, stem ", o.stem);
  if (valid.set != nullptr) {
    out += concat(" | ", valid.set->info().name, ", ", valid.set->class_count(), " classes, ");
    if (train.set != nullptr) out += concat(train.set->size(), " + ");
    out += concat(valid.set->size(), " images of ", o.image_size, " px");
  }
  return out + concat(" | ", to_string(store.values().device()), ", ", o.threads, " threads, ",
                      o.precision, ", seed ", o.seed);
}

std::string describe_plan(const TrainResnetOptions& o, Context& context, const ResNet& model,
                          ParameterStore& store, const Loader& train) {
  constexpr int64_t kSmall = 2, kLarge = 4;
  const StepPlan steps = plan_steps(o, train);
  const int64_t small = measure_step_bytes(o, context, model, store, kSmall);
  const int64_t large = measure_step_bytes(o, context, model, store, kLarge);
  const int64_t per_image = (large - small) / (kLarge - kSmall);
  const int64_t gradient = store.count() * 4;
  const int64_t copies = o.optimizer == "sgd" ? (o.momentum > 0 ? 1 : 0) : 2;
  const int64_t state = store.values().bytes() * copies;
  const int64_t peak = small + per_image * (o.batch_size - kSmall) + state;
  if (o.json) {
    const int64_t epochs = (steps.total_steps + steps.steps_per_epoch - 1) / steps.steps_per_epoch;
    return json_line({{"arch", o.arch},
                      {"parameters", store.count()},
                      {"epochs", epochs},
                      {"steps_per_epoch", steps.steps_per_epoch},
                      {"steps", steps.total_steps},
                      {"optimizer_state_bytes", state},
                      {"activation_bytes", per_image * o.batch_size},
                      {"peak_pool_bytes", peak},
                      {"gradient_bytes_per_step", gradient}});
  }
  return concat("parameters        ", store.count(), " in ", store.parameters().size(),
                " tensors\n", "steps             ", steps.total_steps, ", ", steps.steps_per_epoch,
                " an epoch, ", o.batch_size * o.accumulate, " images each\n", "weights           ",
                mebibytes(gradient), "\n", "gradients         ", mebibytes(gradient),
                " a step, what a dense exchange between learners would carry\n",
                "optimizer state   ", mebibytes(state), "\n", "activations       ",
                mebibytes(per_image * o.batch_size), ", ", mebibytes(per_image),
                " an image (estimate)\n", "peak of the pool  ", mebibytes(peak), " (estimate)\n");
}

std::string config_text(const TrainResnetOptions& o, const FlagTable& flags) {
  const std::string rule =
      concat("default for ", data_kind_name(data_kind(o.data)), ", ", o.optimizer);
  return concat("# train_resnet of heddle ", HEDDLE_VERSION,
                "; run it again with --config and this file\n", flags.dump(rule));
}

}  // namespace heddle
