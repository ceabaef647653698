#include "apps/training_log.h"

#include <algorithm>
#include <cstdio>

#include "core/error.h"

namespace heddle {

TrainingLog::TrainingLog(const TrainingLogOptions& names, const CommonOptions& o, Context& context,
                         RunFolder& folder, Progress& progress)
    : names_(names), o_(o), context_(context), folder_(folder), progress_(progress) {
  trace_step(1);
}

void TrainingLog::trace_step(int64_t step) {
  if (o_.trace.empty()) return;
  const StepRange range = parse_step_range(o_.trace_steps);
  if (step == range.first) context_.trace().start();
  if (step == range.last + 1) context_.trace().stop();
}

bool TrainingLog::finish_step(const StepReport& report, const StepFacts& facts) {
  const StepTimes& t = facts.times;
  const double seconds = t.data + t.forward + t.backward + t.update;
  ++result_.step;
  if (result_.step == 1) result_.first_step_s = seconds_since_process_start();
  // The first step also makes the kernels' plans; the rate is that of the steps behind it.
  if (result_.step <= 2) units_ = 0, seconds_ = 0;
  units_ += facts.units;
  seconds_ += seconds;
  result_.rate = static_cast<double>(units_) / std::max(seconds_, 1e-9);
  nlohmann::ordered_json line = {{"step", result_.step},
                                 {"epoch", result_.epoch + 1},
                                 {"split", "train"},
                                 {"loss", facts.loss},
                                 {"lr", facts.lr}};
  line.update(facts.metrics);
  line.update({{names_.rate_key, static_cast<double>(facts.units) / std::max(seconds, 1e-9)},
               {"t_data", t.data},
               {"t_forward", t.forward},
               {"t_backward", t.backward},
               {"t_update", t.update}});
  folder_.metric(line);
  progress_.step(result_.step, result_.epoch + 1, facts.loss, facts.lr, facts.units);
  trace_step(result_.step + 1);

  skipped_ = report.skipped_parameters > 0 ? skipped_ + 1 : 0;
  if (skipped_ > o_.max_skipped) {
    diverge(facts.lr, concat("gradients were not finite in ", skipped_, " steps in a row"));
  }
  return healthy();
}

void TrainingLog::evaluated(const char* split, double loss, const nlohmann::ordered_json& metrics,
                            const std::string& line) {
  nlohmann::ordered_json json = {
      {"step", result_.step}, {"epoch", result_.epoch}, {"split", split}, {"loss", loss}};
  json.update(metrics);
  folder_.metric(json);
  progress_.note(concat("epoch ", result_.epoch, ": ", line));
}

void TrainingLog::diverge(double lr, const std::string& why) {
  result_.status = "diverged";
  result_.train_loss = NAN;
  progress_.clear();
  std::fprintf(stderr,
               "%s: diverged at step %lld, lr %g: %s; a lower --lr, --clip-grad-norm or "
               "--lr-warmup-epochs may help\n",
               names_.program.c_str(), static_cast<long long>(result_.step + 1), lr, why.c_str());
}

RunFiles open_run(const CommonOptions& o, const std::string& config,
                  const std::vector<std::string>& arguments, Context& context) {
  RunFiles files;
  if (!o.trace.empty()) files.trace = std::make_unique<AtomicFile>(o.trace);
  files.folder = std::make_unique<RunFolder>(RunFolder::create(o.output_dir, o.name));
  files.folder->write("config.toml", config);
  files.folder->write("run.json", describe_run({arguments, o.seed, context.threads(),
                                                to_string(context.device()), o.precision}));
  return files;
}

void finish_trace(const RunFiles& files, Context& context) {
  if (files.trace == nullptr) return;
  files.trace->write(context.trace().json());
  files.trace->commit();
}

nlohmann::ordered_json begin_summary(const TrainingResult& result) {
  return {{"status", result.status},
          {"epoch", result.epoch},
          {"step", result.step},
          {"train_loss", result.train_loss}};
}

void end_summary(nlohmann::ordered_json& summary, const std::string& rate_key,
                 const TrainingResult& result, int64_t seed, const RunFolder* folder) {
  summary.update({{rate_key, result.rate},
                  {"wall_s", seconds_since_process_start()},
                  {"first_step_s", result.first_step_s},
                  {"peak_rss_bytes", peak_rss_bytes()},
                  {"world_size", 1},
                  {"seed", seed}});
  if (folder != nullptr) summary["run_folder"] = folder->path();
}

}  // namespace heddle
