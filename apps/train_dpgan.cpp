// Trains a generator of small pictures with differential privacy: DataLens in small (Wang et al.
// 2021, arXiv 2103.11109). Read run() first; DpganTraining::train_epoch() is the inner loop. The
// generated pictures are the parameters of the data-parallel optimizer: every teacher votes on
// their gradient, and the generator then follows the pictures that the noisy votes have moved.
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "apps/checkpoint/signals.h"
#include "apps/cli/dpgan_options.h"
#include "apps/cli/json.h"
#include "apps/cli/program.h"
#include "apps/models/picture_gan.h"
#include "apps/session/exchange.h"
#include "apps/session/session.h"
#include "core/safetensors.h"
#include "layers/loss.h"
#include "layers/weights.h"
#include "optim/optimizer.h"

namespace heddle {
namespace {

constexpr const char* kRateKey = "samples_per_s";
constexpr int64_t kScored = 10000;  // generated pictures that the score's network learns on
constexpr int64_t kSheetRows = 10;

// The task of the program and the data that it has read, the same for all learners.
struct Job {
  const TrainDpganOptions& o;
  const FlagTable& flags;
  const Arguments& arguments;
  const ImageDataset& set;
  const Pictures& real;  // for validation
  int64_t classes() const { return set.class_count(); }
};

// Returns the random numbers of a step's pictures: `use` 0 for votes, from 1 on for teachers.
Philox noise_of(const TrainDpganOptions& o, int64_t step, int64_t use) {
  const auto key = static_cast<uint64_t>(step * (o.teacher_steps + 1) + use + 1);
  return {static_cast<uint64_t>(o.seed), stream_id(Stream::sample, key)};
}

// Returns the pictures and the sheet that a validation looks at, the same in every one.
Pictures samples(const TrainDpganOptions& o, const Generator& generator, int64_t count) {
  return generator.generate(count, {static_cast<uint64_t>(o.seed), stream_id(Stream::sample)});
}

PictureScore score(const Job& job, const Generator& generator) {
  return picture_score(samples(job.o, generator, kScored), job.real, job.classes(),
                       static_cast<uint64_t>(job.o.seed));
}

class DpganTraining : public TrainingLoop {
 public:
  // `pictures`: the optimizer's store, one parameter for each picture, in the order of memory.
  DpganTraining(const Job& job, Learner& learner, ParameterStore& weights,
                const Generator& generator, Teachers& teachers, Session& session)
      : TrainingLoop(session),
        job_(job),
        o_(job.o),
        learner_(learner),
        generator_(generator),
        teachers_(teachers),
        adam_(weights, make_adam({.beta1 = 0.5})) {
    if (session.checkpoint() == nullptr) return;
    const nlohmann::json own = session.own_json({"acc1"});
    valid_ = {number_at(own, "valid_loss"), number_at(own, "acc1")};
  }

  // The inner loop: teachers learn, vote, and the generator follows.
  void train_epoch() override {
    StepFacts step;
    StepReport report;
    do {
      step = {.lr = session_.lr(), .units = teachers_.count()};
      StepTimes& t = step.times;
      const int64_t fakes = 2 * o_.batch_size, before = log_.step() * o_.teacher_steps;
      for (int64_t i = 0; i < o_.teacher_steps; ++i)
        step.loss = teachers_.train(
            generator_.generate(fakes, noise_of(o_, log_.step(), i + 1), (before + i) * fakes),
            o_.teacher_lr);
      t.forward += t.lap();

      Tape tape;
      const Tensor labels =
          labels_in_turn(o_.batch_size, job_.classes(), log_.step() * o_.batch_size);
      const Var made = generator_.forward(tape, labels, noise_of(o_, log_.step(), 0));
      pictures().copy_from(made.value());
      optimizer_.set_micro_steps(to_int(teachers_.count()));
      for (int64_t i = 0; i < teachers_.count(); ++i) {
        optimizer_.begin_step(1);
        take_gradient(teachers_.gradient(i, {made.value(), labels}));
        report = optimizer_.finish_step();
      }
      t.backward += t.lap();

      adam_.begin_step(step.lr);
      tape.backward(mse_loss(tape, made, Var(pictures())));
      (void)adam_.finish_step();
      t.update += t.lap();
    } while (session_.finish_step(report, step));
  }

  double validate() override {
    if (learner_.is_first()) {
      valid_ = score(job_, generator_);
      session_.folder()->write_optional(
          concat("samples-", log_.step(), ".png"),
          sample_sheet(samples(o_, generator_, kSheetRows * job_.classes()), job_.classes()));
    }
    optimizer_.collective("evaluation", [&](Communicator& comm) {
      const auto all = gather_values(comm, std::vector{valid_.loss, valid_.accuracy});
      valid_ = {all[0][0], all[0][1]};
    });
    char text[160];
    std::snprintf(text, sizeof text,
                  "teachers' loss %.4f, accuracy of a network that learned on generated pictures "
                  "%.2f %%",
                  log_.result().train_loss, valid_.accuracy);
    log_.evaluated("valid", valid_.loss, {{"acc1", valid_.accuracy}}, text);
    return valid_.loss;
  }

  OwnState own_state() const override {
    OwnState own{.rank = teachers_.named_state()};
    for (const auto& [name, x] : adam_.named_state())
      own.shared.emplace_back("generator." + name, x);
    own.json = {{"valid_loss", nullptr}};
    if (!std::isnan(valid_.loss))
      own.json = {{"valid_loss", valid_.loss}, {"acc1", valid_.accuracy}};
    return own;
  }

  const PictureScore& valid() const { return valid_; }

 private:
  Tensor pictures() {
    return learner_.store.values()
        .slice(0, o_.batch_size * Pictures::kPixels)
        .reshape({o_.batch_size, Pictures::kPixels});
  }
  void take_gradient(const Tensor& gradient) {
    for (Parameter& p : learner_.store.parameters()) {
      p.grad.copy_from(gradient.reshape({gradient.size()}).slice(p.offset, p.offset + p.size()));
      p.written = true;
    }
  }

  const Job& job_;
  const TrainDpganOptions& o_;
  Learner& learner_;
  const Generator& generator_;
  Teachers& teachers_;
  Optimizer adam_;  // of the generator; its gradients are the same on all ranks
  PictureScore valid_;
};

StepPlan plan_steps(const TrainDpganOptions& o) {
  return {.steps_per_epoch = (o.steps + o.epochs - 1) / o.epochs,
          .total_steps = o.steps,
          .voters = to_double(o.teachers) / o.parsed.learners.size,
          .units = o.teachers};
}

std::string config_text(const TrainDpganOptions& o, const FlagTable& flags) {
  return format_config("train_dpgan", "default of train_dpgan, " + o.compress, flags);
}

void set_results(const TrainDpganOptions& o, const PictureScore& valid, Outcome& out) {
  out.results = {{"valid_loss", valid.loss}, {"valid_acc1", valid.accuracy}};
  if (o.quiet || std::isnan(valid.loss)) return;
  char text[120];
  std::snprintf(text, sizeof text, "accuracy %.2f %% on real pictures, after learning on generated",
                valid.accuracy);
  out.text = text;
}

// Trains in a run folder and saves the generator there.
Outcome train(const Job& job, Learner& learner, ParameterStore& weights,
              const Generator& generator) {
  const TrainDpganOptions& o = job.o;
  const StepPlan plan = plan_steps(o);
  const std::string config = config_text(o, job.flags);
  Outcome out;
  if (const auto done = find_finished(o, config, false, weights.named_tensors(), learner.comm)) {
    out = {.run = done->result, .run_folder = o.output_dir};
    set_results(o, {number_at(done->valid, "loss"), number_at(done->valid, "acc1")}, out);
    return out;
  }
  // This rank's teachers, and the images that each has to itself.
  const int64_t rank = learner.comm.rank(), ranks = learner.comm.size();
  const int64_t first = o.teachers * rank / ranks, last = o.teachers * (rank + 1) / ranks;
  Teachers teachers(read_pictures(job.set, first * o.images_each, last * o.images_each),
                    last - first, job.classes(), static_cast<uint64_t>((o.seed << 20) + first));
  std::map<std::string, std::string> metadata = {{"format", "pt"}, {"arch", "dpgan"}};
  Session session(o, job.arguments, learner,
                  {.log = {.program = "train_dpgan", .rate_key = kRateKey},
                   .unit = "votes",
                   .plan = plan,
                   .schedule = schedule_options(o, plan),
                   .identity = {{"program", "train_dpgan"},
                                {"data", job.set.info().name},
                                {"images", job.set.size()},
                                {"classes", job.set.classes()},
                                {"batch-size", o.batch_size},
                                {"steps of an epoch", plan.steps_per_epoch},
                                {"privacy-unit", privacy_unit(o)}},
                   .config = config,
                   .model = weights.named_tensors(),
                   .metadata = metadata});
  DpganTraining training(job, learner, weights, generator, teachers, session);
  session.run(training);
  if (session.log().running())
    session.save_weights([&](const std::string& file) {
      metadata["privacy"] = privacy_text(*session.log().result().privacy);
      save_safetensors(file, weights.named_tensors(), metadata);
    });
  out = session.finish();
  set_results(o, training.valid(), out);
  return out;
}

// Runs one learner and returns its exit code.
int run_rank(const Job& job, Communicator& started) {
  const TrainDpganOptions& o = job.o;
  Learner learner(o, started);
  for (int64_t i = o.batch_size; i-- > 0;)  // the first in memory is created last
    learner.store.add(concat("picture.", i), {Pictures::kPixels}, constant_init(0));
  learner.finalize_store();
  ParameterStore weights;
  const Generator generator(weights, job.classes());
  weights.finalize(static_cast<uint64_t>(o.seed));
  if (!o.init.empty()) load_weights(WeightsFile(o.init), weights.named_tensors());
  learner.announce(concat("generator, ", describe_size(weights), " | ", o.teachers, " teachers of ",
                          o.images_each, " images | ", job.set.info().name, ", ", job.classes(),
                          " classes", describe_machine_use(o, weights, learner.comm)));
  if (o.dry_run) {
    const StepPlan steps = plan_steps(o);
    const ExchangePlan exchange = plan_exchange(o, learner.store, steps);
    if (learner.is_first())
      print(o.json ? json_line({{"parameters", weights.count()},
                                {"steps", steps.total_steps},
                                {"exchange_bytes_per_step", exchange.payload},
                                {"epsilon", exchange.epsilon}})
                   : concat("steps             ", steps.total_steps, ", ", o.batch_size,
                            " pictures each\nprivacy           ", exchange.privacy, '\n'));
    return 0;
  }
  Outcome out;
  if (o.training)
    out = train(job, learner, weights, generator);
  else
    set_results(o, score(job, generator), out);
  return report(o, kRateKey, learner, out);
}

int run(const Arguments& arguments, const Arguments& environment) {
  watch_signals();
  TrainDpganOptions o;
  FlagTable flags = dpgan_flags(o);
  flags.parse({arguments.begin() + 1, arguments.end()}, environment);
  if (answer_questions(o, flags, list_row("compressors:", {"topagg"}))) return 0;
  o.data = find_data(o.data, "shapes");
  resolve(o, flags);
  check_options(o);
  if (o.dump_config) return print(config_text(o, flags)), 0;
  print_warnings(o, flags);
  (void)check_machine(o);

  const DatasetOptions options{.image_size = to_int(Pictures::kSide),
                               .train_images = o.teachers * o.images_each,
                               .seed = static_cast<uint64_t>(o.seed),
                               .upright = true};
  const std::string path = o.data == "shapes" ? "" : o.data;
  const auto set = open_dataset(path, Split::train, options);
  check(set->info().image_size > 0, "--data ", o.data,
        ": expected CIFAR binary files or shapes, found a folder of images, sorted by class");
  check(set->size() >= o.teachers * o.images_each, "--teachers ", o.teachers,
        " with --images-each ", o.images_each, ": expected as many images, found ", set->size());
  const auto valid = open_dataset(path, Split::valid, options);
  Context context({.threads = 1});  // of the pictures that all learners share
  const Pictures real = read_pictures(*valid, 0, std::min<int64_t>(valid->size(), 1000));
  const Job job{o, flags, arguments, *set, real};
  return start_learners(o, [&](Communicator& comm) { return run_rank(job, comm); });
}
}  // namespace
}  // namespace heddle

int main(int argc, char** argv) {
  return heddle::run_program("train_dpgan", argc, argv, heddle::run);
}
