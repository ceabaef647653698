// Trains or evaluates a language model, or lets it write. Read run() first: it is the whole program
// in order; Trainer::train_epoch holds the inner loop.
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "apps/benchmarks/headroom.h"
#include "apps/checkpoint/saver.h"
#include "apps/checkpoint/signals.h"
#include "apps/cli/format.h"
#include "apps/cli/json.h"
#include "apps/cli/lm_options.h"
#include "apps/cli/process.h"
#include "apps/cli/program.h"
#include "apps/log/training_log.h"
#include "apps/models/evaluate_text.h"
#include "apps/models/lm_card.h"
#include "apps/models/weights.h"
#include "apps/session/check_options.h"
#include "apps/session/exchange.h"
#include "apps/session/learners.h"
#include "apps/session/lm_setup.h"
#include "apps/session/run_report.h"
#include "apps/session/training_state.h"
#include "core/context.h"
#include "core/step_graph.h"
#include "core/streams.h"
#include "layers/embedding.h"
#include "layers/loss.h"
#include "optim/data_parallel.h"
#include "optim/schedule.h"

namespace heddle {
namespace {

constexpr const char* kRateKey = "tokens_per_s";

struct Outcome {
  TrainingResult run;
  TextEvaluation valid, test;  // of the weights that are saved
  std::string generated;
  std::unique_ptr<RunFolder> folder;  // of a training, on the first rank
  std::string run_folder;             // its path
};

// What the program is to do, and what it has read for it; the same for all learners.
struct Job {
  const TrainLmOptions& o;
  const FlagTable& flags;
  const Arguments& arguments;
  const Corpus& corpus;
  const Vocabulary& vocabulary;
  bool training;
};

// What a learner has of its own.
struct Learner {
  Context& context;
  Communicator& comm;
  const LstmLm& model;
  ParameterStore& store;
};

class Trainer {
 public:
  // Folder and progress are null on all ranks but the first.
  Trainer(const Job& job, const Learner& learner, const std::string& config, const Start& start,
          RunFolder* folder, Progress* progress)
      : o_(job.o),
        model_(learner.model),
        store_(learner.store),
        corpus_(job.corpus),
        vocabulary_(job.vocabulary.size()),
        folder_(folder),
        progress_(progress),
        windows_(make_batches(o_, corpus_, learner.comm)),
        plan_(plan_steps(o_, windows_)),
        schedule_(make_schedule(o_, plan_)),
        optimizer_(make_optimizer(o_, store_, learner.comm, plan_, folder, noting(progress))),
        graph_(make_step_graph(o_, store_, learner.comm.size(), noting(progress))),
        log_({.program = "train_lm",
              .rate_key = kRateKey,
              .metrics = [&o = o_](double loss) -> nlohmann::ordered_json {
                return {{score_key(o), score(o, loss)}};
              }},
             o_, learner.context, store_, optimizer_, folder, progress),
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
               .units = units_per_batch(o_, learner.comm.size()),
               .identity = start.identity,
               .config = config,
               .model = model_.named_tensors(),
               .metadata = lm_metadata(model_, corpus_.level, corpus_.vocabulary)},
        batch_(start.batch),
        ahead_(start.ahead),
        state_(model_.zero_state(o_.batch_size)) {
    if (start.checkpoint) restore(*start.checkpoint);
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
    if (log_.healthy() && best_.defined()) store_.values().copy_from(best_);
    return {.run = log_.result(),
            .valid = valid_,
            .test = {},
            .generated = "",
            .folder = {},
            .run_folder = {}};
  }

  TextEvaluation test() {
    const TextEvaluation test = evaluate_together(model_, corpus_.test, optimizer_);
    record("test", test, "test " + score_text(o_, test.loss));
    if (folder_ != nullptr) folder_->flush();
    return test;
  }
  const std::string& status() const { return log_.result().status; }

 private:
  // The inner loop. The state of the network is carried from window to window; the gradient is not.
  void train_epoch() {
    const int64_t batches = plan_.steps_per_epoch * o_.accumulate;
    if (batch_ == 0) state_ = model_.zero_state(o_.batch_size);
    double step_loss = 0;  // sum over tokens
    int64_t step_tokens = 0;
    StepTimes t;
    while (batch_ < batches) {
      const TokenWindow window = windows_.window(batch_);
      t.data += t.lap();
      const int64_t micro = batch_++ % o_.accumulate;
      const double lr = schedule_.lr(log_.step() - ahead_);
      const double loss = graph_ ? recorded_pass(window, lr, t) : pass(window, micro, lr, t);
      if (!log_.healthy()) return;
      step_loss += loss * static_cast<double>(window.targets.size());
      step_tokens += window.targets.size();
      const StepReport report = optimizer_.finish_step();
      t.update += t.lap();
      if (micro + 1 < o_.accumulate) continue;

      const double mean = step_loss / static_cast<double>(step_tokens);
      // Learners find out together, when losses are averaged.
      const double hopeful = std::isfinite(perplexity(mean)) ? mean : NAN;
      if (!log_.finish_step(report,
                            {.loss = hopeful, .lr = lr, .units = step_tokens, .times = t})) {
        return;
      }
      if (batch_ == batches || log_.step() == plan_.total_steps + ahead_) break;
      if (!after_step()) return;
      step_loss = 0;
      step_tokens = 0;
      t = StepTimes{};
    }
    if (batch_ == batches) batch_ = 0;
    log_.finish_epoch();
  }

  // Forward and backward of one window; its loss, with which the run may have diverged.
  double pass(const TokenWindow& window, int64_t micro, double lr, StepTimes& t) {
    Tape tape({.training = true,
               .seed = static_cast<uint64_t>(o_.seed),
               .step = static_cast<uint64_t>(log_.step() * o_.accumulate + micro),
               .first_sample = window.first_column});
    const Var loss = forward(tape, window.inputs, window.targets, state_);
    const double value = loss.value().item();
    t.forward += t.lap();
    if (!check_loss(value, lr)) return value;

    optimizer_.begin_step(lr);
    backward(tape, loss, window.targets.size());
    wait_for_stream();
    t.backward += t.lap();
    return value;
  }

  // The same, recorded as a CUDA graph once it has run a few times. All its time counts as
  // backward's.
  double recorded_pass(const TokenWindow& window, double lr, StepTimes& t) {
    check_tokens(window.inputs, vocabulary_, "inputs");
    check_labels(window.targets, vocabulary_);
    const Tensor counters = Tensor::empty_on(Device{}, {2}, DType::i64);
    counters.data<int64_t>()[0] = log_.step();
    counters.data<int64_t>()[1] = window.first_column;
    optimizer_.begin_step(lr);
    const std::vector<Tensor> out =
        graph_->run({window.inputs, window.targets, counters, state_.h, state_.c},
                    [&](const std::vector<Tensor>& in) {
                      Tape tape({.seed = static_cast<uint64_t>(o_.seed), .counters = in[2]});
                      LstmState state{in[3], in[4]};
                      const Var loss = forward(tape, in[0], in[1], state);
                      backward(tape, loss, in[1].size());
                      return std::vector<Tensor>{loss.value(), state.h, state.c};
                    });
    state_ = {out[1], out[2]};
    const double value = out[0].item();
    t.backward += t.lap();
    (void)check_loss(value, lr);
    return value;
  }

  Var forward(Tape& tape, const Tensor& inputs, const Tensor& targets, LstmState& state) const {
    const Var logits = model_.forward(tape, inputs, state);
    return softmax_cross_entropy(tape, logits, targets, {.overwrite_logits = true});
  }

  // The loss is a mean over tokens. The last window of an epoch may be shorter: its gradient is
  // scaled down, so that all tokens weigh the same.
  void backward(Tape& tape, const Var& loss, int64_t tokens) {
    const double weight =
        static_cast<double>(tokens) / static_cast<double>(o_.bptt * o_.batch_size);
    tape.backward(
        loss,
        [&](Parameter& p) {
          log_.gradient(p);
          optimizer_.ready(p);
        },
        [&](Parameter& p) { optimizer_.weights_free(p); }, static_cast<float>(weight));
  }

  // Saturated gates keep a loss finite that is far beyond hope.
  bool check_loss(double loss, double lr) {
    return log_.check_loss(std::isfinite(perplexity(loss)) ? loss : NAN, lr);
  }

  // Between two updates. False: a signal ends the run here, or it has diverged.
  bool after_step() {
    if (!saver_.after_step(log_.step(), [&] { return save_training(parts_, batch_, own_state()); }))
      log_.stop();
    return log_.healthy();
  }

  // The network's state, and the values of the best validation under the plateau schedule.
  OwnState own_state() const {
    OwnState own;
    own.rank = {{"state.h", state_.h}, {"state.c", state_.c}};
    if (best_.defined()) own.shared = {{"best", best_}};
    const bool known = valid_.tokens > 0;
    own.json = {{"valid_loss", known ? nlohmann::ordered_json(valid_.loss) : nullptr},
                {"tokens", valid_.tokens}};
    return own;
  }

  void restore(const Checkpoint& checkpoint) {
    valid_ = parse_text_evaluation(checkpoint);
    if (o_.lr_scheduler == "plateau" && valid_.tokens > 0) {
      best_loss_ = valid_.loss;
      best_ = store_.values().clone();
    }
    restore_training(parts_, checkpoint, own_state(), noting(progress_));
  }

  void validate() {
    if (progress_ != nullptr) progress_->pause();
    const TextEvaluation valid = evaluate_together(model_, corpus_.valid, optimizer_);
    char text[200];
    std::snprintf(text, sizeof text, "train %s, valid %s, lr %.4g",
                  score_text(o_, log_.result().train_loss).c_str(),
                  score_text(o_, valid.loss).c_str(), schedule_.lr(log_.step() - ahead_ - 1));
    record("valid", valid, text);
    schedule_.observe(valid.loss);
    if (progress_ != nullptr) progress_->resume();
    // The plateau schedule goes back to smaller steps when things get worse; its run is worth what
    // its best epoch was. Otherwise the schedule ends where it means to.
    const bool keep_best = o_.lr_scheduler == "plateau";
    if (keep_best && !(valid.loss < best_loss_)) return;
    valid_ = valid;
    if (!keep_best) return;
    best_loss_ = valid.loss;
    best_ = store_.values().clone();
  }

  void record(const char* split, const TextEvaluation& e, const std::string& text) {
    log_.evaluated(
        split, std::isfinite(perplexity(e.loss)) ? e.loss : NAN,
        {{score_key(o_), score(o_, e.loss)}, {kRateKey, static_cast<double>(e.tokens) / e.seconds}},
        text);
  }

  const TrainLmOptions& o_;
  const LstmLm& model_;
  ParameterStore& store_;
  const Corpus& corpus_;
  int64_t vocabulary_;
  RunFolder* folder_;
  Progress* progress_;
  TokenBatches windows_;
  StepPlan plan_;
  Schedule schedule_;
  DataParallelOptimizer optimizer_;
  std::unique_ptr<StepGraph> graph_;  // null: steps are not recorded
  TrainingLog log_;
  Saver saver_;
  TrainingParts parts_;
  int64_t batch_, ahead_;  // the next window of the epoch; as in Start
  LstmState state_;        // behind the last window
  TextEvaluation valid_;
  double best_loss_ = std::numeric_limits<double>::infinity();
  Tensor best_;  // the values of the best validation, under the plateau schedule
};

std::string final_json(const TrainLmOptions& o, const Outcome& out) {
  nlohmann::ordered_json json = begin_summary(out.run);
  const auto add = [&](const std::string& split, const TextEvaluation& e) {
    json[split + "_loss"] = e.loss;
    json[split + "_ppl"] = perplexity(e.loss);
    if (is_char_level(o)) json[split + "_bpc"] = bits(e.loss);
  };
  add("valid", out.valid);
  add("test", out.test);
  end_summary(json, kRateKey, out.run, o.seed, out.run_folder);
  if (o.generate > 0) json["generated"] = out.generated;
  return json_line(json);
}

// The generated text and, for programs, the result go to stdout; the result for people to stderr.
void report(const TrainLmOptions& o, const Outcome& out) {
  if (!o.json && !out.generated.empty()) {
    print(out.generated + (out.generated.back() == '\n' ? "" : "\n"));
  }
  if (o.json) print(final_json(o, out));
  if (o.quiet || out.test.tokens == 0) return;
  std::fprintf(stderr, "%s: test %s (valid %s), %s, %s\n", out.run.status.c_str(),
               score_text(o, out.test.loss).c_str(), score_text(o, out.valid.loss).c_str(),
               format_duration(seconds_since_process_start()).c_str(),
               describe_memory(o.learners).c_str());
}

// Trains in a run folder of its own and leaves the weights there.
Outcome train(const Job& job, const Learner& learner) {
  const TrainLmOptions& o = job.o;
  Communicator& comm = learner.comm;
  const StepPlan plan = plan_steps(o, make_batches(o, job.corpus, comm));
  const std::string config = config_text(o, job.flags);
  if (const auto done = find_finished(o, config, o.lr_scheduler == "plateau", comm)) {
    Outcome out;
    out.run = done->result;
    out.valid.loss = FinishedRun::number(done->valid, "loss");
    out.test.loss = FinishedRun::number(done->test, "loss");
    out.run_folder = o.output_dir;
    load_weights(WeightsFile(o.output_dir), learner.model.named_tensors());
    return out;
  }
  const Start start =
      find_start(o, plan, units_per_batch(o, comm.size()), identity(o, job.corpus), comm);
  const auto run = [&](Trainer trainer, RunFolder* files) {
    Outcome out = trainer.run();
    if (out.run.status == "done" && files != nullptr)
      save_lm(files->file("model.safetensors"), learner.model, job.corpus.level,
              job.corpus.vocabulary);
    if (out.run.status == "done") {
      out.test = trainer.test();
      out.run.status = trainer.status();
    }
    return out;
  };
  if (comm.rank() > 0) {
    Outcome out = run({job, learner, config, start, nullptr, nullptr}, nullptr);
    finish_trace(o, {}, learner.context, comm);
    return out;
  }
  RunFiles files = open_run(o, config, job.arguments, learner.context, start.checkpoint);
  Progress progress({.total_steps = plan.total_steps + start.ahead,
                     .print_freq = o.print_freq,
                     .quiet = o.quiet,
                     .unit = "tokens"});
  files.folder->warn_by(noting(&progress));
  progress.note("run folder " + files.folder->path());
  RunFolder* place = files.folder.get();
  Outcome out = run({job, learner, config, start, place, &progress}, place);
  finish_trace(o, files, learner.context, comm);
  finish_report(o, *files.folder, progress);
  out.run_folder = files.folder->path();
  out.folder = std::move(files.folder);
  return out;
}

// Steps on one window, again and again, at a learning rate of 0.
int show_headroom(const TrainLmOptions& o, const Learner& learner, const TokenBatches& windows) {
  const TokenWindow window = windows.window(0);
  return run_headroom(o, learner.store, learner.comm, plan_steps(o, windows),
                      [&](DataParallelOptimizer& optimizer, const auto& backward_ended) {
                        for (int64_t micro = 0; micro < o.accumulate; ++micro) {
                          LstmState state = learner.model.zero_state(o.batch_size);
                          Tape tape({.training = true, .seed = static_cast<uint64_t>(o.seed)});
                          const Var loss = softmax_cross_entropy(
                              tape, learner.model.forward(tape, window.inputs, state),
                              window.targets, {.overwrite_logits = true});
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

// The run of one learner.
int run_rank(const Job& job, Communicator& started) {
  const TrainLmOptions& o = job.o;
  const Corpus& corpus = job.corpus;
  const Vocabulary& vocabulary = job.vocabulary;
  Context context({.device = learner_device(o, started),
                   .threads = static_cast<int>(o.threads),
                   .tune = o.tune,
                   .deterministic = o.deterministic,
                   .tf32 = o.tf32});
  check_devices(o, started);
  const auto gpus = make_gpu_communicator(o, started);
  Communicator& comm = gpus == nullptr ? started : *gpus;
  ParameterStore store;
  const LstmLm model(store, network_options(o, vocabulary.size()));
  store.finalize(static_cast<uint64_t>(o.seed));
  if (!o.init.empty()) {
    load_weights(WeightsFile(o.init), model.named_tensors(),
                 {{"encoder.", "another vocabulary or --emsize"}});
  }
  if (!o.quiet && comm.rank() == 0) {
    std::fprintf(stderr, "%s\n", describe(o, store, vocabulary.size(), corpus, comm).c_str());
  }
  if (o.dry_run && comm.rank() > 0) return 0;
  if (o.dry_run) {
    return print(describe_plan(o, context, model, store, make_batches(o, corpus, comm))), 0;
  }
  const Learner learner{context, comm, model, store};
  if (o.headroom > 0) return show_headroom(o, learner, make_batches(o, corpus, comm));
  (void)encode_prompt(o, vocabulary);  // complains before the training, not behind it

  Outcome out;
  if (job.training) {
    out = train(job, learner);
  } else if (o.evaluate) {
    out.valid = evaluate_text(model, corpus.valid);
    out.test = evaluate_text(model, corpus.test);
    for (const TextEvaluation* e : {&out.valid, &out.test})
      if (!std::isfinite(perplexity(e->loss))) out.run.status = "diverged";
  }
  const int code = static_cast<int>(exit_code(out.run));
  if (comm.rank() > 0) return code;
  if (out.run.status == "done" && o.generate > 0) out.generated = generate(o, model, vocabulary);
  report(o, out);
  return code;
}

int run(const Arguments& arguments, const Arguments& environment) {
  watch_signals();
  TrainLmOptions o;
  FlagTable flags = lm_flags(o);
  flags.parse({arguments.begin() + 1, arguments.end()}, environment);
  if (answer_questions(o, flags, list_lm_choices())) return 0;
  o.data = find_data(o.data, "sources");
  const TextKind kind = text_kind(o.data);
  const LmCard card = read_card(o, flags);
  resolve(o, flags, kind);
  check_options(o);
  if (o.dump_config) return print(config_text(o, flags)), 0;
  print_warnings(o, flags);

  const bool training = o.training, only_generate = !training && !o.evaluate;
  const bool known = card.vocabulary.size() > 0;
  check(known || o.init.empty() || flags.given("data"), o.init,
        ": its metadata hold no vocabulary (keys level and vocabulary), so its tokens have no "
        "names; give --data the text that it was trained on");
  Corpus corpus;
  if (!only_generate || !known) corpus = open_text(o);
  if (!only_generate && known) {
    check_same_vocabulary(corpus.vocabulary, corpus.name, card.vocabulary, o.init);
  }
  const Vocabulary& vocabulary = known ? card.vocabulary : corpus.vocabulary;
  const int learners = o.parsed.learners.size;
  if (!training) check(learners == 1, "several learners: only for training");
  if (training)  // complains before so many networks are made
    (void)TokenBatches(corpus.train,
                       {.batch_size = o.batch_size, .bptt = o.bptt, .world_size = learners});
  check_device(o);
  if (training) check_graph(o);
  if (training && !o.dry_run && o.headroom == 0) catch_signals();  // nothing else asks for them
  const Job job{o, flags, arguments, corpus, vocabulary, training};
  return run_learners(o, [&](Communicator& comm) { return run_rank(job, comm); });
}
}  // namespace
}  // namespace heddle

int main(int argc, char** argv) { return heddle::run_program("train_lm", argc, argv, heddle::run); }
