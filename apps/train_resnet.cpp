// Trains, evaluates or applies a residual network. Read run() first: it is the whole program in
// order; Trainer::train_epoch holds the inner loop.
#include <cmath>
#include <cstdio>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/build_info.h"
#include "apps/evaluate.h"
#include "apps/options.h"
#include "apps/progress.h"
#include "apps/run_folder.h"
#include "apps/setup.h"
#include "apps/weights.h"
#include "core/context.h"
#include "core/files.h"
#include "layers/loss.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"

extern char** environ;

namespace heddle {
namespace {

constexpr int kGuesses = 5;

struct Outcome {
  std::string status = "done";
  int64_t epoch = 0, step = 0;
  double train_loss = NAN, samples_per_s = NAN, first_step_s = NAN;
  Evaluation valid;
  nlohmann::ordered_json predictions;
};

// Seconds of one update, by what they went into; lap() gives the time since the last call.
struct StepTimes {
  double data = 0, forward = 0, backward = 0, update = 0, last = wall_clock();
  double lap() {
    const double now = wall_clock(), seconds = now - last;
    last = now;
    return seconds;
  }
};

class Trainer {
 public:
  Trainer(const TrainResnetOptions& o, Context& context, const ResNet& model, ParameterStore& store,
          const Loader& train, const Loader& valid, RunFolder& folder, Progress& progress)
      : o_(o),
        context_(context),
        model_(model),
        train_(train),
        valid_(valid),
        folder_(folder),
        progress_(progress),
        plan_(plan_steps(o, train)),
        schedule_(make_schedule(o, plan_.total_steps, plan_.steps_per_epoch)),
        optimizer_(store, make_rule(o), optimizer_options()) {}

  Outcome run() {
    trace_step(1);
    while (out_.step < plan_.total_steps && out_.status == "done") {
      train_epoch();
      if (out_.status == "done") validate();
      folder_.flush();
    }
    out_.samples_per_s = static_cast<double>(samples_) / std::max(seconds_, 1e-9);
    return out_;
  }

 private:
  OptimizerOptions optimizer_options() {
    OptimizerOptions options;
    options.accumulate = static_cast<int>(o_.accumulate);
    options.clip_grad_norm = o_.clip_grad_norm;
    options.on_nonfinite = o_.on_nonfinite == "step" ? OnNonfinite::step : OnNonfinite::bucket;
    options.log = [this](const std::string& line) { progress_.note(line); };
    return options;
  }

  // The inner loop.
  void train_epoch() {
    double loss_sum = 0, step_loss = 0;
    int64_t micro = 0, epoch_steps = 0, step_samples = 0;
    StepTimes t;
    for (auto& batch : train_.epoch(out_.epoch)) {
      t.data += t.lap();
      Tape tape({.training = true,
                 .seed = static_cast<uint64_t>(o_.seed),
                 .step = static_cast<uint64_t>(out_.step * o_.accumulate + micro),
                 .first_sample = batch.first_sample});
      const Var x = network_input(batch.images, context_.device(), input_type(o_));
      const Var loss =
          softmax_cross_entropy(tape, model_.forward(tape, x), batch.labels,
                                {.label_smoothing = static_cast<float>(o_.label_smoothing)});
      step_loss += static_cast<double>(loss.value().item()) / static_cast<double>(o_.accumulate);
      t.forward += t.lap();
      if (!std::isfinite(step_loss)) return diverge("the loss is not finite");

      optimizer_.begin_step(schedule_.lr(out_.step));
      tape.backward(
          loss, [&](Parameter& p) { optimizer_.ready(p); },
          [&](Parameter& p) { optimizer_.weights_free(p); });
      t.backward += t.lap();
      const StepReport report = optimizer_.finish_step();
      t.update += t.lap();
      step_samples += batch.count;
      if (++micro % o_.accumulate != 0) continue;

      ++epoch_steps;
      finish_step(step_loss, step_samples, t);
      if (!check_skipped(report)) return;
      loss_sum += step_loss;
      out_.train_loss = loss_sum / static_cast<double>(epoch_steps);
      if (epoch_steps == plan_.steps_per_epoch || out_.step == plan_.total_steps) break;
      step_loss = 0;
      step_samples = 0;
      t = StepTimes{};
    }
    ++out_.epoch;
  }

  void finish_step(double loss, int64_t samples, const StepTimes& t) {
    const double lr = schedule_.lr(out_.step), seconds = t.data + t.forward + t.backward + t.update;
    ++out_.step;
    if (out_.step == 1) out_.first_step_s = seconds_since_process_start();
    // The first step also makes the kernels' plans; the rate is that of the steps behind it.
    if (out_.step <= 2) samples_ = 0, seconds_ = 0;
    samples_ += samples;
    seconds_ += seconds;
    folder_.metric({{"step", out_.step},
                    {"epoch", out_.epoch + 1},
                    {"split", "train"},
                    {"loss", loss},
                    {"lr", lr},
                    {"samples_per_s", static_cast<double>(samples) / std::max(seconds, 1e-9)},
                    {"t_data", t.data},
                    {"t_forward", t.forward},
                    {"t_backward", t.backward},
                    {"t_update", t.update}});
    progress_.step(out_.step, out_.epoch + 1, loss, lr, samples);
    trace_step(out_.step + 1);
  }

  bool check_skipped(const StepReport& report) {
    skipped_ = report.skipped_parameters > 0 ? skipped_ + 1 : 0;
    if (skipped_ > o_.max_skipped) {
      diverge(concat("gradients were not finite in ", skipped_, " steps in a row"));
    }
    return out_.status == "done";
  }

  void diverge(const std::string& why) {
    out_.status = "diverged";
    out_.train_loss = NAN;
    progress_.clear();
    std::fprintf(
        stderr,
        "train_resnet: diverged at step %lld, lr %g: %s; a lower --lr, --clip-grad-norm or "
        "--lr-warmup-epochs may help\n",
        static_cast<long long>(out_.step + 1), schedule_.lr(out_.step), why.c_str());
  }

  void trace_step(int64_t step) {
    if (o_.trace.empty()) return;
    const StepRange range = parse_step_range(o_.trace_steps);
    if (step == range.first) context_.trace().start();
    if (step == range.last + 1) context_.trace().stop();
  }

  void validate() {
    progress_.pause();
    out_.valid = evaluate(model_, valid_, context_.device(), input_type(o_));
    schedule_.observe(out_.valid.loss);
    folder_.metric(
        {{"step", out_.step},
         {"epoch", out_.epoch},
         {"split", "valid"},
         {"loss", out_.valid.loss},
         {"acc1", out_.valid.acc1},
         {"acc5", out_.valid.acc5},
         {"samples_per_s", static_cast<double>(out_.valid.samples) / out_.valid.seconds}});
    char text[160];
    std::snprintf(text, sizeof text,
                  "epoch %lld: train loss %.4f, valid loss %.4f, accuracy %.2f %% (top 5: %.2f %%)",
                  static_cast<long long>(out_.epoch), out_.train_loss, out_.valid.loss,
                  out_.valid.acc1, out_.valid.acc5);
    progress_.note(text);
    progress_.resume();
  }

  const TrainResnetOptions& o_;
  Context& context_;
  const ResNet& model_;
  const Loader &train_, &valid_;
  RunFolder& folder_;
  Progress& progress_;
  StepPlan plan_;
  Schedule schedule_;
  Optimizer optimizer_;
  Outcome out_;
  int64_t samples_ = 0, skipped_ = 0;
  double seconds_ = 0;
};

std::string version_text() {
  return concat("heddle ", HEDDLE_VERSION, " (", describe_build(), ")\n", library_versions(), "\n");
}

// stdout is data: a failure to write it (a full disk behind a redirection) is a failure of the run.
void print(const std::string& text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (!written || std::fflush(stdout) != 0) throw Error("stdout cannot be written");
}

// Best classes of each image: lines on stdout, or JSON for the final object.
nlohmann::ordered_json predict_all(const TrainResnetOptions& o, const ResNet& model,
                                   const ModelCard& card, Device device) {
  Augmentation prepare;
  prepare.size = static_cast<int>(o.image_size);
  prepare.normalization = card.normalization;
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

std::string final_json(const TrainResnetOptions& o, const Outcome& out, const RunFolder* folder) {
  nlohmann::ordered_json json = {{"status", out.status},
                                 {"epoch", out.epoch},
                                 {"step", out.step},
                                 {"train_loss", out.train_loss},
                                 {"valid_loss", out.valid.loss},
                                 {"valid_acc1", out.valid.acc1},
                                 {"valid_acc5", out.valid.acc5},
                                 {"samples_per_s", out.samples_per_s},
                                 {"wall_s", seconds_since_process_start()},
                                 {"first_step_s", out.first_step_s},
                                 {"peak_rss_bytes", peak_rss_bytes()},
                                 {"world_size", 1},
                                 {"seed", o.seed}};
  if (folder != nullptr) json["run_folder"] = folder->path();
  if (!out.predictions.empty()) json["predictions"] = out.predictions;
  return json_line(json);
}

// The result for people on stderr, for programs as the last line of stdout.
void report(const TrainResnetOptions& o, const Outcome& out, const RunFolder* folder) {
  if (o.json) print(final_json(o, out, folder));
  if (o.quiet || out.valid.samples == 0) return;
  std::fprintf(stderr, "%s: accuracy %.2f %% (top 5: %.2f %%), loss %.4f on %lld images, %s\n",
               out.status.c_str(), out.valid.acc1, out.valid.acc5, out.valid.loss,
               static_cast<long long>(out.valid.samples),
               format_duration(seconds_since_process_start()).c_str());
}

// Trains in a run folder of its own and leaves the weights there.
Outcome train(const TrainResnetOptions& o, const FlagTable& flags, const RunFacts& facts,
              Context& context, const ResNet& model, ParameterStore& store, const ModelCard& card,
              const Data& data, const Data& valid, std::unique_ptr<RunFolder>& folder) {
  const Loader train_loader = make_loader(o, data, true),
               valid_loader = make_loader(o, valid, false);
  std::unique_ptr<AtomicFile> trace;
  if (!o.trace.empty()) trace = std::make_unique<AtomicFile>(o.trace);
  const int64_t total = plan_steps(o, train_loader).total_steps;
  folder = std::make_unique<RunFolder>(RunFolder::create(o.output_dir, o.name));
  folder->write("config.toml", config_text(o, flags));
  folder->write("run.json", describe_run(facts));
  Progress progress({.total_steps = total, .print_freq = o.print_freq, .quiet = o.quiet});
  progress.note("run folder " + folder->path());
  Outcome out =
      Trainer(o, context, model, store, train_loader, valid_loader, *folder, progress).run();
  if (out.status == "done") save_weights(folder->file("model.safetensors"), store, card);
  if (trace != nullptr) {
    trace->write(context.trace().json());
    trace->commit();
  }
  return out;
}

// --init may name a run folder or a file that says what it holds: no flag has to be repeated.
ModelCard read_card(const TrainResnetOptions& o, FlagTable& flags) {
  if (o.init.empty()) return {};
  const ModelCard card = read_model_card(o.init);
  if (!card.arch.empty()) flags.suggest("arch", card.arch, o.init + ": arch");
  if (!card.stem.empty()) flags.suggest("stem", card.stem, o.init + ": stem");
  if (card.image_size > 0) {
    flags.suggest("image-size", std::to_string(card.image_size), o.init + ": image_size");
  }
  return card;
}

bool answer_questions(const TrainResnetOptions& o, const FlagTable& flags) {
  if (o.help)
    print(flags.help());
  else if (o.version)
    print(version_text());
  else if (o.list)
    print(list_choices());
  return o.help || o.version || o.list;
}

int run(const std::vector<std::string>& arguments, const std::vector<std::string>& environment) {
  TrainResnetOptions o;
  FlagTable flags = resnet_flags(o);
  flags.parse({arguments.begin() + 1, arguments.end()}, environment);
  if (answer_questions(o, flags)) return 0;
  const DataKind kind = data_kind(o.data);
  const ModelCard loaded = read_card(o, flags);
  resolve(o, flags, kind);
  if (o.dump_config) return print(config_text(o, flags)), 0;
  if (!o.quiet) {
    for (const std::string& line : flags.warnings()) std::fprintf(stderr, "%s\n", line.c_str());
  }

  const Device device = parse_device(o.device);
  Context context(
      {.device = device, .threads = static_cast<int>(o.threads), .deterministic = o.deterministic});
  const bool only_predict = !o.predict.empty() && !o.init.empty() && !o.evaluate &&
                            !flags.given("epochs") && !flags.given("steps");
  const bool training = !only_predict && !o.evaluate;
  Data data, valid;
  if (training) data = open_data(o, Split::train);
  if (!only_predict) valid = open_data(o, Split::valid);
  const ModelCard card = make_card(o, loaded, valid.set.get());

  ParameterStore store;
  const ResNet model(store, network_options(o, card));
  store.finalize(static_cast<uint64_t>(o.seed));
  if (!o.init.empty()) load_weights(o.init, store);
  if (!o.quiet) std::fprintf(stderr, "%s\n", describe(o, store, data, valid).c_str());
  if (o.dry_run)
    return print(describe_plan(o, context, model, store, make_loader(o, data, true))), 0;

  Outcome out;
  std::unique_ptr<RunFolder> folder;
  if (training) {
    const RunFacts facts = {arguments, o.seed, context.threads(), to_string(device), o.precision};
    out = train(o, flags, facts, context, model, store, card, data, valid, folder);
  } else if (o.evaluate) {
    out.valid = evaluate(model, make_loader(o, valid, false), device, input_type(o));
  }
  if (out.status == "done" && !o.predict.empty())
    out.predictions = predict_all(o, model, card, device);
  report(o, out, folder.get());
  return static_cast<int>(out.status == "done" ? ExitCode::ok : ExitCode::diverged);
}

}  // namespace
}  // namespace heddle

// The only place that catches: one line on stderr, and the documented exit code.
int main(int argc, char** argv) {
  using namespace heddle;
  try {
    std::vector<std::string> environment;
    for (char** entry = environ; *entry != nullptr; ++entry) environment.push_back(*entry);
    return run({argv, argv + argc}, environment);
  } catch (const Error& error) {
    std::fprintf(stderr, "train_resnet: %s\n", error.what());
    return static_cast<int>(error.exit_code());
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "train_resnet: out of memory\n");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "train_resnet: %s\n", error.what());
  }
  return static_cast<int>(ExitCode::runtime);
}
