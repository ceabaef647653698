// Trains, evaluates or applies a residual network. Read run() first: it is the whole program in
// order; ResNetTraining::train_epoch() is the inner loop.
#include <cmath>
#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "apps/benchmarks/headroom.h"
#include "apps/checkpoint/signals.h"
#include "apps/cli/json.h"
#include "apps/cli/program.h"
#include "apps/cli/resnet_options.h"
#include "apps/models/evaluate_images.h"
#include "apps/models/resnet_card.h"
#include "apps/session/resnet_setup.h"
#include "apps/session/session.h"
#include "core/kernels.h"
#include "core/streams.h"
#include "data/feed.h"
#include "data/image.h"
#include "layers/loss.h"
#include "layers/weights.h"

namespace heddle {
namespace {

constexpr int kGuesses = 5;

constexpr const char* kRateKey = "samples_per_s";

// The task of the program and the data that it has read, the same for all learners.
struct Job {
  const TrainResnetOptions& o;
  const FlagTable& flags;
  const Arguments& arguments;
  const ResnetCard& card;
  const Data &data, &valid;
};

Var loss_of(const TrainResnetOptions& o, const ImageClassifier& model, Tape& tape,
            const Tensor& images, const Tensor& labels) {
  return softmax_cross_entropy(tape, model.forward(tape, Var(images)), labels,
                               {.label_smoothing = to_float(o.label_smoothing)});
}

class ResNetTraining : public TrainingLoop {
 public:
  ResNetTraining(const Job& job, Learner& learner, const ImageClassifier& model,
                 const Loader& train, const Loader& valid, Session& session)
      : TrainingLoop(session),
        o_(job.o),
        card_(job.card),
        learner_(learner),
        model_(model),
        train_(train),
        valid_loader_(valid) {
    if (session.checkpoint() != nullptr)
      valid_ = parse_evaluation(session.own_json({"acc1", "acc5", "samples"}), "valid_loss");
  }

  // The inner loop: an update from the mean gradient of --accumulate batches.
  void train_epoch() override {
    BatchFeed feed(train_.epoch(log_.epoch(), session_.batch()), train_.augmentation(),
                   learner_.context.device(), activation_type(o_));
    StepFacts step;
    StepReport report;
    do {
      step = {.lr = session_.lr()};
      int64_t batches = o_.accumulate;
      if (o_.dp.unit == "group") {
        batches = feed.batches_in_step(session_.batch());
        optimizer_.set_micro_steps(to_int(batches));
      }
      for (int64_t micro = 0; micro < batches && feed.next(); ++micro) {
        const FedBatch& batch = feed.batch();
        StepTimes& t = step.times;
        t.data += t.lap();
        if (batch.count == 0) {  // no group of this learner votes
          optimizer_.begin_step(step.lr);
        } else if (session_.graph() != nullptr) {
          step.loss = recorded_pass(feed, step.lr);
          if (!log_.check_loss(step.loss, step.lr)) return;
        } else {
          Tape tape({.training = true,
                     .seed = static_cast<uint64_t>(o_.seed),
                     .step = static_cast<uint64_t>(log_.step() * o_.accumulate + micro),
                     .first_sample = batch.first_sample});
          const Var loss = loss_of(o_, model_, tape, batch.images, batch.labels);
          step.loss += to_double(loss.value().item()) / to_double(batches);
          t.forward += t.lap();
          if (!log_.check_loss(step.loss, step.lr)) return;

          optimizer_.begin_step(step.lr);
          tape.backward(loss, ready_, weights_free_);
          (void)feed.prefetch();
          wait_for_stream();
        }
        t.backward += t.lap();
        report = optimizer_.finish_step();
        t.update += t.lap();
        step.units += batch.count;
      }
    } while (session_.finish_step(report, step));
  }

  double validate() override {
    average_buffers(learner_.store, optimizer_);
    Mistakes mistakes(card_.class_count);
    valid_ = evaluate(model_, valid_loader_, learner_.context.device(), activation_type(o_),
                      &optimizer_, &mistakes);
    if (o_.report && session_.folder() != nullptr && !is_voting(o_)) write_mistakes(mistakes);
    char text[160];
    std::snprintf(text, sizeof text,
                  "train loss %.4f, valid loss %.4f, accuracy %.2f %% (top 5: %.2f %%)",
                  log_.result().train_loss, valid_.loss, valid_.acc1, valid_.acc5);
    log_.evaluated("valid", valid_.loss,
                   {{"acc1", valid_.acc1},
                    {"acc5", valid_.acc5},
                    {kRateKey, to_double(valid_.samples) / valid_.seconds}},
                   text);
    return valid_.loss;
  }

  OwnState own_state() const override { return {.json = evaluation_json(valid_)}; }

  const Evaluation& valid() const { return valid_; }  // the last

 private:
  // Runs forward and backward as a CUDA graph, which is recorded after a few steps, and returns the
  // loss. Only the batch varies from step to step: no layer of a residual network draws random
  // numbers. All its time is counted as backward time.
  double recorded_pass(BatchFeed& feed, double lr) {
    const FedBatch& batch = feed.batch();
    check_indices(batch.labels, card_.class_count, "labels");
    optimizer_.begin_step(lr);
    const std::vector<Tensor> out =
        session_.graph()->run({batch.images, batch.labels}, [&](const std::vector<Tensor>& in) {
          Tape tape;
          const Var loss = loss_of(o_, model_, tape, in[0], in[1]);
          tape.backward(loss, ready_, weights_free_);
          return std::vector<Tensor>{loss.value()};
        });
    (void)feed.prefetch();
    return to_double(out[0].item());
  }

  // Writes the mistakes of a validation, which the report draws.
  void write_mistakes(const Mistakes& mistakes) {
    constexpr const char* kName = "mistakes.json";
    try {
      auto json = mistakes.json(valid_loader_, card_.classes);
      json["epoch"] = log_.epoch();
      session_.folder()->write_optional(kName, json_line(json));
    } catch (const std::exception& error) {  // an image that can no longer be read
      session_.folder()->note_trouble(kName, error.what());
    }
  }

  const TrainResnetOptions& o_;
  const ResnetCard& card_;
  Learner& learner_;
  const ImageClassifier& model_;
  const Loader &train_, &valid_loader_;
  Evaluation valid_;
};

void set_results(const TrainResnetOptions& o, const Evaluation& valid, Outcome& out) {
  out.results = {
      {"valid_loss", valid.loss}, {"valid_acc1", valid.acc1}, {"valid_acc5", valid.acc5}};
  if (o.quiet || (valid.samples == 0 && std::isnan(valid.loss))) return;
  char text[160];
  std::snprintf(text, sizeof text, "accuracy %.2f %% (top 5: %.2f %%), loss %.4f", valid.acc1,
                valid.acc5, valid.loss);
  // The number of images is not in the log of a run that was complete already.
  out.text = concat(text, valid.samples == 0 ? "" : concat(" on ", valid.samples, " images"));
}

// Trains in a run folder and saves the weights there.
Outcome train(const Job& job, Learner& learner, const ImageClassifier& model) {
  const TrainResnetOptions& o = job.o;
  const Loader train = make_loader(o, job.data, true, &learner.comm),
               valid = make_loader(o, job.valid, false, &learner.comm);
  const StepPlan plan = plan_steps(o, train);
  const std::string config = config_text(o, job.flags);
  Outcome out;
  if (const auto done =
          find_finished(o, config, false, learner.store.named_tensors(), learner.comm)) {
    out = {.run = done->result, .run_folder = o.output_dir};
    set_results(o, parse_evaluation(done->valid, "loss"), out);
    return out;
  }
  Session session(o, job.arguments, learner,
                  {.log = {.program = "train_resnet", .rate_key = kRateKey},
                   .unit = "images",
                   .units_per_batch = o.dp.unit == "group" ? 1 : o.batch_size * learner.comm.size(),
                   .plan = plan,
                   .schedule = schedule_options(o, plan),
                   .identity = identity(o, job.card, train.dataset()),
                   .config = config,
                   .model = learner.store.named_tensors(),
                   .metadata = resnet_metadata(job.card)});
  ResNetTraining training(job, learner, model, train, valid, session);
  session.run(training);
  ResnetCard card = job.card;
  if (const auto& privacy = session.log().result().privacy) card.privacy = privacy_text(*privacy);
  if (session.log().running())
    session.save_weights([&](const auto& file) { save_resnet(file, learner.store, card); });
  out = session.finish();
  set_results(o, training.valid(), out);
  return out;
}

// Returns each image's best classes, for the final JSON object; prints them unless --json is given.
nlohmann::ordered_json predict_all(const TrainResnetOptions& o, const ImageClassifier& model,
                                   const ResnetCard& card, Device device) {
  const Augmentation prepare = evaluation_transform(card);
  nlohmann::ordered_json images = nlohmann::ordered_json::array();
  std::string text;
  for (const std::string& file : o.predict)
    images.push_back(guesses_json("image", file, predict(model, file, prepare, device, kGuesses),
                                  card.classes, text));
  if (!o.json) print(text);
  return images;
}

// Runs one learner and returns its exit code.
int run_rank(const Job& job, Communicator& started) {
  const TrainResnetOptions& o = job.o;
  Learner learner(o, started);
  const Device device = learner.context.device();
  const auto network = make_network(o, job.card, learner.store);
  const ImageClassifier& model = *network;
  learner.finalize_store();
  if (!o.init.empty()) load_initial(o, learner.store);
  learner.announce(describe(o, learner.store, job.data, job.valid, learner.comm));
  const int64_t step_images = o.batch_size * learner.comm.size();
  if (o.training && o.dp.unit != "group" && step_images > job.data.set->size())
    learner.announce(concat("a step asks for ", step_images, " images, but there are only ",
                            job.data.set->size(), ": every step takes all of them"));
  if (o.dry_run) {
    if (learner.is_first())
      print(describe_plan(o, learner.context, model, learner.store,
                          make_loader(o, job.data, true, &learner.comm)));
    return 0;
  }
  if (o.headroom > 0) {
    const Loader loader = make_loader(o, job.data, true, &learner.comm);
    auto epoch = loader.epoch(0);
    const Batch& batch = *epoch.begin();
    const Tensor images = images_on(device, batch, loader.augmentation(), activation_type(o));
    return run_headroom(o, learner.store, learner.comm, plan_steps(o, loader),
                        [&](Tape& tape) { return loss_of(o, model, tape, images, batch.labels); });
  }
  Outcome out;
  if (o.training) {
    out = train(job, learner, model);
  } else {
    Evaluation valid;
    if (o.evaluate)
      valid = evaluate(model, make_loader(o, job.valid, false), device, activation_type(o));
    if (o.evaluate && !std::isfinite(valid.loss)) out.run.status = "diverged";
    set_results(o, valid, out);
  }
  if (learner.is_first() && out.run.status == "done" && !o.predict.empty())
    if (auto guesses = predict_all(o, model, job.card, device); !guesses.empty())
      out.appended["predictions"] = std::move(guesses);
  return report(o, kRateKey, learner, out);
}

int run(const Arguments& arguments, const Arguments& environment) {
  watch_signals();
  TrainResnetOptions o;
  FlagTable flags = resnet_flags(o);
  flags.parse({arguments.begin() + 1, arguments.end()}, environment);
  if (answer_questions(o, flags, list_choices())) return 0;
  o.data = find_data(o.data, "shapes");
  const DataKind kind = data_kind(o.data);
  const ResnetCard loaded = read_card(o, flags);
  resolve(o, flags, kind);
  check_options(o);
  if (o.dump_config) return print(config_text(o, flags)), 0;
  print_warnings(o, flags);
  const int learners = check_machine(o);

  Data data, valid;  // read by all learners
  if (o.training || o.dry_run) {
    data = open_data(o, Split::train);
    check(data.set->size() >= learners, "learners: expected at most ", data.set->size(),
          ", the number of training images, found ", learners);
    for (const std::string& file : o.predict) check_image_header(file);
  }
  if (o.training || o.evaluate) valid = open_data(o, Split::valid);
  const ResnetCard card = make_card(o, loaded, valid.set.get(), o.training);
  if (continues_weights(o))
    data.transform.normalization = valid.transform.normalization = card.normalization;
  if (!o.training && o.evaluate) prepare_evaluation(o, loaded, card, flags.given("data"), valid);
  const Job job{o, flags, arguments, card, data, valid};
  return start_learners(o, [&](Communicator& comm) { return run_rank(job, comm); });
}
}  // namespace
}  // namespace heddle

int main(int argc, char** argv) {
  return heddle::run_program("train_resnet", argc, argv, heddle::run);
}
