#include "apps/session/session.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <utility>

#include "apps/cli/format.h"
#include "apps/cli/json.h"
#include "apps/cli/process.h"
#include "apps/cli/program.h"
#include "apps/report/report_page.h"
#include "apps/session/compare_runs.h"
#include "apps/session/exchange.h"
#include "apps/session/privacy.h"
#include "core/error.h"

namespace heddle {
namespace {

// Returns "604 MB, 151 MB a learner": the most that this process has had resident.
std::string describe_memory(int64_t learners) {
  const int64_t mb = peak_rss_bytes() / 1000000;
  return learners < 2 ? concat(mb, " MB") : concat(mb, " MB, ", mb / learners, " MB a learner");
}

RunSpec with_freeze(const CommonOptions& o, RunSpec spec) {
  if (!o.freeze.empty()) spec.identity["freeze"] = o.freeze;
  return spec;
}

}  // namespace

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
      spec_(with_freeze(o, std::move(spec))),
      start_(find_start(o, spec_, learner.comm)),
      files_(open_run(o, spec_, arguments, learner, start_)),
      undo_{folder()},
      batch_(start_.batch),
      schedule_(spec_.schedule),
      optimizer_(make_learner_optimizer(o, learner.store, learner.comm, spec_.plan,
                                        spec_.plan.total_steps + start_.plan_ahead,
                                        {.folder = folder(), .log = console_logger(progress())})),
      graph_(make_step_graph(o, learner.store, learner.comm.size(), console_logger(progress()))),
      log_(spec_.log, o, learner.store, *optimizer_, folder(), progress()),
      parts_{.o = o,
             .spec = spec_,
             .store = learner.store,
             .optimizer = *optimizer_,
             .schedule = schedule_,
             .log = log_,
             .rank = learner.comm.rank()} {}

nlohmann::json Session::own_json(std::initializer_list<const char*> keys) const {
  const nlohmann::json own = heddle::own_json(*checkpoint(), keys);
  const bool same = difference(checkpoint()->state.at("identity"), spec_.identity).empty();
  return same ? own : nlohmann::json{{"valid_loss", nullptr}};
}

void Session::run(TrainingLoop& loop) {
  loop_ = &loop;
  if (checkpoint() != nullptr) {
    restore_training(parts_, *checkpoint(), loop.own_state(), console_logger(progress()));
    optimizer_->collective("resume", wait_for_all);
  }
  if (optimizer_->accountant() != nullptr) account();
  if (folder() != nullptr && !o_.trace.empty()) AtomicFile(o_.trace);  // throws if unwritable
  // Only now is anything in the folder changed: what may refuse the run has had its turn.
  saver_.emplace(o_,
                 SaverOptions{.folder = folder() == nullptr ? "" : folder()->path(),
                              .rank = parts_.rank,
                              .steps_per_epoch = spec_.plan.steps_per_epoch,
                              .start = checkpoint(),
                              .ahead = start_.ahead},
                 *optimizer_, console_logger(progress()));
  begin_run(o_, spec_, files_, start_.checkpoint.has_value());
  RdpAccountant* accountant = optimizer_->accountant();
  if (accountant != nullptr && folder() != nullptr) keep_account(o_, *accountant, *folder());
  // Steps without votes have no account: the folder claims nothing from here on.
  if (accountant == nullptr && folder() != nullptr)
    std::remove(folder()->file(kPrivacyFile).c_str());
  try {
    train();
  } catch (const InputError&) {
    if (optimizer_->accountant() != nullptr) undo_.folder = nullptr;  // what a step has cost stays
    throw;
  } catch (...) {
    undo_.folder = nullptr;
    throw;
  }
  undo_.folder = nullptr;
  if (budget_spent() && log_.step() < spec_.plan.total_steps + start_.plan_ahead &&
      progress() != nullptr)
    progress()->note(concat("privacy: one more step would raise epsilon above ",
                            epsilon_limit(o_, *optimizer_->accountant())));
  saver_->finish();
  (void)optimizer_->state();  // waits for an exchange in flight, so that it is counted
  log_.finish(saver_->last());
  optimizer_->use_shared();  // what the program saves and tests
}

void Session::train() {
  if (plan_done() && batch_ > 0) end_epoch();  // it was saved before its last validation
  while (!plan_done() && log_.running()) {
    loop_->train_epoch();
    if (log_.running()) {
      if (batch_ == spec_.plan.steps_per_epoch * o_.accumulate) batch_ = 0;
      end_epoch();
    }
    if (folder() != nullptr) folder()->flush();
    if (log_.running() && batch_ == 0) (void)after_step();
  }
}

// Counts what earlier processes of this run have revealed, and refuses what must not be added.
void Session::account() {
  RdpAccountant& accountant = *optimizer_->accountant();
  bool accounted = true;
  if (checkpoint() != nullptr) {
    const nlohmann::json& state = checkpoint()->state;
    const auto here = nlohmann::json::parse(json_line(spec_.identity)), there = state["identity"];
    const auto member = [](const nlohmann::json& json, const char* key) {
      return json.contains(key) ? json[key] : nlohmann::json();
    };
    accounted = state.at("exchange").contains("privacy");
    for (const char* key : {"data", "images", "shard", "privacy-unit"})
      accounted = accounted && member(there, key) == member(here, key);
  }
  optimizer_->collective("privacy account", [&](Communicator& comm) {
    read_accounts(o_, accountant, folder(), checkpoint() == nullptr ? "" : checkpoint()->path,
                  accounted, comm);
  });
  const int64_t left =
      std::max<int64_t>(spec_.plan.total_steps + start_.plan_ahead - log_.step(), 0);
  if (progress() != nullptr)
    progress()->note("privacy: " +
                     describe_privacy(o_, accountant, spec_.plan, optimizer_->learners(), left));
  const double spent = accountant.spent().epsilon, limit = epsilon_limit(o_, accountant);
  check(left == 0 || spent <= limit, "epsilon: ", limit, " is allowed, and ", spent,
        " is spent already");
  check(left == 0 || log_.step() > 0 || !budget_spent(), "--dp-epsilon-max ", limit,
        ": one step spends ", accountant.spent_after(1).epsilon);
}

bool Session::budget_spent() const {
  const RdpAccountant* accountant = optimizer_->accountant();
  return accountant != nullptr &&
         accountant->spent_after(1).epsilon > epsilon_limit(o_, *accountant);
}

bool Session::finish_step(const StepReport& report, const StepFacts& facts) {
  batch_ += o_.accumulate;
  if (!log_.finish_step(report, facts)) return false;
  if (batch_ == spec_.plan.steps_per_epoch * o_.accumulate) return false;
  return after_step() && !plan_done();
}

// Saves between two updates, if due. Returns false if a signal ends the run here, or it has
// diverged.
bool Session::after_step() {
  if (!saver_->after_step(log_.step(),
                          [&] { return save_training(parts_, batch_, loop_->own_state()); }))
    log_.stop();
  return log_.running();
}

void Session::end_epoch() {
  log_.finish_epoch();
  if (!log_.running()) return;
  if (progress() != nullptr) progress()->pause();
  optimizer_->use_shared();
  schedule_.observe(loop_->validate());
  optimizer_->use_own();
  if (progress() != nullptr) progress()->resume();
}

void Session::save_weights(const std::function<void(const std::string&)>& save) {
  if (folder() != nullptr) save(folder()->file("model.safetensors"));
  optimizer_->collective("weights", wait_for_all);
}

Outcome Session::finish() {
  finish_trace(o_, files_, learner_);
  Outcome out{.run = log_.result()};
  if (folder() == nullptr) return out;
  write_report();
  out.run_folder = folder()->path();
  out.folder = std::move(files_.folder);
  return out;
}

// Writes report.html, unless --no-report, and notes which files of the run are incomplete. A report
// that cannot be written causes a warning and does not fail the run.
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

int report(const CommonOptions& o, const std::string& rate_key, const Learner& learner,
           const Outcome& out) {
  const int code = to_int(exit_code(out.run));
  if (!learner.is_first()) return code;
  if (o.json) {
    auto json = final_json(out.run, out.results, rate_key, o.seed, out.run_folder);
    if (!out.appended.empty()) json.update(out.appended);
    print(json_line(json));
  }
  if (!out.text.empty())
    learner.announce(concat(out.run.status, ": ", out.text, ", ",
                            out.run.privacy ? privacy_text(*out.run.privacy) + ", " : "",
                            format_duration(seconds_since_process_start()), ", ",
                            describe_memory(o.learners)));
  return code;
}

}  // namespace heddle
