#include "apps/log/summary.h"

#include <nlohmann/json.hpp>

#include "apps/cli/process.h"

namespace heddle {
namespace {

double quotient(double dense, double sent) { return sent > 0 ? dense / sent : 1.0; }

void add_traffic(nlohmann::ordered_json& json, const TrainingResult& result) {
  json.update({{"world_size", result.world_size},
               {"bytes_sent", result.bytes_sent},
               {"bytes_received", result.bytes_received},
               {"bytes_dense", result.bytes_dense},
               {"ratio_layers", result.ratios.layers},
               {"ratio_values", result.ratios.values},
               {"ratio_wire", result.ratios.wire},
               {"ratio_run", result.ratios.run}});
}

}  // namespace

Ratios ratios(const DataParallelOptimizer& optimizer, const ParameterStore& store) {
  const DataParallelOptimizer::Totals totals = optimizer.totals();
  Ratios out;
  if (totals.compressed_steps == 0) return out;
  const auto steps = static_cast<double>(totals.compressed_steps);
  double dense_all = 0, sent_all = 0, dense_layers = 0, sent_layers = 0;
  for (const Parameter& p : store.parameters()) {
    const auto entry = optimizer.ledger().entries().find({p.name, PayloadKind::values});
    if (entry == optimizer.ledger().entries().end()) continue;
    const double dense = static_cast<double>(p.size()) * 4;
    const double sent = (static_cast<double>(entry->second.payload) -
                         dense * static_cast<double>(totals.dense_steps)) /
                        steps;
    dense_all += dense;
    sent_all += sent;
    if (sent >= dense) continue;
    dense_layers += dense;
    sent_layers += sent;
  }
  out.layers = quotient(dense_layers, sent_layers);
  out.values = quotient(dense_all, sent_all);
  const auto dense_bytes = static_cast<double>(optimizer.dense_bytes());
  out.wire = quotient(dense_bytes * steps, static_cast<double>(totals.compressed_sent));
  out.run = quotient(dense_bytes * (steps + static_cast<double>(totals.dense_steps)),
                     static_cast<double>(totals.compressed_sent + totals.dense_sent));
  return out;
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
                  {"peak_rss_bytes", peak_rss_bytes()}});
  add_traffic(summary, result);
  summary.update({{"bytes_step_mean", result.bytes_step_mean},
                  {"bytes_step_max", result.bytes_step_max},
                  {"rejected_buckets", result.rejected_buckets},
                  {"clipped_steps", result.clipped_steps},
                  {"clipped_norm", result.clipped_norm},
                  {"exposed_comm_s", result.exposed_comm_s},
                  {"seed", seed}});
  if (!run_folder.empty()) summary["run_folder"] = run_folder;
}

nlohmann::ordered_json summary_line(const TrainingResult& result, const ParameterStore& store) {
  nlohmann::ordered_json line = {{"summary", result.status},
                                 {"step", result.step},
                                 {"epoch", result.epoch},
                                 {"train_loss", result.train_loss}};
  add_traffic(line, result);
  line["exposed_comm_s"] = result.exposed_comm_s;
  nlohmann::ordered_json& layers = line["layers"] = nlohmann::ordered_json::object();
  for (const Parameter& p : store.parameters()) layers[p.name] = p.size();
  return line;
}

}  // namespace heddle
