#include "apps/log/training_log.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "apps/cli/process.h"
#include "apps/log/explain_step.h"
#include "apps/log/ledger_report.h"
#include "apps/session/learners.h"
#include "apps/session/run_report.h"
#include "core/error.h"
#include "core/kernels.h"
#include "core/safetensors.h"

namespace heddle {
namespace {

constexpr auto kShow = static_cast<size_t>(ControlWord::show);
constexpr double kSilence =
    5;  // seconds after which several learners average losses before --print-freq

}  // namespace

TrainingLog::TrainingLog(const TrainingLogOptions& names, const CommonOptions& o, Context& context,
                         const ParameterStore& store, DataParallelOptimizer& optimizer,
                         RunFolder* folder, Progress* progress)
    : names_(names),
      o_(o),
      context_(context),
      store_(store),
      optimizer_(optimizer),
      folder_(folder),
      progress_(progress),
      quality_(noting(progress)) {
  result_.world_size = optimizer.learners();
  watch_step(1);
}

// What is going to be recorded of this step.
void TrainingLog::watch_step(int64_t step) {
  context_.trace().explain(step == o_.explain_step && folder_ != nullptr);
  dumping_ = step == o_.dump_gradients && folder_ != nullptr;
  if (o_.trace.empty()) return;
  const StepRange range = o_.parsed.trace_steps;
  if (step == range.first) context_.trace().start();
  if (step == range.last + 1) context_.trace().stop();
}

namespace {

// The first layer whose weights are not finite; where all are, the one with the largest.
std::string suspect(const ParameterStore& store) {
  const Parameter* worst = nullptr;
  float largest = -1;
  for (const Parameter& p : store.parameters()) {
    if (!all_finite(p.value)) return concat("the first weights that are not finite are ", p.name);
    for (const float w : p.value.to_vector())
      if (std::abs(w) > largest) largest = std::abs(w), worst = &p;
  }
  return worst == nullptr ? "no weights"
                          : concat("the largest weight, ", largest, ", is in ", worst->name);
}

// Without the sign that a NaN has from the processor.
std::string said(const std::string& name, double loss) {
  return concat("the ", name, " is ", std::isnan(loss) ? NAN : loss);
}

}  // namespace

bool TrainingLog::check_loss(double loss, double lr) {
  if (result_.world_size == 1 && hopeless(loss)) diverge(result_.step + 1, lr, said("loss", loss));
  return healthy();
}

bool TrainingLog::hopeless(double loss) const {
  return !std::isfinite(loss) || (o_.max_loss > 0 && loss > o_.max_loss);
}

bool TrainingLog::finish_step(const StepReport& report, const StepFacts& facts) {
  const StepTimes& t = facts.times;
  ++result_.step;
  lr_ = facts.lr;
  if (++steps_here_ == 1) result_.first_step_s = seconds_since_process_start();
  // The first step also makes the kernels' plans; the rate is that of the steps behind it.
  if (steps_here_ <= 2) units_ = 0, seconds_ = 0;
  units_ += facts.units * result_.world_size;
  seconds_ += t.data + t.forward + t.backward + t.update;
  result_.rate = static_cast<double>(units_) / std::max(seconds_, 1e-9);
  if (report.clip < 1) {
    ++result_.clipped_steps;
    result_.clipped_norm += (1 - report.clip) * report.grad_norm;
  }
  pending_.push_back({facts, exchange_since_last()});
  if (context_.trace().explaining()) explain(pending_.back());
  if (dumping_) dump_gradients();
  if (result_.world_size == 1 || result_.step % o_.print_freq == 0 || optimizer_.control(kShow) > 0)
    flush();
  // The first rank asks for it, and all do it behind the next step. Not where equal runs are to
  // send equal bytes.
  const bool late = folder_ != nullptr && steady_seconds() - flushed_at_ > kSilence;
  optimizer_.set_control(kShow, late && !o_.deterministic ? 1.0f : 0.0f);
  watch_step(result_.step + 1);
  if (quality_.add(result_.step, optimizer_.take_quality()) && folder_ != nullptr)
    folder_->metric(quality_.json());

  skipped_ = report.skipped_parameters > 0 ? skipped_ + 1 : 0;
  if (skipped_ > o_.max_skipped) {
    if (!pending_.empty()) flush();  // all ranks count alike
    diverge(result_.step, facts.lr,
            concat("gradients were not finite in ", skipped_,
                   " steps in a row, in this one that of ", report.first_skipped, " first"));
  }
  return healthy();
}

ExchangeFacts TrainingLog::exchange_since_last() {
  const DataParallelOptimizer::Totals last = seen_;
  seen_ = optimizer_.totals();
  const double exchange_s = seen_.exchange_s - last.exchange_s;
  const double comm_s = seen_.collective_s - last.collective_s;
  return {.sent = seen_.traffic.sent - last.traffic.sent,
          .received = seen_.traffic.received - last.traffic.received,
          .comm_s = comm_s,
          .compress_s = std::max(0.0, exchange_s - comm_s),
          .exposed_s = seen_.exposed_s - last.exposed_s};
}

void TrainingLog::gradient(const Parameter& p) {
  if (!dumping_ || !p.written) return;
  const auto known = std::ranges::find(gradients_, p.name, [](const auto& g) { return g.first; });
  const Tensor copy = p.grad.to(Device{}).clone();
  if (known != gradients_.end())  // accumulated over several batches
    known->second = copy;
  else
    gradients_.emplace_back(p.name, copy);
}

void TrainingLog::dump_gradients() {
  const std::string name = concat("gradients-", result_.step, ".safetensors");
  try {
    save_safetensors(folder_->file(name), gradients_);
  } catch (const Error& error) {
    folder_->note_trouble(name, error.what());
  }
  gradients_.clear();
}

// On stderr and in the run folder.
void TrainingLog::explain(const Pending& step) {
  const std::string text = step_story({.program = names_.program,
                                       .step = result_.step,
                                       .epoch = result_.epoch + 1,
                                       .learners = result_.world_size,
                                       .facts = step.facts,
                                       .exchange = step.exchange,
                                       .bytes_dense = optimizer_.dense_bytes(),
                                       .notes = context_.trace().take_notes()});
  folder_->write_optional(concat("explain-", result_.step, ".txt"), text);
  if (o_.quiet) return;
  progress_->clear();
  std::fprintf(stderr, "%s", text.c_str());
}

// Of the pending steps, over the ranks, added in their order: the same bits however many steps are
// summed at once.
std::vector<TrainingLog::LossSum> TrainingLog::sum_losses() {
  std::vector<LossSum> sums;
  for (const Pending& step : pending_) {
    const auto units = static_cast<double>(step.facts.units);
    sums.push_back({step.facts.loss * units, units});
  }
  if (result_.world_size == 1) return sums;
  std::vector<std::vector<LossSum>> of_ranks;
  optimizer_.collective("losses",
                        [&](Communicator& comm) { of_ranks = gather_values(comm, sums); });
  std::ranges::fill(sums, LossSum{});
  for (const std::vector<LossSum>& of_rank : of_ranks) {
    for (size_t i = 0; i < sums.size(); ++i) {
      sums[i].loss += of_rank[i].loss;
      sums[i].units += of_rank[i].units;
    }
  }
  return sums;
}

// Averages the losses of the pending steps over the ranks and writes them down.
void TrainingLog::flush() {
  if (pending_.empty()) return;  // on all ranks
  const auto count = std::ssize(pending_);
  const std::vector<LossSum> sums = sum_losses();
  for (int64_t i = 0; i < count; ++i) {
    const auto& [facts, exchange] = pending_[static_cast<size_t>(i)];
    const auto [total, units] = sums[static_cast<size_t>(i)];
    const double loss = total / units;
    loss_sum_ += total;
    loss_units_ += units;
    if (healthy() && hopeless(loss))
      diverge(result_.step - count + i + 1, facts.lr, said("loss", loss));
    if (folder_ == nullptr) continue;
    const StepTimes& t = facts.times;
    const double seconds = t.data + t.forward + t.backward + t.update;
    nlohmann::ordered_json line = {{"step", result_.step - count + i + 1},
                                   {"epoch", result_.epoch + 1},
                                   {"split", "train"},
                                   {"loss", loss},
                                   {"lr", facts.lr}};
    if (names_.metrics) line.update(names_.metrics(loss));
    line.update({{names_.rate_key, units / std::max(seconds, 1e-9)},
                 {"t_data", t.data},
                 {"t_forward", t.forward},
                 {"t_backward", t.backward},
                 {"t_update", t.update}});
    if (result_.world_size > 1)
      line.update({{"bytes_sent", exchange.sent},
                   {"bytes_received", exchange.received},
                   {"bytes_dense", optimizer_.dense_bytes()},
                   {"ratio", static_cast<double>(optimizer_.dense_bytes()) /
                                 static_cast<double>(std::max<int64_t>(exchange.sent, 1))},
                   {"t_comm", exchange.comm_s},
                   {"t_compress", exchange.compress_s},
                   {"t_exposed", exchange.exposed_s}});
    folder_->metric(line);
    if (result_.world_size > 1)
      progress_->exchanged(optimizer_.dense_bytes(), exchange.sent, exchange.exposed_s, seconds);
    progress_->step(result_.step - count + i + 1, result_.epoch + 1, loss, facts.lr,
                    static_cast<int64_t>(units));
  }
  pending_.clear();
  flushed_at_ = steady_seconds();
}

bool TrainingLog::settle() {
  flush();
  return healthy();
}

nlohmann::ordered_json TrainingLog::save() {
  return {
      {"loss_sum", loss_sum_},
      {"loss_units", loss_units_},
      {"train_loss", result_.train_loss},
      {"skipped", 0},  // nothing is saved after a refused step; versions before this one read it
      {"metrics_bytes", folder_ == nullptr ? 0 : folder_->flush()}};
}

void TrainingLog::restore(int64_t step, int64_t epoch, const nlohmann::json& saved) {
  result_.step = step;
  result_.epoch = epoch;
  loss_sum_ = saved.at("loss_sum").get<double>();
  loss_units_ = saved.at("loss_units").get<double>();
  if (saved.at("train_loss").is_number()) result_.train_loss = saved["train_loss"].get<double>();
  seen_ = before_ = optimizer_.totals();
  watch_step(step + 1);
}

void TrainingLog::take_totals() {
  const DataParallelOptimizer::Totals totals = optimizer_.totals();
  result_.bytes_sent = totals.traffic.sent;
  result_.bytes_received = totals.traffic.received;
  result_.bytes_dense = optimizer_.dense_bytes() * result_.step;
  result_.exposed_comm_s = totals.exposed_s;
  result_.rejected_buckets = totals.rejected;
}

void TrainingLog::finish_epoch() {
  flush();
  ++result_.epoch;
  if (healthy()) result_.train_loss = loss_sum_ / loss_units_;
  loss_sum_ = loss_units_ = 0;
  take_totals();
}

// What leads in turn is not the same on every rank.
void TrainingLog::compare_bytes() {
  const DataParallelOptimizer::Totals now = optimizer_.totals();
  const bool compressed = now.compressed_steps > before_.compressed_steps;
  const int64_t steps = compressed ? now.compressed_steps - before_.compressed_steps
                                   : now.dense_steps - before_.dense_steps;
  const int64_t bytes_sent = compressed ? now.compressed_sent - before_.compressed_sent
                                        : now.dense_sent - before_.dense_sent;
  if (result_.world_size == 1 || steps == 0) return;
  std::vector<std::vector<int64_t>> sent;
  optimizer_.collective("bytes sent", [&](Communicator& comm) {
    sent = gather_values(comm, std::vector{bytes_sent});
  });
  for (const std::vector<int64_t>& of_rank : sent) {
    const double bytes = static_cast<double>(of_rank[0]) / static_cast<double>(steps);
    result_.bytes_step_mean += bytes / static_cast<double>(sent.size());
    result_.bytes_step_max = std::max(result_.bytes_step_max, bytes);
  }
}

void TrainingLog::finish(const std::string& last_checkpoint) {
  if (healthy()) compare_bytes();
  take_totals();
  result_.ratios = ratios(optimizer_, store_);
  if (folder_ == nullptr) return;
  if (result_.status == "diverged" && !last_checkpoint.empty())
    std::fprintf(stderr, "%s: the last checkpoint before: %s\n", names_.program.c_str(),
                 last_checkpoint.c_str());
  if (const std::string table = quality_.table(); !table.empty() && !o_.quiet) {
    progress_->clear();
    std::fprintf(stderr, "%s", table.c_str());
  }
  const int64_t before = result_.step - steps_here_;  // steps of earlier processes
  const auto missed = [&](const std::string& flag) {
    progress_->note(
        concat(flag, ": not among the steps ", before + 1, " to ", result_.step, " of this run"));
  };
  if (o_.explain_step > 0 && (o_.explain_step <= before || o_.explain_step > result_.step))
    missed(concat("--explain-step ", o_.explain_step));
  if (o_.dump_gradients > 0 && (o_.dump_gradients <= before || o_.dump_gradients > result_.step))
    missed(concat("--dump-gradients ", o_.dump_gradients));
  if (!o_.trace.empty())
    if (const StepRange range = o_.parsed.trace_steps;
        range.last <= before || range.first > result_.step)
      missed("--trace-steps " + o_.trace_steps);
  folder_->metric(summary_line(result_, store_));
  if (result_.world_size == 1) {
    if (o_.ledger) progress_->note("--ledger: one learner sends nothing");
    return;
  }
  if (result_.rejected_buckets > 0)
    progress_->note(concat(result_.rejected_buckets,
                           " exchanges held gradients that were not finite, and were not applied"));
  const DataParallelOptimizer::Totals totals = optimizer_.totals();
  folder_->metric(ledger_json(optimizer_.ledger()));
  if (!o_.ledger || o_.quiet) return;
  progress_->clear();
  std::fprintf(stderr, "%s", ledger_table(optimizer_.ledger(), totals.traffic).c_str());
}

void TrainingLog::evaluated(const char* split, double loss, const nlohmann::ordered_json& metrics,
                            const std::string& line) {
  if (!std::isfinite(loss)) diverge(result_.step, lr_, said(concat(split, " loss"), loss));
  if (folder_ == nullptr) return;
  nlohmann::ordered_json json = {
      {"step", result_.step}, {"epoch", result_.epoch}, {"split", split}, {"loss", loss}};
  json.update(metrics);
  folder_->metric(json);
  progress_->note(concat("epoch ", result_.epoch, ": ", line));
}

void TrainingLog::diverge(int64_t step, double lr, const std::string& why) {
  if (!healthy()) return;
  result_.status = "diverged";
  result_.train_loss = NAN;
  if (progress_ == nullptr) return;
  progress_->clear();
  std::fprintf(stderr,
               "%s: diverged at step %lld, lr %g: %s; %s; a lower --lr, --clip-grad-norm or "
               "--lr-warmup-epochs may help\n",
               names_.program.c_str(), static_cast<long long>(step), lr, why.c_str(),
               suspect(store_).c_str());
}

std::function<void(const std::string&)> noting(Progress* progress) {
  if (progress == nullptr) return {};
  return [progress](const std::string& line) { progress->note(line); };
}

namespace {

// The folder in which a checkpoint's run was: that of checkpoints/step-400.
bool is_run_of(const std::string& folder, const Checkpoint& checkpoint) {
  namespace fs = std::filesystem;
  std::error_code error;
  return fs::equivalent(folder, fs::absolute(checkpoint.path, error).parent_path().parent_path(),
                        error);
}

RunFolder open_folder(const CommonOptions& o, const std::optional<Checkpoint>& checkpoint) {
  // A run that was ending while this one chose its checkpoint may have left a newer one.
  const auto still_newest = [&] {
    if (o.resume != "auto") return;
    const std::optional<Checkpoint> now = find_checkpoint(o.output_dir).newest;
    if ((now ? now->step : -1) != (checkpoint ? checkpoint->step : -1))
      throw Error(concat("run folder ", o.output_dir,
                         ": another run has just left a checkpoint there; start again"));
  };
  if (checkpoint && !o.output_dir.empty() && is_run_of(o.output_dir, *checkpoint)) {
    const auto& bytes = checkpoint->state.at("log").at("metrics_bytes");
    return RunFolder::reopen(o.output_dir, bytes.is_number_integer() ? bytes.get<int64_t>() : 0,
                             still_newest, true);
  }
  if (o.resume == "auto") {
    check(!RunFolder::holds_finished_run(o.output_dir), "--resume auto: ", o.output_dir,
          " holds a run that has ended and has left no checkpoint; it would be written over");
    return RunFolder::reopen(o.output_dir, 0, still_newest);
  }
  return RunFolder::create(o.output_dir, o.name);
}

}  // namespace

RunFiles open_run(const CommonOptions& o, const std::string& config,
                  const std::vector<std::string>& arguments, Context& context,
                  const std::optional<Checkpoint>& checkpoint) {
  RunFiles files;
  if (!o.trace.empty()) files.trace = std::make_unique<AtomicFile>(o.trace);
  files.folder = std::make_unique<RunFolder>(open_folder(o, checkpoint));
  begin_events(o, *files.folder);
  files.folder->write("config.toml", config);
  files.folder->write("run.json", describe_run({arguments, o.seed, context.threads(),
                                                to_string(context.device()), o.precision}));
  return files;
}

void finish_trace(const CommonOptions& o, const RunFiles& files, Context& context,
                  Communicator& comm) {
  if (o.trace.empty()) return;
  comm.set_tag("trace");
  // The clocks of other machines count from elsewhere; after the barrier it is now for all of them.
  constexpr double kSameClock = 10e6;  // microseconds: ranks of one machine keep their times
  comm.barrier();
  const double now = Trace::now();
  const Tensor clock = Tensor::empty_on(Device{}, {1}, DType::i64);
  clock.data<int64_t>()[0] = static_cast<int64_t>(now);
  comm.broadcast(clock, 0);
  const double difference = static_cast<double>(clock.data<int64_t>()[0]) - now;
  std::string all =
      context.trace().events(comm.rank(), std::abs(difference) > kSameClock ? difference : 0.0);
  // One rank after the other, so that nobody but the first holds more than its own and another's.
  for (int rank = 1; rank < comm.size(); ++rank) {
    const std::string text = broadcast_text(all, comm, rank);
    if (comm.rank() == 0) all += text;
  }
  if (files.trace == nullptr) return;
  try {
    files.trace->write(Trace::json(all));
    files.trace->commit();
  } catch (const Error& error) {
    files.folder->note_trouble("trace.json", error.what());
  }
}

ExitCode exit_code(const TrainingResult& result) {
  if (result.status == "stopped") return ExitCode::stopped;
  return result.status == "done" ? ExitCode::ok : ExitCode::diverged;
}

nlohmann::ordered_json begin_summary(const TrainingResult& result) {
  return {{"status", result.status},
          {"epoch", result.epoch},
          {"step", result.step},
          {"train_loss", result.train_loss}};
}

void end_summary(nlohmann::ordered_json& summary, const std::string& rate_key,
                 const TrainingResult& result, int64_t seed, const std::string& run_folder) {
  summary.update({{rate_key, result.rate},
                  {"wall_s", seconds_since_process_start()},
                  {"first_step_s", result.first_step_s},
                  {"peak_rss_bytes", peak_rss_bytes()},
                  {"world_size", result.world_size},
                  {"bytes_sent", result.bytes_sent},
                  {"bytes_received", result.bytes_received},
                  {"bytes_dense", result.bytes_dense},
                  {"ratio_layers", result.ratios.layers},
                  {"ratio_values", result.ratios.values},
                  {"ratio_wire", result.ratios.wire},
                  {"ratio_run", result.ratios.run},
                  {"bytes_step_mean", result.bytes_step_mean},
                  {"bytes_step_max", result.bytes_step_max},
                  {"rejected_buckets", result.rejected_buckets},
                  {"clipped_steps", result.clipped_steps},
                  {"clipped_norm", result.clipped_norm},
                  {"exposed_comm_s", result.exposed_comm_s},
                  {"seed", seed}});
  if (!run_folder.empty()) summary["run_folder"] = run_folder;
}

}  // namespace heddle
