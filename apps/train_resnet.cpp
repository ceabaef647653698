// Trains, evaluates or applies a residual network. Read run() first: it is the whole program in
// order; Trainer::train_epoch holds the inner loop, Trainer::pass forward and backward.
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "apps/benchmarks/headroom.h"
#include "apps/checkpoint/saver.h"
#include "apps/checkpoint/signals.h"
#include "apps/cli/format.h"
#include "apps/cli/json.h"
#include "apps/cli/process.h"
#include "apps/cli/program.h"
#include "apps/cli/resnet_options.h"
#include "apps/log/training_log.h"
#include "apps/models/evaluate_images.h"
#include "apps/models/resnet_card.h"
#include "apps/models/weights.h"
#include "apps/session/check_options.h"
#include "apps/session/exchange.h"
#include "apps/session/learners.h"
#include "apps/session/resnet_setup.h"
#include "apps/session/run_report.h"
#include "apps/session/training_state.h"
#include "core/context.h"
#include "core/step_graph.h"
#include "core/streams.h"
#include "data/feed.h"
#include "layers/loss.h"
#include "optim/data_parallel.h"
#include "optim/schedule.h"

namespace heddle {
namespace {

constexpr int kGuesses = 5;

constexpr const char* kRateKey = "samples_per_s";

struct Outcome {
  TrainingResult run;
  Evaluation valid;
  nlohmann::ordered_json predictions;
  std::unique_ptr<RunFolder> folder;  // of a training, on the first rank
  std::string run_folder;             // its path
};

// What the program is to do, and what it has read for it; the same for all learners.
struct Job {
  const TrainResnetOptions& o;
  const FlagTable& flags;
  const Arguments& arguments;
  const ResnetCard& card;
  const Data &data, &valid;
  bool training;
};

// What a learner has of its own.
struct Learner {
  Context& context;
  Communicator& comm;
  const ResNet& model;
  ParameterStore& store;
};

// A training; the same for all its learners but for their share of the images.
struct Run {
  const TrainResnetOptions& o;
  const ResnetCard& card;
  const Loader &train, &valid;
  std::string config;  // as config.toml
};

class Trainer {
 public:
  // Folder and progress are null on all ranks but the first.
  Trainer(const Run& run, const Learner& learner, const Start& start, RunFolder* folder,
          Progress* progress)
      : o_(run.o),
        context_(learner.context),
        model_(learner.model),
        store_(learner.store),
        train_(run.train),
        valid_loader_(run.valid),
        class_count_(run.card.class_count),
        folder_(folder),
        progress_(progress),
        plan_(plan_steps(o_, train_)),
        batch_(start.batch),
        ahead_(start.ahead),
        schedule_(schedule_options(o_, plan_.total_steps, plan_.steps_per_epoch)),
        optimizer_(make_optimizer(o_, store_, learner.comm, plan_, folder, noting(progress))),
        graph_(make_step_graph(o_, store_, learner.comm.size(), noting(progress))),
        log_({.program = "train_resnet", .rate_key = kRateKey}, o_, context_, store_, optimizer_,
             folder, progress),
        saver_(o_,
               {.folder = folder == nullptr ? "" : folder->path(),
                .rank = learner.comm.rank(),
                .steps_per_epoch = plan_.steps_per_epoch,
                .start = start.checkpoint ? &*start.checkpoint : nullptr,
                .ahead = start.ahead},
               optimizer_, noting(progress)),
        parts_{.o = o_,
               .store = store_,
               .optimizer = optimizer_,
               .schedule = schedule_,
               .log = log_,
               .rank = learner.comm.rank(),
               .units = o_.batch_size * learner.comm.size(),
               .identity = start.identity,
               .config = run.config,
               .model = store_.named_tensors(),
               .metadata = resnet_metadata(run.card)} {
    if (!start.checkpoint) return;
    restore_training(parts_, *start.checkpoint, {}, noting(progress));
    valid_ = parse_evaluation(*start.checkpoint);
  }

  Outcome run() {
    if (log_.step() >= plan_.total_steps + ahead_ && batch_ > 0) {  // saved before its validation
      log_.finish_epoch();
      validate();
    }
    while (log_.step() < plan_.total_steps + ahead_ && log_.healthy()) {
      train_epoch();
      if (log_.healthy()) validate();
      if (folder_ != nullptr) folder_->flush();
      if (log_.healthy() && batch_ == 0) (void)after_step();
    }
    saver_.finish();
    log_.finish(saver_.last());
    return {
        .run = log_.result(), .valid = valid_, .predictions = {}, .folder = {}, .run_folder = {}};
  }

 private:
  // The inner loop.
  void train_epoch() {
    const int64_t batches = plan_.steps_per_epoch * o_.accumulate;
    double step_loss = 0;
    int64_t step_samples = 0;
    StepTimes t;
    BatchFeed feed(train_.epoch(log_.epoch(), batch_), train_.augmentation(), context_.device(),
                   activation_type(o_));
    while (feed.next()) {
      t.data += t.lap();
      const double lr = schedule_.lr(log_.step() - ahead_);
      if (!(graph_ ? recorded_pass(feed, lr, step_loss, t) : pass(feed, lr, step_loss, t))) return;
      const StepReport report = optimizer_.finish_step();
      t.update += t.lap();
      step_samples += feed.batch().count;
      if (++batch_ % o_.accumulate != 0) continue;

      if (!log_.finish_step(report,
                            {.loss = step_loss, .lr = lr, .units = step_samples, .times = t})) {
        return;
      }
      if (batch_ == batches || log_.step() == plan_.total_steps + ahead_) break;
      if (!after_step()) return;
      step_loss = 0;
      step_samples = 0;
      t = StepTimes{};
    }
    if (batch_ == batches) batch_ = 0;
    log_.finish_epoch();
  }

  // Forward and backward of one batch, whose loss is added to step_loss. False: it ends the run.
  bool pass(BatchFeed& feed, double lr, double& step_loss, StepTimes& t) {
    const FedBatch& batch = feed.batch();
    Tape tape({.training = true,
               .seed = static_cast<uint64_t>(o_.seed),
               .step = static_cast<uint64_t>(log_.step() * o_.accumulate + batch_ % o_.accumulate),
               .first_sample = batch.first_sample});
    const Var loss = forward(tape, Var(batch.images), batch.labels);
    step_loss += static_cast<double>(loss.value().item()) / static_cast<double>(o_.accumulate);
    t.forward += t.lap();
    if (!log_.check_loss(step_loss, lr)) return false;

    optimizer_.begin_step(lr);
    backward(tape, loss);
    (void)feed.prefetch();
    wait_for_stream();
    t.backward += t.lap();
    return true;
  }

  // The same, recorded as a CUDA graph once it has run a few times. No layer of a residual network
  // draws random numbers: nothing depends on the step but its batch. All its time counts as
  // backward's.
  bool recorded_pass(BatchFeed& feed, double lr, double& step_loss, StepTimes& t) {
    const FedBatch& batch = feed.batch();
    check_labels(batch.labels, class_count_);
    optimizer_.begin_step(lr);
    const std::vector<Tensor> out =
        graph_->run({batch.images, batch.labels}, [&](const std::vector<Tensor>& in) {
          Tape tape;
          const Var loss = forward(tape, Var(in[0]), in[1]);
          backward(tape, loss);
          return std::vector<Tensor>{loss.value()};
        });
    (void)feed.prefetch();
    step_loss = static_cast<double>(out[0].item());
    t.backward += t.lap();
    return log_.check_loss(step_loss, lr);
  }

  Var forward(Tape& tape, const Var& x, const Tensor& labels) const {
    return softmax_cross_entropy(tape, model_.forward(tape, x), labels,
                                 {.label_smoothing = static_cast<float>(o_.label_smoothing)});
  }

  void backward(Tape& tape, const Var& loss) {
    tape.backward(
        loss,
        [&](Parameter& p) {
          log_.gradient(p);
          optimizer_.ready(p);
        },
        [&](Parameter& p) { optimizer_.weights_free(p); });
  }

  // Between two updates. False: a signal ends the run here, or it has diverged.
  bool after_step() {
    const auto save = [&] {
      return save_training(parts_, batch_, {.json = evaluation_json(valid_)});
    };
    if (!saver_.after_step(log_.step(), save)) log_.stop();
    return log_.healthy();
  }

  void validate() {
    if (progress_ != nullptr) progress_->pause();
    average_buffers(store_, optimizer_);
    const Evaluation valid =
        evaluate(model_, valid_loader_, context_.device(), activation_type(o_), &optimizer_);
    schedule_.observe(valid.loss);
    char text[160];
    std::snprintf(text, sizeof text,
                  "train loss %.4f, valid loss %.4f, accuracy %.2f %% (top 5: %.2f %%)",
                  log_.result().train_loss, valid.loss, valid.acc1, valid.acc5);
    log_.evaluated("valid", valid.loss,
                   {{"acc1", valid.acc1},
                    {"acc5", valid.acc5},
                    {kRateKey, static_cast<double>(valid.samples) / valid.seconds}},
                   text);
    if (progress_ != nullptr) progress_->resume();
    valid_ = valid;
  }

  const TrainResnetOptions& o_;
  Context& context_;
  const ResNet& model_;
  ParameterStore& store_;
  const Loader &train_, &valid_loader_;
  int64_t class_count_;
  RunFolder* folder_;
  Progress* progress_;
  StepPlan plan_;
  int64_t batch_, ahead_;  // the next of the epoch; as in Start
  Schedule schedule_;
  DataParallelOptimizer optimizer_;
  std::unique_ptr<StepGraph> graph_;  // null: steps are not recorded
  TrainingLog log_;
  Saver saver_;
  TrainingParts parts_;
  Evaluation valid_;  // the last
};

// Best classes of each image: lines on stdout, or JSON for the final object.
nlohmann::ordered_json predict_all(const TrainResnetOptions& o, const ResNet& model,
                                   const ResnetCard& card, Device device) {
  const Augmentation prepare = evaluation_transform(card);
  nlohmann::ordered_json images = nlohmann::ordered_json::array();
  std::string text;
  for (const std::string& file : o.predict) {
    text += file + '\n';
    nlohmann::ordered_json guesses = nlohmann::ordered_json::array();
    for (const Guess& guess : predict(model, file, prepare, device, kGuesses)) {
      const auto label = static_cast<size_t>(guess.label);
      const std::string name =
          label < card.classes.size() ? card.classes[label] : concat("class ", label);
      char percent[32];
      std::snprintf(percent, sizeof percent, "  %6.2f %%  ", 100 * guess.probability);
      text += percent + name + '\n';
      guesses.push_back({{"class", name}, {"probability", guess.probability}});
    }
    images.push_back({{"image", file}, {"best", guesses}});
  }
  if (!o.json) print(text);
  return images;
}

std::string final_json(const TrainResnetOptions& o, const Outcome& out) {
  nlohmann::ordered_json json = begin_summary(out.run);
  json["valid_loss"] = out.valid.loss;
  json["valid_acc1"] = out.valid.acc1;
  json["valid_acc5"] = out.valid.acc5;
  end_summary(json, kRateKey, out.run, o.seed, out.run_folder);
  if (!out.predictions.empty()) json["predictions"] = out.predictions;
  return json_line(json);
}

// The result for people on stderr, for programs as the last line of stdout.
void report(const TrainResnetOptions& o, const Outcome& out) {
  if (o.json) print(final_json(o, out));
  if (o.quiet || out.valid.samples == 0) return;
  std::fprintf(stderr, "%s: accuracy %.2f %% (top 5: %.2f %%), loss %.4f on %lld images, %s, %s\n",
               out.run.status.c_str(), out.valid.acc1, out.valid.acc5, out.valid.loss,
               static_cast<long long>(out.valid.samples),
               format_duration(seconds_since_process_start()).c_str(),
               describe_memory(o.learners).c_str());
}

// Trains in a run folder of its own and leaves the weights there.
Outcome train(const Job& job, const Learner& learner) {
  const TrainResnetOptions& o = job.o;
  Communicator& comm = learner.comm;
  const Loader train_loader = make_loader(o, job.data, true, &comm),
               valid_loader = make_loader(o, job.valid, false, &comm);
  const StepPlan plan = plan_steps(o, train_loader);
  const Run run{o, job.card, train_loader, valid_loader, config_text(o, job.flags)};
  if (const auto done = find_finished(o, run.config, false, comm)) {
    const auto valid = [&](const char* key) { return FinishedRun::number(done->valid, key); };
    Outcome out;
    out.run = done->result;
    out.valid = {.loss = valid("loss"), .acc1 = valid("acc1"), .acc5 = valid("acc5")};
    out.run_folder = o.output_dir;
    load_weights(WeightsFile(o.output_dir), learner.store.named_tensors());
    return out;
  }
  const Start start = find_start(o, plan, o.batch_size * comm.size(),
                                 identity(o, job.card, train_loader.dataset()), comm);
  if (comm.rank() > 0) {
    Outcome out = Trainer(run, learner, start, nullptr, nullptr).run();
    finish_trace(o, {}, learner.context, comm);
    return out;
  }
  RunFiles files = open_run(o, run.config, job.arguments, learner.context, start.checkpoint);
  Progress progress({.total_steps = plan.total_steps + start.ahead,
                     .print_freq = o.print_freq,
                     .quiet = o.quiet});
  files.folder->warn_by(noting(&progress));
  progress.note("run folder " + files.folder->path());
  Outcome out = Trainer(run, learner, start, files.folder.get(), &progress).run();
  if (out.run.status == "done")
    save_resnet(files.folder->file("model.safetensors"), learner.store, job.card);
  finish_trace(o, files, learner.context, comm);
  finish_report(o, *files.folder, progress);
  out.run_folder = files.folder->path();
  out.folder = std::move(files.folder);
  return out;
}

// Steps on one batch, again and again, at a learning rate of 0.
int show_headroom(const TrainResnetOptions& o, const Learner& learner, const Loader& train) {
  auto epoch = train.epoch(0);
  const Batch& batch = *epoch.begin();
  const Var images(
      images_on(learner.context.device(), batch, train.augmentation(), activation_type(o)));
  return run_headroom(o, learner.store, learner.comm, plan_steps(o, train),
                      [&](DataParallelOptimizer& optimizer, const auto& backward_ended) {
                        for (int64_t micro = 0; micro < o.accumulate; ++micro) {
                          Tape tape({.training = true, .seed = static_cast<uint64_t>(o.seed)});
                          const Var loss = softmax_cross_entropy(
                              tape, learner.model.forward(tape, images), batch.labels,
                              {.label_smoothing = static_cast<float>(o.label_smoothing)});
                          optimizer.begin_step(0);
                          tape.backward(
                              loss, [&](Parameter& p) { optimizer.ready(p); },
                              [&](Parameter& p) { optimizer.weights_free(p); });
                          wait_for_stream();
                          backward_ended();
                          (void)optimizer.finish_step();
                        }
                      });
}

// --init may name a run folder or a file that says or shows what it holds: no flag has to be
// repeated.
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

// Weights that somebody has trained see the images of --evaluate as those of --predict.
void prepare_evaluation(const TrainResnetOptions& o, const ResnetCard& loaded,
                        const ResnetCard& card, Data& valid) {
  if (o.init.empty()) return;
  const bool as_they_are = valid.transform.crop == Crop::none && card.resize == 1;
  valid.transform = evaluation_transform(card);
  if (as_they_are) valid.transform.crop = Crop::none;
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

// The run of one learner.
int run_rank(const Job& job, Communicator& started) {
  const TrainResnetOptions& o = job.o;
  const Device device = learner_device(o, started);
  Context context({.device = device,
                   .threads = static_cast<int>(o.threads),
                   .tune = o.tune,
                   .deterministic = o.deterministic,
                   .tf32 = o.tf32});
  check_devices(o, started);
  const auto gpus = make_gpu_communicator(o, started);
  Communicator& comm = gpus == nullptr ? started : *gpus;
  ParameterStore store;
  const ResNet model(store, network_options(o, job.card));
  store.finalize(static_cast<uint64_t>(o.seed));
  if (!o.init.empty())
    load_weights(WeightsFile(o.init, o.head), store.named_tensors(),
                 {{"fc.", "another number of classes"}});
  if (!o.quiet && comm.rank() == 0)
    std::fprintf(stderr, "%s\n", describe(o, store, job.data, job.valid, comm).c_str());
  if (o.dry_run && comm.rank() > 0) return 0;
  if (o.dry_run)
    return print(describe_plan(o, context, model, store, make_loader(o, job.data, true, &comm))), 0;
  const Learner learner{context, comm, model, store};
  if (o.headroom > 0) return show_headroom(o, learner, make_loader(o, job.data, true, &comm));

  Outcome out;
  if (job.training) {
    out = train(job, learner);
  } else if (o.evaluate) {
    out.valid = evaluate(model, make_loader(o, job.valid, false), device, activation_type(o));
    if (!std::isfinite(out.valid.loss)) out.run.status = "diverged";
  }
  const int code = static_cast<int>(exit_code(out.run));
  if (comm.rank() > 0) return code;
  if (out.run.status == "done" && !o.predict.empty())
    out.predictions = predict_all(o, model, job.card, device);
  report(o, out);
  return code;
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
  const bool training = o.training, only_predict = !training && !o.evaluate;
  const int learners = o.parsed.learners.size;
  if (!training) check(learners == 1, "several learners: only for training");
  check_device(o);
  if (training) check_graph(o);
  Data data, valid;  // read by all learners
  if (training) {
    data = open_data(o, Split::train);
    check(data.set->size() >= learners, "learners: ", learners, " are more than the ",
          data.set->size(), " training images");
  }
  if (!only_predict) valid = open_data(o, Split::valid);
  const ResnetCard card = make_card(o, loaded, valid.set.get(), training);
  if (!training && valid.set != nullptr) prepare_evaluation(o, loaded, card, valid);
  if (training && !o.dry_run && o.headroom == 0) catch_signals();  // nothing else asks for them
  const Job job{o, flags, arguments, card, data, valid, training};
  return run_learners(o, [&](Communicator& comm) { return run_rank(job, comm); });
}
}  // namespace
}  // namespace heddle

int main(int argc, char** argv) {
  return heddle::run_program("train_resnet", argc, argv, heddle::run);
}
