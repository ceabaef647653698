// Trains or evaluates a language model, or generates text with it. Read run() first: it is the
// whole program in order; LmTraining::train_epoch() is the inner loop.
#include <cmath>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/benchmarks/headroom.h"
#include "apps/checkpoint/signals.h"
#include "apps/cli/lm_options.h"
#include "apps/cli/program.h"
#include "apps/models/evaluate_text.h"
#include "apps/models/lm_card.h"
#include "apps/session/lm_setup.h"
#include "apps/session/session.h"
#include "core/kernels.h"
#include "core/streams.h"
#include "layers/embedding.h"
#include "layers/loss.h"
#include "layers/weights.h"

namespace heddle {
namespace {

constexpr const char* kRateKey = "tokens_per_s";

// The task of the program and the data that it has read, the same for all learners.
struct Job {
  const TrainLmOptions& o;
  const FlagTable& flags;
  const Arguments& arguments;
  const Corpus& corpus;
};

Var loss_of(const LstmLm& model, Tape& tape, const Tensor& inputs, const Tensor& targets,
            LstmState& state) {
  const Var logits = model.forward(tape, inputs, state);
  return softmax_cross_entropy(tape, logits, targets, {.overwrite_logits = true});
}

class LmTraining : public TrainingLoop {
 public:
  LmTraining(const Job& job, Learner& learner, const LstmLm& model, const TokenBatches& windows,
             Session& session)
      : TrainingLoop(session),
        o_(job.o),
        corpus_(job.corpus),
        store_(learner.store),
        model_(model),
        windows_(windows),
        state_(model.zero_state(o_.batch_size)) {
    if (session.checkpoint() == nullptr) return;
    valid_ = parse_text_evaluation(session.own_json({"tokens"}), "valid_loss");
    if (keeps_best() && valid_.tokens > 0 && has_shared(*session.checkpoint())) keep_best();
  }

  // The inner loop: an update from the mean gradient of --accumulate windows. The state of the
  // network is carried from window to window; the gradient is not.
  void train_epoch() override {
    if (session_.batch() == 0) state_ = model_.zero_state(o_.batch_size);
    StepFacts step;
    StepReport report;
    do {
      step = {.lr = session_.lr()};
      StepTimes& t = step.times;
      double loss_sum = 0;  // over the step's tokens
      for (int64_t micro = 0; micro < o_.accumulate; ++micro) {
        const TokenWindow window = windows_.window(session_.batch() + micro);
        const int64_t tokens = window.targets.size();
        double value = 0;
        t.data += t.lap();
        if (session_.graph() != nullptr) {
          value = recorded_pass(window, step.lr);
          if (!log_.check_loss(finite_or_nan(value), step.lr)) return;
        } else {
          Tape tape({.training = true,
                     .seed = static_cast<uint64_t>(o_.seed),
                     .step = static_cast<uint64_t>(log_.step() * o_.accumulate + micro),
                     .first_sample = window.first_column});
          const Var loss = loss_of(model_, tape, window.inputs, window.targets, state_);
          value = loss.value().item();
          t.forward += t.lap();
          if (!log_.check_loss(finite_or_nan(value), step.lr)) return;

          optimizer_.begin_step(step.lr);
          tape.backward(loss, ready_, weights_free_, window_weight(o_, tokens));
          wait_for_stream();
        }
        t.backward += t.lap();
        report = optimizer_.finish_step();
        t.update += t.lap();
        loss_sum += value * to_double(tokens);
        step.units += tokens;
      }
      step.loss = finite_or_nan(loss_sum / to_double(step.units));
    } while (session_.finish_step(report, step));
  }

  double validate() override {
    const TextEvaluation valid = evaluate_together(model_, corpus_.valid, optimizer_);
    char text[200];
    std::snprintf(text, sizeof text, "train %s, valid %s, lr %.4g",
                  score_text(o_, log_.result().train_loss).c_str(),
                  score_text(o_, valid.loss).c_str(), session_.lr(1));
    record("valid", valid, text);
    // The plateau schedule lowers the rate when the loss does not improve, so the best epoch of its
    // run counts. With other schedules the last epoch counts.
    if (!keeps_best() || valid.loss < best_loss_) valid_ = valid;
    if (keeps_best() && valid.loss < best_loss_) keep_best();
    if (o_.report && session_.folder() != nullptr && std::isfinite(valid.loss)) write_sample();
    return valid.loss;
  }

  // The network's state, and the weights of the best validation under the plateau schedule.
  OwnState own_state() const override {
    OwnState own;
    own.rank = {{"state.h", state_.h}, {"state.c", state_.c}};
    if (best_.defined()) own.shared = {{"best", best_}};
    own.json = text_evaluation_json(valid_);
    return own;
  }

  // Restores the best weights after a run with the plateau schedule.
  void use_best() {
    if (best_.defined()) store_.values().copy_from(best_);
  }
  TextEvaluation test() {
    const TextEvaluation test = evaluate_together(model_, corpus_.test, optimizer_);
    record("test", test, "test " + score_text(o_, test.loss));
    return test;
  }
  const TextEvaluation& valid() const { return valid_; }  // of the weights that are saved

 private:
  // Runs forward and backward as a CUDA graph, which is recorded after a few windows, and returns
  // the loss. All its time counts as backward's.
  double recorded_pass(const TokenWindow& window, double lr) {
    check_indices(window.inputs, corpus_.vocabulary.size(), "tokens");
    check_indices(window.targets, corpus_.vocabulary.size(), "labels");
    const Tensor counters = Tensor::empty_on(Device{}, {2}, DType::i64);
    counters.data<int64_t>()[0] = log_.step();
    counters.data<int64_t>()[1] = window.first_column;
    optimizer_.begin_step(lr);
    const std::vector<Tensor> out = session_.graph()->run(
        {window.inputs, window.targets, counters, state_.h, state_.c},
        [&](const std::vector<Tensor>& in) {
          Tape tape({.seed = static_cast<uint64_t>(o_.seed), .counters = in[2]});
          LstmState state{in[3], in[4]};
          const Var loss = loss_of(model_, tape, in[0], in[1], state);
          tape.backward(loss, ready_, weights_free_, window_weight(o_, in[1].size()));
          return std::vector<Tensor>{loss.value(), state.h, state.c};
        });
    state_ = {out[1], out[2]};
    return out[0].item();
  }

  void record(const char* split, const TextEvaluation& e, const std::string& text) {
    log_.evaluated(
        split, finite_or_nan(e.loss),
        {{score_key(o_), score(o_, e.loss)}, {kRateKey, to_double(e.tokens) / e.seconds}}, text);
  }

  // Writes a text by the network as it is now, for the report.
  void write_sample() {
    TrainLmOptions sample = o_;
    sample.generate = o_.level == "char" ? 240 : 60;
    std::string text;
    try {
      text = generate(sample, model_, corpus_.vocabulary);
    } catch (const Error&) {
      return;  // the network's output is not finite, which the next loss will show
    }
    session_.folder()->metric({{"step", log_.step()}, {"epoch", log_.epoch()}, {"sample", text}});
  }

  bool keeps_best() const { return o_.lr_scheduler == "plateau"; }
  void keep_best() {
    best_loss_ = valid_.loss;
    best_ = store_.values().clone();
  }

  const TrainLmOptions& o_;
  const Corpus& corpus_;
  ParameterStore& store_;
  const LstmLm& model_;
  const TokenBatches& windows_;
  LstmState state_;  // after the last window
  TextEvaluation valid_;
  double best_loss_ = std::numeric_limits<double>::infinity();
  Tensor best_;  // weights of the best validation, under the plateau schedule
};

void set_results(const TrainLmOptions& o, const TextEvaluation& valid, const TextEvaluation& test,
                 Outcome& out) {
  out.results = results_json(o, valid, test);
  out.text = results_text(o, valid, test);
}

// Trains in a run folder and saves the weights there.
Outcome train(const Job& job, Learner& learner, const LstmLm& model) {
  const TrainLmOptions& o = job.o;
  const TokenBatches windows = make_batches(o, job.corpus, learner.comm);
  const StepPlan plan = plan_steps(o, windows);
  const std::string config = config_text(o, job.flags);
  Outcome out;
  if (const auto done = find_finished(o, config, o.lr_scheduler == "plateau", model.named_tensors(),
                                      learner.comm)) {
    out = {.run = done->result, .run_folder = o.output_dir};
    set_results(o, parse_text_evaluation(done->valid, "loss"),
                parse_text_evaluation(done->test, "loss"), out);
    return out;
  }
  Session session(
      o, job.arguments, learner,
      {.log = {.program = "train_lm", .rate_key = kRateKey, .metrics = score_metrics(o)},
       .unit = "tokens",
       .units_per_batch = units_per_batch(o, learner.comm.size()),
       .plan = plan,
       .schedule = lm_schedule(o, plan),
       .identity = identity(o, job.corpus),
       .config = config,
       .model = model.named_tensors(),
       .metadata = lm_metadata(model, job.corpus.level, job.corpus.vocabulary)});
  LmTraining training(job, learner, model, windows, session);
  session.run(training);
  TextEvaluation test;
  if (session.log().running()) {
    training.use_best();
    session.save_weights([&](const std::string& file) {
      save_lm(file, model, job.corpus.level, job.corpus.vocabulary);
    });
    test = training.test();
  }
  out = session.finish();
  set_results(o, training.valid(), test, out);
  return out;
}

// Runs one learner and returns its exit code.
int run_rank(const Job& job, Communicator& started) {
  const TrainLmOptions& o = job.o;
  const Corpus& corpus = job.corpus;
  Learner learner(o, started);
  const LstmLm model(learner.store, network_options(o, job.corpus.vocabulary.size()));
  learner.finalize_store();
  if (!o.init.empty())
    load_weights(WeightsFile(o.init), model.named_tensors(),
                 {{"encoder.", "a different vocabulary or --emsize"}});
  learner.announce(describe(o, learner.store, job.corpus.vocabulary.size(), corpus, learner.comm));
  if (o.dry_run) {
    if (learner.is_first())
      print(describe_plan(o, learner.context, model, learner.store,
                          make_batches(o, corpus, learner.comm)));
    return 0;
  }
  if (o.headroom > 0) {
    const TokenBatches windows = make_batches(o, corpus, learner.comm);
    const TokenWindow window = windows.window(0);
    return run_headroom(o, learner.store, learner.comm, plan_steps(o, windows), [&](Tape& tape) {
      LstmState state = model.zero_state(o.batch_size);
      return loss_of(model, tape, window.inputs, window.targets, state);
    });
  }
  (void)encode_prompt(o, job.corpus.vocabulary);  // fails before training instead of after it

  Outcome out;
  if (o.training) {
    out = train(job, learner, model);
  } else {
    TextEvaluation valid, test;
    if (o.evaluate) {
      valid = evaluate_text(model, corpus.valid);
      test = evaluate_text(model, corpus.test);
      if (std::isnan(finite_or_nan(valid.loss)) || std::isnan(finite_or_nan(test.loss)))
        out.run.status = "diverged";
    }
    set_results(o, valid, test, out);
  }
  if (learner.is_first() && o.generate > 0) {
    std::string text;
    if (out.run.status == "done") text = generate(o, model, job.corpus.vocabulary);
    if (!o.json && !text.empty()) print(text + (text.back() == '\n' ? "" : "\n"));
    out.appended["generated"] = text;
  }
  return report(o, kRateKey, learner, out);
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
  const int learners = check_machine(o);

  const Corpus corpus = open_text(o, card, flags);
  if (o.training)  // fails before any network is made
    (void)TokenBatches(corpus.train,
                       {.batch_size = o.batch_size, .bptt = o.bptt, .world_size = learners});
  const Job job{o, flags, arguments, corpus};
  return start_learners(o, [&](Communicator& comm) { return run_rank(job, comm); });
}
}  // namespace
}  // namespace heddle

int main(int argc, char** argv) { return heddle::run_program("train_lm", argc, argv, heddle::run); }
