#include "apps/log/summary.h"

#include <nlohmann/json.hpp>
#include <type_traits>

#include "apps/cli/format.h"
#include "apps/cli/json.h"
#include "apps/cli/process.h"

namespace heddle {
namespace {

double quotient(double dense, double sent) { return sent > 0 ? dense / sent : 1.0; }

// Calls visit(key, number) for everything that a summary line records as a number.
template <class Result, class Visit>
void visit_numbers(Result& result, const Visit& visit) {
  visit("step", result.step);
  visit("epoch", result.epoch);
  visit("train_loss", result.train_loss);
  visit("world_size", result.world_size);
  visit("bytes_sent", result.bytes_sent);
  visit("bytes_received", result.bytes_received);
  visit("bytes_dense", result.bytes_dense);
  visit("ratio_layers", result.ratios.layers);
  visit("ratio_values", result.ratios.values);
  visit("ratio_wire", result.ratios.wire);
  visit("ratio_run", result.ratios.run);
  visit("exposed_comm_s", result.exposed_comm_s);
}

// Adds what only an exchange in two levels has.
void add_hosts(nlohmann::ordered_json& json, const TrainingResult& result) {
  if (result.hosts == 0) return;
  json["hosts"] = result.hosts;
  json["bytes_between"] = result.bytes_between;
}

nlohmann::ordered_json privacy_json(const PrivacyResult& p) {
  return {{"private", p.epsilon <= kLargestEpsilon},
          {"epsilon", p.epsilon},
          {"delta", p.delta},
          {"unit", p.unit},
          {"noise_multiplier", p.noise_multiplier},
          {"sigma", p.sigma},
          {"rate", p.rate},
          {"queries", p.queries},
          {"secret_noise", p.secret}};
}

PrivacyResult parse_privacy(const nlohmann::json& json) {
  return {.unit = text_at(json, "unit"),
          .secret = json.value("secret_noise", false),
          .epsilon = number_at(json, "epsilon"),
          .delta = number_at(json, "delta"),
          .sigma = number_at(json, "sigma"),
          .noise_multiplier = number_at(json, "noise_multiplier"),
          .rate = number_at(json, "rate"),
          .queries = whole_at(json, "queries")};
}

}  // namespace

std::string privacy_text(const PrivacyResult& privacy) {
  const std::string why = !privacy.secret      ? "noise-seed reveals the noise"
                          : privacy.sigma == 0 ? "there was no noise"
                          : std::isfinite(privacy.epsilon)
                              ? concat("epsilon ", significant(privacy.epsilon))
                              : "a part of the run has no account of its privacy";
  if (!(privacy.epsilon <= kLargestEpsilon)) return "NOT PRIVATE: " + why;
  return concat(why, " at delta ", significant(privacy.delta), " for ", privacy.unit);
}

Ratios ratios(const LearnerOptimizer& optimizer, const ParameterStore& store) {
  const LearnerOptimizer::Totals totals = optimizer.totals();
  Ratios out;
  if (totals.compressed_steps > 0 || optimizer.own_weights())
    out.run = quotient(to_double(totals.dense_of_compressed + totals.dense_of_dense),
                       to_double(totals.compressed_sent + totals.dense_sent));
  if (totals.compressed_steps == 0) return out;
  const auto steps = to_double(totals.compressed_steps - totals.compressed_local);
  double dense_all = 0, sent_all = 0, dense_layers = 0, sent_layers = 0;
  for (const Parameter& p : store.parameters()) {
    const auto entry = optimizer.ledger().entries().find({p.name, PayloadKind::values});
    if (entry == optimizer.ledger().entries().end()) continue;
    const double dense = to_double(p.size()) * 4;
    const double start =
        dense * to_double(totals.dense_steps - totals.dense_local - totals.coded_steps);
    const double sent = (to_double(entry->second.counted) - start) / steps;
    dense_all += dense;
    sent_all += sent;
    if (sent >= dense) continue;
    dense_layers += dense;
    sent_layers += sent;
  }
  out.layers = quotient(dense_layers, sent_layers);
  out.values = quotient(dense_all, sent_all);
  out.wire = quotient(to_double(totals.dense_of_compressed), to_double(totals.compressed_sent));
  return out;
}

ExitCode exit_code(const TrainingResult& result) {
  if (result.status == "stopped") return ExitCode::stopped;
  return result.status == "done" ? ExitCode::ok : ExitCode::diverged;
}

nlohmann::ordered_json final_json(const TrainingResult& result, const nlohmann::ordered_json& own,
                                  const std::string& rate_key, int64_t seed,
                                  const std::string& run_folder) {
  nlohmann::ordered_json json = {{"status", result.status},
                                 {"epoch", result.epoch},
                                 {"step", result.step},
                                 {"train_loss", result.train_loss}};
  if (!own.empty()) json.update(own);
  json.update({{rate_key, result.rate},
               {"wall_s", seconds_since_process_start()},
               {"first_step_s", result.first_step_s},
               {"peak_rss_bytes", peak_rss_bytes()}});
  visit_numbers(result, [&](const char* key, auto number) { json[key] = number; });
  add_hosts(json, result);
  json.update({{"bytes_step_mean", result.bytes_step_mean},
               {"bytes_step_max", result.bytes_step_max},
               {"rejected_buckets", result.rejected_buckets},
               {"clipped_steps", result.clipped_steps},
               {"clipped_norm", result.clipped_norm},
               {"seed", seed}});
  if (result.consensus_error) json["consensus_error"] = *result.consensus_error;
  if (result.privacy) json["privacy"] = privacy_json(*result.privacy);
  if (!run_folder.empty()) json["run_folder"] = run_folder;
  return json;
}

nlohmann::ordered_json summary_line(const TrainingResult& result, const ParameterStore& store) {
  nlohmann::ordered_json line = {{"summary", result.status}};
  visit_numbers(result, [&](const char* key, auto number) { line[key] = number; });
  add_hosts(line, result);
  if (result.privacy) line["privacy"] = privacy_json(*result.privacy);
  nlohmann::ordered_json& layers = line["layers"] = nlohmann::ordered_json::object();
  for (const Parameter& p : store.parameters()) layers[p.name] = p.size();
  return line;
}

TrainingResult parse_summary_line(const nlohmann::json& line) {
  TrainingResult result;
  visit_numbers(result, [&](const char* key, auto& number) {
    if constexpr (std::is_floating_point_v<std::decay_t<decltype(number)>>)
      number = number_at(line, key);
    else
      number = static_cast<std::decay_t<decltype(number)>>(whole_at(line, key));
  });
  result.hosts = whole_at(line, "hosts");
  result.bytes_between = whole_at(line, "bytes_between");
  if (const auto privacy = line.find("privacy"); privacy != line.end())
    result.privacy = parse_privacy(*privacy);
  return result;
}

}  // namespace heddle
