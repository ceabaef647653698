#include "apps/session/session.h"

#include <cstdio>
#include <exception>
#include <utility>

#include "apps/checkpoint/signals.h"
#include "apps/cli/format.h"
#include "apps/cli/json.h"
#include "apps/cli/process.h"
#include "apps/cli/program.h"
#include "apps/report/report_page.h"
#include "apps/session/exchange.h"
#include "apps/session/learners.h"
#include "core/error.h"

namespace heddle {
namespace {

RunFiles open_files(const CommonOptions& o, const std::vector<std::string>& arguments,
                    Learner& learner, const std::string& config, const Start& start) {
  if (!learner.is_first()) return {};
  return open_run(o, config, arguments, learner.context, start.checkpoint);
}

std::unique_ptr<Progress> make_progress(const CommonOptions& o, const RunSpec& spec,
                                        const Start& start, RunFolder* folder) {
  if (folder == nullptr) return nullptr;
  auto progress =
      std::make_unique<Progress>(ProgressOptions{.total_steps = spec.plan.total_steps + start.ahead,
                                                 .print_freq = o.print_freq,
                                                 .quiet = o.quiet,
                                                 .unit = spec.unit});
  folder->warn_by(console_logger(progress.get()));
  progress->note("run folder " + folder->path());
  return progress;
}

}  // namespace

int check_machine(const CommonOptions& o) {
  const int learners = o.parsed.learners.size;
  check(o.training || learners == 1, "several learners: only for training");
  check_device(o);
  if (o.training) check_graph(o);
  return learners;
}

int start_learners(const CommonOptions& o, const std::function<int(Communicator&)>& run_rank) {
  if (o.training && !o.dry_run && o.headroom == 0) catch_signals();  // nothing else asks for them
  return run_learners(o, run_rank);
}

Learner::Learner(const CommonOptions& options, Communicator& started)
    : o(options),
      context({.device = learner_device(o, started),
               .threads = static_cast<int>(o.threads),
               .tune = o.tune,
               .deterministic = o.deterministic,
               .tf32 = o.tf32}),
      gpus((check_devices(o, started), make_gpu_communicator(o, started))),
      comm(gpus == nullptr ? started : *gpus) {}

void Learner::announce(const std::string& line) const {
  if (is_first() && !o.quiet) std::fprintf(stderr, "%s\n", line.c_str());
}

TrainingLoop::TrainingLoop(Session& session)
    : session_(session),
      log_(session.log()),
      optimizer_(session.optimizer()),
      ready_([this](Parameter& p) {
        log_.record_gradient(p);
        optimizer_.ready(p);
      }),
      weights_free_([this](Parameter& p) { optimizer_.weights_free(p); }) {}

Session::Session(const CommonOptions& o, const std::vector<std::string>& arguments,
                 Learner& learner, RunSpec spec)
    : o_(o),
      learner_(learner),
      spec_(std::move(spec)),
      start_(find_start(o, spec_.plan, spec_.units_per_batch, spec_.identity, learner.comm)),
      files_(open_files(o, arguments, learner, spec_.config, start_)),
      progress_(make_progress(o, spec_, start_, folder())),
      batch_(start_.batch),
      schedule_(spec_.schedule),
      optimizer_(make_optimizer(o, learner.store, learner.comm, spec_.plan,
                                {.folder = folder(), .log = console_logger(progress())})),
      graph_(make_step_graph(o, learner.store, learner.comm.size(), console_logger(progress()))),
      log_(spec_.log, o, learner.store, optimizer_, folder(), progress()),
      saver_(o,
             {.folder = folder() == nullptr ? "" : folder()->path(),
              .rank = learner.comm.rank(),
              .steps_per_epoch = spec_.plan.steps_per_epoch,
              .start = checkpoint(),
              .ahead = start_.ahead},
             optimizer_, console_logger(progress())),
      parts_{.o = o,
             .store = learner.store,
             .optimizer = optimizer_,
             .schedule = schedule_,
             .log = log_,
             .rank = learner.comm.rank(),
             .units = spec_.units_per_batch,
             .identity = spec_.identity,
             .config = spec_.config,
             .model = spec_.model,
             .metadata = spec_.metadata} {}

void Session::run(TrainingLoop& loop) {
  loop_ = &loop;
  if (checkpoint() != nullptr)
    restore_training(parts_, *checkpoint(), loop.own_state(), console_logger(progress()));
  if (plan_done() && batch_ > 0) end_epoch();  // the run was saved before its last validation
  while (!plan_done() && log_.running()) {
    loop.train_epoch();
    if (log_.running()) {
      if (batch_ == spec_.plan.steps_per_epoch * o_.accumulate) batch_ = 0;
      end_epoch();
    }
    if (folder() != nullptr) folder()->flush();
    if (log_.running() && batch_ == 0) (void)after_step();
  }
  saver_.finish();
  log_.finish(saver_.last());
}

bool Session::finish_step(const StepReport& report, const StepFacts& facts) {
  batch_ += o_.accumulate;
  if (!log_.finish_step(report, facts)) return false;
  if (plan_done() || batch_ == spec_.plan.steps_per_epoch * o_.accumulate) return false;
  return after_step();
}

// Saves between two updates, if due. Returns false if a signal ends the run here, or it has
// diverged.
bool Session::after_step() {
  if (!saver_.after_step(log_.step(),
                         [&] { return save_training(parts_, batch_, loop_->own_state()); }))
    log_.stop();
  return log_.running();
}

void Session::end_epoch() {
  log_.finish_epoch();
  if (!log_.running()) return;
  if (progress() != nullptr) progress()->pause();
  schedule_.observe(loop_->validate());
  if (progress() != nullptr) progress()->resume();
}

Outcome Session::finish() {
  finish_trace(o_, files_, learner_.context, learner_.comm);
  Outcome out{.run = log_.result()};
  if (folder() == nullptr) return out;
  write_report();
  out.run_folder = folder()->path();
  out.folder = std::move(files_.folder);
  return out;
}

// Writes report.html, unless --no-report, and says which files of the run are incomplete. A report
// that cannot be written is worth a warning, but does not fail the run.
void Session::write_report() {
  try {
    folder()->flush();
    if (o_.report) {
      folder()->write("report.html", report_page({read_run(folder()->path(), o_.trace)}));
      progress()->note("report " + folder()->file("report.html"));
    }
  } catch (const std::exception& error) {
    folder()->note_trouble("report.html", concat("no report.html: ", error.what()));
  }
  if (const std::string missing = folder()->incomplete(); !missing.empty())
    progress()->note(missing);
  folder()->warn_by({});  // the progress ends before the folder
}

Outcome finished_outcome(const CommonOptions& o, const FinishedRun& finished) {
  return {.run = finished.result, .run_folder = o.output_dir};
}

int report(const CommonOptions& o, const std::string& rate_key, const Learner& learner,
           const Outcome& out) {
  const int code = static_cast<int>(exit_code(out.run));
  if (!learner.is_first()) return code;
  if (o.json) {
    nlohmann::ordered_json json = begin_summary(out.run);
    json.update(out.results);
    end_summary(json, rate_key, out.run, o.seed, out.run_folder);
    if (!out.appended.empty()) json.update(out.appended);
    print(json_line(json));
  }
  if (!out.text.empty())
    learner.announce(concat(out.run.status, ": ", out.text, ", ",
                            format_duration(seconds_since_process_start()), ", ",
                            describe_memory(o.learners)));
  return code;
}

}  // namespace heddle
