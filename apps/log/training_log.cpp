#include "apps/log/training_log.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "apps/cli/format.h"
#include "apps/cli/process.h"
#include "apps/log/control_word.h"
#include "apps/log/explain_step.h"
#include "apps/log/ledger_report.h"
#include "comm/group.h"
#include "core/context.h"
#include "core/error.h"
#include "core/kernels.h"

namespace heddle {
namespace {

constexpr auto kShow = to_size(ControlWord::show);
// Seconds after which several learners average losses even before --print-freq steps are complete.
constexpr double kMaxFlushInterval = 5;

// Names the first layer whose weights are not finite, or, if all are, the one with the largest
// weight.
std::string describe_suspect(const ParameterStore& store) {
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

// Returns "the loss is nan", without the sign that a NaN may have.
std::string loss_text(const std::string& name, double loss) {
  return concat("the ", name, " is ", std::isnan(loss) ? NAN : loss);
}

}  // namespace

TrainingLog::TrainingLog(const TrainingLogOptions& options, const CommonOptions& o,
                         const ParameterStore& store, LearnerOptimizer& optimizer,
                         RunFolder* folder, Progress* progress)
    : options_(options),
      o_(o),
      trace_(Context::current().trace()),
      store_(store),
      optimizer_(optimizer),
      folder_(folder),
      progress_(progress),
      quality_(console_logger(progress)) {
  result_.world_size = optimizer.learners();
  result_.hosts = std::ssize(first_ranks(optimizer.state().hosts));
  prepare_step(1);
}

// Starts what was requested for this step: trace, explanation, dump.
void TrainingLog::prepare_step(int64_t step) {
  const bool explain = step == o_.explain_step && folder_ != nullptr;
  if (explain) optimizer_.wait();  // with --outer-delay: notes are of one step
  trace_.explain(explain);
  dumping_ = step == o_.dump_gradients && folder_ != nullptr;
  if (o_.trace.empty()) return;
  const StepRange range = o_.parsed.trace_steps;
  const bool on = step >= range.first && step <= range.last;
  if (on != trace_.enabled()) on ? trace_.start() : trace_.stop();
}

bool TrainingLog::check_loss(double loss, double lr) {
  if (result_.world_size == 1 && is_divergent(loss))
    diverge(result_.step + 1, lr, loss_text("loss", loss));
  return running();
}

bool TrainingLog::is_divergent(double loss) const {
  return !std::isfinite(loss) || (o_.max_loss > 0 && loss > o_.max_loss);
}

bool TrainingLog::finish_step(const StepReport& report, const StepFacts& facts) {
  ++result_.step;
  lr_ = facts.lr;
  if (++steps_here_ == 1) result_.first_step_s = seconds_since_process_start();
  if (report.clip < 1) {
    ++result_.clipped_steps;
    result_.clipped_norm += (1 - report.clip) * report.grad_norm;
  }
  const bool skipped = report.skipped_parameters > 0;
  pending_.push_back({facts, exchange_since_last(), optimizer_.figures(), skipped ? 1.0 : 0.0});
  if (std::isfinite(report.grad_norm)) pending_.back().figures["grad_norm"] = report.grad_norm;
  if (trace_.explaining()) explain(pending_.back());
  if (dumping_) dump_gradients();
  if (result_.world_size == 1 || result_.step % o_.print_freq == 0 || optimizer_.control(kShow) > 0)
    flush_losses();
  // The first rank requests it, and all average after the next step; not with --deterministic,
  // where equal runs send equal bytes.
  const bool late = folder_ != nullptr && steady_seconds() - flushed_at_ > kMaxFlushInterval;
  optimizer_.set_control(kShow, late && !o_.deterministic ? 1.0f : 0.0f);
  prepare_step(result_.step + 1);
  if (quality_.add(result_.step, optimizer_.take_quality()) && folder_ != nullptr)
    folder_->metric(quality_.json());
  if (const std::string note = optimizer_.take_note(); !note.empty() && progress_ != nullptr)
    progress_->note(note);

  if (optimizer_.own_weights()) return running();  // each rank skips for itself: see flush_losses()
  skipped_ = skipped ? skipped_ + 1 : 0;
  if (skipped_ > o_.max_skipped) {
    flush_losses();  // all ranks count the same steps
    diverge(result_.step, facts.lr,
            concat("gradients were not finite in ", skipped_,
                   " consecutive steps; the first in this step is that of ", report.first_skipped));
  }
  return running();
}

ExchangeFacts TrainingLog::exchange_since_last() {
  const LearnerOptimizer::Totals last = seen_;
  seen_ = optimizer_.totals();
  const double exchange_s = seen_.exchange_s - last.exchange_s;
  const double comm_s = seen_.collective_s - last.collective_s;
  const auto between = [](const LearnerOptimizer::Totals& t) {
    return t.dense_sent + t.compressed_sent;
  };
  return {.sent = seen_.traffic.sent - last.traffic.sent,
          .received = seen_.traffic.received - last.traffic.received,
          .between = between(seen_) - between(last),
          .dense = seen_.dense_of_dense + seen_.dense_of_compressed - last.dense_of_dense -
                   last.dense_of_compressed,
          .comm_s = comm_s,
          .compress_s = std::max(0.0, exchange_s - comm_s),
          .exposed_s = seen_.exposed_s - last.exposed_s};
}

void TrainingLog::record_gradient(const Parameter& p) {
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

// Writes the explanation of a step to stderr and to the run folder.
void TrainingLog::explain(const Pending& step) {
  const std::string text = step_story({.program = options_.program,
                                       .step = result_.step,
                                       .epoch = result_.epoch + 1,
                                       .learners = result_.world_size,
                                       .facts = step.facts,
                                       .exchange = step.exchange,
                                       .bytes_dense = optimizer_.dense_bytes(),
                                       .notes = trace_.take_notes()});
  folder_->write_optional(concat("explain-", result_.step, ".txt"), text);
  print_table(text);
}

void TrainingLog::print_table(const std::string& table) const {
  if (o_.quiet || table.empty()) return;
  progress_->clear();
  std::fprintf(stderr, "%s", table.c_str());
}

// Sums the losses of each pending step over the ranks, in their order, so that the bits do not
// depend on how many steps are summed at once.
std::vector<TrainingLog::LossSum> TrainingLog::sum_losses() {
  std::vector<LossSum> sums;
  for (const Pending& step : pending_) {
    const auto units = to_double(step.facts.units);
    sums.push_back({step.facts.loss * units, units, step.skipped});
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
      sums[i].skipped += of_rank[i].skipped;
    }
  }
  return sums;
}

bool TrainingLog::flush_losses() {
  if (pending_.empty()) return running();  // on all ranks
  const auto count = std::ssize(pending_);
  const std::vector<LossSum> sums = sum_losses();
  for (int64_t i = 0; i < count; ++i) {
    const Pending& pending = pending_[to_size(i)];
    const auto [total, units, skipped] = sums[to_size(i)];
    const int64_t step = result_.step - count + i + 1;
    const double loss = units > 0 ? total / units : NAN;  // NAN: no group was drawn
    loss_sum_ += total;
    loss_units_ += units;
    // The first step also creates the kernels' plans, so the rate counts from the second one on.
    if (steps_here_ - count + i < 2) units_ = seconds_ = 0;
    units_ += units;
    seconds_ += pending.facts.times.total();
    result_.rate = units_ / std::max(seconds_, 1e-9);
    if (running() && units > 0 && is_divergent(loss))
      diverge(step, pending.facts.lr, loss_text("loss", loss));
    if (optimizer_.own_weights()) skipped_ = skipped > 0 ? skipped_ + 1 : 0;
    if (running() && skipped_ > o_.max_skipped && optimizer_.own_weights())
      diverge(step, pending.facts.lr,
              concat("in ", skipped_,
                     " consecutive steps a learner's gradients or weights were not "
                     "finite"));
    if (folder_ != nullptr) write_step(step, loss, units, pending);
  }
  pending_.clear();
  flushed_at_ = steady_seconds();
  return running();
}

// Writes a step's line of metrics and shows its progress.
void TrainingLog::write_step(int64_t step, double loss, double units, const Pending& pending) {
  const auto& [facts, exchange, figures, skipped] = pending;
  const StepTimes& t = facts.times;
  nlohmann::ordered_json line = {{"step", step},
                                 {"epoch", result_.epoch + 1},
                                 {"split", "train"},
                                 {"loss", loss},
                                 {"lr", facts.lr}};
  if (options_.metrics) line.update(options_.metrics(loss));
  line.update({{options_.rate_key, units / std::max(t.total(), 1e-9)},
               {"t_data", t.data},
               {"t_forward", t.forward},
               {"t_backward", t.backward},
               {"t_update", t.update}});
  if (result_.world_size > 1) {
    const int64_t sent = result_.hosts > 0 ? exchange.between : exchange.sent;
    if (result_.hosts > 0) line["bytes_between"] = exchange.between;
    line.update({{"bytes_sent", exchange.sent},
                 {"bytes_received", exchange.received},
                 {"bytes_dense", optimizer_.dense_bytes()},
                 {"t_comm", exchange.comm_s},
                 {"t_compress", exchange.compress_s},
                 {"t_exposed", exchange.exposed_s}});
    if (exchange.dense > 0 && sent > 0) line["ratio"] = to_double(exchange.dense) / to_double(sent);
    progress_->exchanged(exchange.dense, sent, exchange.exposed_s, t.total());
  }
  for (const auto& [name, value] : facts.figures) line[name] = value;
  for (const auto& [name, value] : figures) line[name] = value;
  if (const auto epsilon = figures.find("epsilon"); epsilon != figures.end())
    progress_->spent(epsilon->second);
  folder_->metric(line);
  progress_->step(step, result_.epoch + 1, loss, facts.lr, to_int64(units));
}

nlohmann::ordered_json TrainingLog::save() {
  return {{"loss_sum", loss_sum_},
          {"loss_units", loss_units_},
          {"train_loss", result_.train_loss},
          {"skipped", 0},  // nothing is saved after a skipped step; earlier versions read it
          {"metrics_bytes", folder_ == nullptr ? 0 : folder_->flush()}};
}

void TrainingLog::restore(int64_t step, int64_t epoch, const nlohmann::json& saved) {
  result_.step = step;
  result_.epoch = epoch;
  loss_sum_ = saved.at("loss_sum").get<double>();
  loss_units_ = saved.at("loss_units").get<double>();
  if (saved.at("train_loss").is_number()) result_.train_loss = saved["train_loss"].get<double>();
  seen_ = before_ = optimizer_.totals();
  prepare_step(step + 1);
}

void TrainingLog::update_totals() {
  const LearnerOptimizer::Totals totals = optimizer_.totals();
  result_.bytes_sent = totals.traffic.sent;
  result_.bytes_received = totals.traffic.received;
  result_.bytes_dense = totals.dense_of_dense + totals.dense_of_compressed;
  result_.exposed_comm_s = totals.exposed_s;
  result_.rejected_buckets = totals.rejected;
  if (result_.hosts > 0) result_.bytes_between = totals.dense_sent + totals.compressed_sent;
}

void TrainingLog::finish_epoch() {
  flush_losses();
  ++result_.epoch;
  if (running()) result_.train_loss = loss_sum_ / loss_units_;
  loss_sum_ = loss_units_ = 0;
  update_totals();
}

// Averages over the ranks the bytes sent in a step, which differ if ranks take turns as leader.
void TrainingLog::compare_bytes() {
  const LearnerOptimizer::Totals now = optimizer_.totals();
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
  const int64_t sources = result_.hosts > 0 ? result_.hosts : std::ssize(sent);
  for (const std::vector<int64_t>& of_rank : sent) {
    const double bytes = to_double(of_rank[0]) / to_double(steps);
    result_.bytes_step_mean += bytes / to_double(sources);
    result_.bytes_step_max = std::max(result_.bytes_step_max, bytes);
  }
}

void TrainingLog::finish(const std::string& last_checkpoint) {
  if (running()) compare_bytes();
  update_totals();
  result_.ratios = ratios(optimizer_, store_);
  if (!o_.peers.empty()) result_.consensus_error = optimizer_.consensus_error().value_or(NAN);
  result_.privacy = privacy();
  if (folder_ == nullptr) return;
  if (result_.status == "diverged" && !last_checkpoint.empty())
    std::fprintf(stderr, "%s: the last checkpoint before that: %s\n", options_.program.c_str(),
                 last_checkpoint.c_str());
  print_table(quality_.table());
  note_missed_steps();
  folder_->metric(summary_line(result_, store_));
  if (result_.world_size == 1) {
    if (o_.ledger) progress_->note("--ledger: a single learner sends nothing");
    return;
  }
  if (result_.rejected_buckets > 0)
    progress_->note(concat(result_.rejected_buckets,
                           " exchanges had gradients that were not finite and were not applied"));
  folder_->metric(ledger_json(optimizer_.ledger()));
  if (o_.ledger) print_table(ledger_table(optimizer_.ledger(), optimizer_.totals().traffic));
}

std::optional<PrivacyResult> TrainingLog::privacy() const {
  const RdpAccountant* accountant = optimizer_.accountant();
  if (accountant == nullptr) return std::nullopt;
  const NoisySum& sum = accountant->mechanism();
  return PrivacyResult{.unit = privacy_unit(o_),
                       .secret = sum.secret,
                       .epsilon = accountant->spent().epsilon,
                       .delta = sum.delta,
                       .sigma = sum.sigma,
                       .noise_multiplier = sum.noise_multiplier(),
                       .rate = sum.rate,
                       .queries = accountant->state().queries};
}

// Notes the flags that asked for a step which this process did not run.
void TrainingLog::note_missed_steps() const {
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
}

void TrainingLog::evaluated(const char* split, double loss, const nlohmann::ordered_json& metrics,
                            const std::string& text) {
  if (!std::isfinite(loss)) diverge(result_.step, lr_, loss_text(concat(split, " loss"), loss));
  if (folder_ == nullptr) return;
  nlohmann::ordered_json json = {
      {"step", result_.step}, {"epoch", result_.epoch}, {"split", split}, {"loss", loss}};
  json.update(metrics);
  json["peak_rss_bytes"] = peak_rss_bytes();
  std::string apart;
  const auto error = optimizer_.consensus_error();
  if (error && std::string_view(split) == "valid") {
    json["consensus_error"] = *error;
    apart = concat(", consensus error ", significant(*error));
  }
  folder_->metric(json);
  progress_->note(concat("epoch ", result_.epoch, ": ", text, apart));
}

void TrainingLog::diverge(int64_t step, double lr, const std::string& why) {
  if (!running()) return;
  result_.status = "diverged";
  result_.train_loss = NAN;
  if (progress_ == nullptr) return;
  progress_->clear();
  std::fprintf(stderr,
               "%s: diverged at step %lld, lr %g: %s%s; a lower --lr, --clip-grad-norm or "
               "--lr-warmup-epochs may help\n",
               options_.program.c_str(), static_cast<long long>(step), lr, why.c_str(),
               !optimizer_.own_weights() ? ("; " + describe_suspect(store_)).c_str() : "");
}

}  // namespace heddle
