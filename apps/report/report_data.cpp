#include "apps/report/report_data.h"

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "apps/cli/json.h"
#include "apps/log/run_folder.h"
#include "core/error.h"
#include "core/files.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

double number(const Json& line, const char* key) {
  const auto found = line.find(key);
  return found != line.end() && found->is_number() ? found->get<double>() : NAN;
}

int64_t whole(const Json& line, const char* key) {
  const double value = number(line, key);
  return std::isnan(value) ? 0 : static_cast<int64_t>(value);
}

std::string text(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : "";
}

std::map<std::string, double> numbers(const Json& object) {
  std::map<std::string, double> out;
  for (const auto& [key, value] : object.items())
    if (value.is_number()) out[key] = value.get<double>();
  return out;
}

StepRecord step_record(const Json& line, const std::string& rate_key) {
  return {.step = whole(line, "step"),
          .epoch = whole(line, "epoch"),
          .loss = number(line, "loss"),
          .lr = number(line, "lr"),
          .rate = number(line, rate_key.c_str()),
          .data = number(line, "t_data"),
          .forward = number(line, "t_forward"),
          .backward = number(line, "t_backward"),
          .update = number(line, "t_update"),
          .compress = number(line, "t_compress"),
          .comm = number(line, "t_comm"),
          .exposed = number(line, "t_exposed"),
          .sent = number(line, "bytes_sent"),
          .dense = number(line, "bytes_dense")};
}

void read_scores(RunRecord& run, const Json& line, const std::string& split) {
  ScoreRecord score{
      .step = whole(line, "step"), .epoch = whole(line, "epoch"), .split = split, .values = {}};
  for (const char* key : {"loss", "acc1", "acc5", "ppl", "bpc"})
    if (const double value = number(line, key); !std::isnan(value)) score.values[key] = value;
  run.scores.push_back(score);
}

void read_look(RunRecord& run, const Json& line) {
  LookRecord look{.step = whole(line, "step"), .alike = number(line, "alike"), .layers = {}};
  for (const auto& [name, values] : line.at("quality").items())
    look.layers.emplace_back(name, numbers(values));
  run.looks.push_back(look);
}

void read_ledger(RunRecord& run, const Json& line) {
  run.ledger.clear();
  for (const auto& [layer, kinds] : line.at("ledger").items()) {
    LedgerRecord record{.layer = layer, .payload = {}, .sent = {}};
    for (const auto& [kind, entry] : kinds.items()) {
      record.payload[kind] = number(entry, "payload");
      record.sent[kind] = number(entry, "sent");
    }
    run.ledger.push_back(record);
  }
}

void read_line(RunRecord& run, const Json& line) {
  if (run.rate_key.empty())
    for (const char* key : {"samples_per_s", "tokens_per_s"})
      if (line.contains(key)) run.rate_key = key;
  if (const std::string split = text(line, "split"); split == "train")
    run.steps.push_back(step_record(line, run.rate_key));
  else if (!split.empty())
    read_scores(run, line, split);
  else if (line.contains("quality"))
    read_look(run, line);
  else if (line.contains("ledger"))
    read_ledger(run, line);
  else if (line.contains("summary"))
    run.summary = line;
}

void read_metrics(RunRecord& run) {
  const std::string file = run.folder + "/metrics.jsonl";
  check(fs::exists(file), run.folder, ": no run folder: expected metrics.jsonl in it");
  const std::string content = read_text_file(file);
  int64_t number = 0;
  double schema = kMetricsSchema;
  const auto leave_out = [&](const char* why) {
    if (run.broken_lines++ == 0) run.first_broken = concat(number, ": ", printable(why, 200));
  };
  for (size_t begin = 0, end = 0; (end = content.find('\n', begin)) != std::string::npos;
       begin = end + 1) {
    ++number;
    try {
      const Json line =
          parse_json<Json>(std::string_view(content).substr(begin, end - begin), "the line");
      if (!line.is_object()) throw Error("expected an object");
      if (line.contains("schema")) schema = heddle::number(line, "schema");
      read_line(run, line);
    } catch (const nlohmann::json::exception& error) {
      leave_out(error.what());
    } catch (const Error& error) {
      leave_out(error.what());
    }
  }
  check(schema == kMetricsSchema, file, ": expected schema ", kMetricsSchema, ", found ", schema,
        ": written by another version of heddle, which has a report of its own");
  check(number == 0 || run.broken_lines < number, file, ":", run.first_broken,
        ": no line of metrics, and no other line is one");
}

PlanRecord read_plan(const std::string& file) {
  try {
    const Json json = parse_json<Json>(read_text_file(file), file);
    PlanRecord plan{.step = whole(json, "step"),
                    .family = text(json, "family"),
                    .bytes = number(json, "bytes"),
                    .uniform_bytes = number(json, "uniform_bytes"),
                    .error = number(json, "error"),
                    .budget = number(json, "budget"),
                    .layers = {}};
    for (const Json& layer : json.at("layers"))
      plan.layers.push_back({.name = text(layer, "name"),
                             .elements = whole(layer, "elements"),
                             .setting = number(layer, "setting"),
                             .uniform = number(layer, "uniform"),
                             .bytes = number(layer, "bytes"),
                             .uniform_bytes = number(layer, "uniform_bytes")});
    return plan;
  } catch (const nlohmann::json::exception& error) {
    throw InputError(concat(file, ": no plan: ", printable(error.what(), 200)));
  }
}

ChoiceRecord read_choice(const std::string& file) {
  try {
    const Json json = parse_json<Json>(read_text_file(file), file);
    ChoiceRecord choice{.step = whole(json, "step"),
                        .dense = number(json, "dense_s"),
                        .compressed = number(json, "compressed_s"),
                        .chosen = number(json, "chosen_s"),
                        .found = number(json, "found_s"),
                        .dropped = json.value("dropped", false),
                        .buckets = {}};
    const auto times = [](const Json& way) -> ChoiceRecord::Times {
      return {number(way, "ready_s"), number(way, "code_s"), number(way, "comm_s")};
    };
    for (const Json& bucket : json.at("buckets"))
      choice.buckets.push_back(
          {.compressed = bucket.at("compressed").get<bool>(),
           .joined = bucket.value("joined", false),
           .dense = times(bucket.at("dense")),
           .packed = times(bucket.at("packed")),
           .parameters = bucket.value("parameters", std::vector<std::string>{})});
    return choice;
  } catch (const nlohmann::json::exception& error) {
    throw InputError(concat(file, ": no choice of exchanges: ", printable(error.what(), 200)));
  }
}

void read_decisions(RunRecord& run) {
  for (const auto& entry : fs::directory_iterator(run.folder)) {
    const std::string name = entry.path().filename().string();
    if (!name.ends_with(".json")) continue;
    if (name.starts_with("plan-")) run.plans.push_back(read_plan(entry.path().string()));
    if (name.starts_with("exchange-")) run.choices.push_back(read_choice(entry.path().string()));
  }
  std::ranges::sort(run.plans, {}, &PlanRecord::step);
  std::ranges::sort(run.choices, {}, &ChoiceRecord::step);
}

// "key = value  # remark" -> key, value.
void read_config(RunRecord& run) {
  const std::string file = run.folder + "/config.toml";
  if (!fs::exists(file)) return;
  std::istringstream in(read_text_file(file));
  for (std::string line; std::getline(in, line);) {
    const size_t equals = line.find(" = ");
    if (line.empty() || line[0] == '#' || equals == std::string::npos) continue;
    std::string value = line.substr(equals + 3);
    if (const size_t remark = value.find("  # "); remark != std::string::npos) value.resize(remark);
    if (value.size() > 1 && value.front() == '"' && value.back() == '"')
      value = value.substr(1, value.size() - 2);
    run.config.emplace_back(line.substr(0, equals), value);
  }
}

// How many elements a layer has is in the summary; without one a plan says it, or the payload of a
// run that has sent them all in every step.
void find_elements(RunRecord& run) {
  std::map<std::string, int64_t> elements;
  if (run.summary.contains("layers")) {
    for (const auto& [name, count] : numbers(run.summary["layers"]))
      elements[name] = static_cast<int64_t>(count);
  } else {
    const auto steps = static_cast<double>(run.steps.size());
    for (const LedgerRecord& record : run.ledger)
      if (const auto values = record.payload.find("values");
          values != record.payload.end() && run.setting("compress") == "none" &&
          std::fmod(values->second, 4 * steps) == 0)
        elements[record.layer] = static_cast<int64_t>(values->second / 4 / steps);
    for (const PlanRecord& plan : run.plans)
      for (const auto& layer : plan.layers) elements[layer.name] = layer.elements;
  }
  for (LedgerRecord& record : run.ledger)
    if (const auto found = elements.find(record.layer); found != elements.end())
      record.elements = found->second;
}

std::string find_trace(const RunRecord& run, const std::string& given) {
  std::vector<std::string> places = {given, run.folder + "/trace.json"};
  if (const auto found = run.info.find("argv"); found != run.info.end() && found->is_array()) {
    for (size_t i = 0; i < found->size(); ++i) {
      if (!(*found)[i].is_string()) continue;
      const auto word = (*found)[i].get<std::string>();
      if (word.starts_with("--trace=")) places.push_back(word.substr(8));
      if (word == "--trace" && i + 1 < found->size() && (*found)[i + 1].is_string())
        places.push_back((*found)[i + 1].get<std::string>());
    }
  }
  for (const std::string& place : places)
    if (!place.empty() && fs::is_regular_file(place)) return place;
  return "";
}

}  // namespace

double LedgerRecord::all_sent() const {
  double sum = 0;
  for (const auto& [kind, bytes] : sent) sum += bytes;
  return sum;
}

std::string RunRecord::score_key() const {
  for (const char* key : {"acc1", "bpc", "ppl"})
    for (const ScoreRecord& score : scores)
      if (score.values.contains(key)) return key;
  return "loss";
}

std::string RunRecord::setting(const std::string& key) const {
  for (const auto& [name, value] : config)
    if (name == key) return value;
  return "";
}

RunRecord read_run(const std::string& folder, const std::string& trace) {
  RunRecord run;
  run.folder = folder;
  while (run.folder.size() > 1 && run.folder.back() == '/') run.folder.pop_back();
  run.name = fs::absolute(run.folder).lexically_normal().filename().string();
  try {
    read_metrics(run);
    if (const std::string file = run.folder + "/run.json"; fs::exists(file))
      run.info = parse_json<Json>(read_text_file(file), file);
    read_config(run);
    read_decisions(run);
  } catch (const nlohmann::json::exception& error) {
    throw InputError(concat(run.folder, "/run.json: ", printable(error.what(), 200)));
  } catch (const fs::filesystem_error& error) {
    throw InputError(concat(run.folder, ": ", error.code().message()));
  }
  find_elements(run);
  run.trace = find_trace(run, trace);
  return run;
}

StepRecord settled_step(const RunRecord& run) {
  StepRecord mean;
  if (run.steps.empty()) return mean;
  const auto half = run.steps.begin() + std::ssize(run.steps) / 2;
  const auto count = static_cast<double>(run.steps.end() - half);
  mean.step = half->step;
  mean.epoch = half->epoch;
  for (double StepRecord::*field :
       {&StepRecord::loss, &StepRecord::lr, &StepRecord::data, &StepRecord::forward,
        &StepRecord::backward, &StepRecord::update, &StepRecord::compress, &StepRecord::comm,
        &StepRecord::exposed, &StepRecord::sent, &StepRecord::dense}) {
    double sum = 0;
    for (auto step = half; step != run.steps.end(); ++step) sum += (*step).*field;
    mean.*field = sum / count;
  }
  // In a mean of rates fast steps would count for more than they take.
  double samples = 0;
  for (auto step = half; step != run.steps.end(); ++step) samples += step->rate * step->seconds();
  mean.rate = samples / (mean.seconds() * count);
  return mean;
}

}  // namespace heddle
