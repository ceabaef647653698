#include "apps/report/report_data.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <sstream>

#include "apps/cli/format.h"
#include "apps/cli/json.h"
#include "apps/log/run_folder.h"
#include "core/error.h"
#include "core/files.h"
#include "core/scalar.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;
using Json = RunRecord::Json;

constexpr std::pair<const char*, double StepRecord::*> kMeasures[] = {
    {"loss", &StepRecord::loss},           {"lr", &StepRecord::lr},
    {"t_data", &StepRecord::data},         {"t_forward", &StepRecord::forward},
    {"t_backward", &StepRecord::backward}, {"t_update", &StepRecord::update},
    {"t_compress", &StepRecord::compress}, {"t_comm", &StepRecord::comm},
    {"t_exposed", &StepRecord::exposed},   {"bytes_sent", &StepRecord::sent},
    {"bytes_dense", &StepRecord::dense},   {"decoder_error", &StepRecord::decoder_error},
    {"epsilon", &StepRecord::epsilon},     {"grad_norm", &StepRecord::grad_norm}};

StepRecord step_record(const Json& line, const std::string& rate_key) {
  StepRecord step{.step = whole_at(line, "step"),
                  .epoch = whole_at(line, "epoch"),
                  .rate = number_at(line, rate_key)};
  for (const auto& [key, field] : kMeasures) step.*field = number_at(line, key);
  if (line.contains("bytes_between")) step.sent = number_at(line, "bytes_between");
  return step;
}

Json score_of(const Json& line, const std::string& split) {
  Json score = {
      {"step", whole_at(line, "step")}, {"epoch", whole_at(line, "epoch")}, {"split", split}};
  for (const char* key :
       {"loss", "acc1", "acc5", "ppl", "bpc", "consensus_error", "peak_rss_bytes"})
    if (const double value = number_at(line, key); !std::isnan(value)) score[key] = value;
  return score;
}

// Returns the line. Throws Error unless its member `key` is an object of objects.
const Json& object_with(const Json& line, const char* key) {
  if (!line[key].is_object()) throw Error(concat("\"", key, "\" is not an object"));
  for (const Json& value : line[key])
    if (!value.is_object()) throw Error(concat("\"", key, "\" holds something other than objects"));
  return line;
}

void read_line(RunRecord& run, const Json& line) {
  if (run.rate_key.empty())
    for (const char* key : {"samples_per_s", "tokens_per_s", "nodes_per_s"})
      if (line.contains(key)) run.rate_key = key;
  if (const std::string split = text_at(line, "split"); split == "train")
    run.steps.push_back(step_record(line, run.rate_key));
  else if (!split.empty())
    run.scores.push_back(score_of(line, split));
  else if (line.contains("sample"))
    run.texts.push_back(line);
  else if (line.contains("quality"))
    run.qualities.push_back(object_with(line, "quality"));
  else if (line.contains("ledger"))
    run.ledger = object_with(line, "ledger")["ledger"];
  else if (line.contains("summary"))
    run.summary = line;
}

void read_metrics(RunRecord& run) {
  const std::string file = run.folder + "/metrics.jsonl";
  check(fs::exists(file), run.folder, ": no run folder: expected metrics.jsonl in it");
  const std::string content = read_text_file(file);
  int64_t number = 0, broken = 0;
  std::string first;
  double schema = kMetricsSchema;
  const auto skip_line = [&](const char* why) {
    if (broken++ == 0) first = concat(number, ": ", printable(why, 200));
  };
  for (size_t begin = 0, end = 0; (end = content.find('\n', begin)) != std::string::npos;
       begin = end + 1) {
    ++number;
    try {
      const Json line =
          parse_json<Json>(std::string_view(content).substr(begin, end - begin), "the line");
      if (!line.is_object()) throw Error("expected an object");
      if (line.contains("schema")) schema = number_at(line, "schema");
      read_line(run, line);
    } catch (const nlohmann::json::exception& error) {
      skip_line(error.what());
    } catch (const Error& error) {
      skip_line(error.what());
    }
  }
  check(schema == kMetricsSchema, file, ": expected schema ", kMetricsSchema, ", found ", schema,
        ", which another version of heddle wrote; use its report");
  check(number == 0 || broken < number, file, ":", first, "; no line of the file can be read");
  if (broken > 0)
    run.skipped.push_back(
        concat("metrics.jsonl: lines that do not parse: ", broken, "; the first is line ", first));
}

// Reads a file with `read`, unless there is none: one without which the rest can be shown.
template <class Read>
void read_optional(RunRecord& run, const std::string& name, const Read& read) {
  const std::string file = fs::path(run.folder) / name;
  if (!fs::is_regular_file(file)) return;
  try {
    read(file);
  } catch (const InputError& error) {
    run.skipped.emplace_back(error.what());
  }
}

// Reads a plan or a choice: an object with a list of objects. `what` names it in the error.
Json read_decision(const std::string& file, const char* list, const char* what) {
  Json json = parse_json<Json>(read_text_file(file), file);
  const bool valid = json.is_object() && json.contains(list) && json[list].is_array() &&
                     std::ranges::all_of(json[list], [](const Json& e) { return e.is_object(); });
  check(valid, file, ": no ", what, ": expected an object with a list \"", list, "\" of objects");
  return json;
}

// Reads the mistakes of the last validation (apps/models/mistakes.h).
Json read_mistakes(const std::string& file) {
  Json json = parse_json<Json>(read_text_file(file), file);
  const auto all = [&](const char* key, const auto& fits) {
    return json.contains(key) && json[key].is_array() && std::ranges::all_of(json[key], fits);
  };
  const auto is_whole = [](const Json& n) { return n.is_number_integer() && n >= 0 && n < 1e15; };
  const auto is_pair = [&](const Json& pair) {
    return pair.is_array() && pair.size() == 3 && std::ranges::all_of(pair, is_whole);
  };
  const auto is_image = [&](const Json& image) {
    return image.is_object() && is_whole(image.value("image", Json())) &&
           is_whole(image.value("class", Json())) && is_whole(image.value("guess", Json()));
  };
  check(json.is_object() && all("classes", [](const Json& name) { return name.is_string(); }) &&
            all("confusion", is_pair) && all("images", is_image) &&
            json.value("sheet", Json()).is_string() && number_at(json, "side") >= 1 &&
            number_at(json, "side") <= 1024,
        file, ": expected the mistakes of a validation");
  return json;
}

// Reads the newest sheet of generated pictures, samples-<step>.png.
void read_samples(RunRecord& run) {
  std::pair<long long, std::string> newest{-1, ""};
  for (const auto& entry : fs::directory_iterator(run.folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("samples-") && name.ends_with(".png"))
      newest = std::max(newest, {std::atoll(name.c_str() + 8), entry.path().string()});
  }
  if (newest.first >= 0) run.samples = base64(read_text_file(newest.second));
}

void read_decisions(RunRecord& run) {
  for (const auto& entry : fs::directory_iterator(run.folder)) {
    const std::string name = entry.path().filename().string();
    const auto read = [&](const char* list, const char* what, std::vector<Json>& to) {
      read_optional(run, name, [&](auto& file) { to.push_back(read_decision(file, list, what)); });
    };
    if (!name.ends_with(".json")) continue;
    if (name.starts_with("plan-")) read("layers", "plan", run.plans);
    if (name.starts_with("exchange-")) read("buckets", "choice of exchanges", run.choices);
  }
  const auto step = [](const Json& decision) { return whole_at(decision, "step"); };
  std::ranges::sort(run.plans, {}, step);
  std::ranges::sort(run.choices, {}, step);
}

// Reads key and value of each line "key = value  # comment".
void read_config(RunRecord& run) {
  const std::string file = run.folder + "/config.toml";
  if (!fs::exists(file)) return;
  std::istringstream in(read_text_file(file));
  for (std::string line; std::getline(in, line);) {
    const size_t equals = line.find(" = ");
    if (line.empty() || line[0] == '#' || equals == std::string::npos) continue;
    std::string value = line.substr(equals + 3);
    value.resize(std::min(value.size(), value.find("  # ", value.rfind('"') + 1)));
    if (value.size() > 1 && value.front() == '"' && value.back() == '"')
      value = value.substr(1, value.size() - 2);
    run.config.emplace_back(line.substr(0, equals), value);
  }
}

// Gives each step of a round of local steps the mean of what the round has sent; those of a round
// that has not ended get the mean of the round before.
void average_rounds(RunRecord& run) {
  const int64_t every = std::atoll(run.setting("local-steps").c_str());
  const int64_t delay = std::atoll(run.setting("outer-delay").c_str());
  if (every <= 1) return;
  double mean = 0;
  for (auto begin = run.steps.begin(); begin != run.steps.end();) {
    const int64_t round = (begin->step - delay - 1) / every;
    const auto end = std::find_if(begin, run.steps.end(), [&](const StepRecord& step) {
      return (step.step - delay - 1) / every != round;
    });
    const bool ended =
        end != run.steps.end() || (end[-1].step - delay) % every == 0 || !run.summary.empty();
    const auto sent = [](double sum, const StepRecord& step) { return sum + step.sent; };
    if (ended) mean = std::accumulate(begin, end, 0.0, sent) / to_double(end - begin);
    for (; begin != end; ++begin) begin->sent = mean;
  }
}

std::string find_trace(const RunRecord& run) {
  std::vector<std::string> candidates = {run.folder + "/trace.json"};
  if (const auto found = run.info.find("argv"); found != run.info.end() && found->is_array()) {
    for (size_t i = 0; i < found->size(); ++i) {
      if (!(*found)[i].is_string()) continue;
      const auto word = (*found)[i].get<std::string>();
      if (word.starts_with("--trace=")) candidates.push_back(word.substr(8));
      if (word == "--trace" && i + 1 < found->size() && (*found)[i + 1].is_string())
        candidates.push_back((*found)[i + 1].get<std::string>());
    }
  }
  for (const std::string& path : candidates)
    if (std::error_code none; fs::is_regular_file(path, none)) return fs::absolute(path);
  return "";
}

}  // namespace

std::string RunRecord::score_key() const {
  for (const char* key : {"acc1", "bpc", "ppl"})
    for (const Json& score : scores)
      if (score.contains(key)) return key;
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
  run.name = fs::absolute(run.folder + "/.").lexically_normal().parent_path().filename().string();
  try {
    read_metrics(run);
    read_optional(run, "run.json",
                  [&](auto& file) { run.info = parse_json<Json>(read_text_file(file), file); });
    read_optional(run, "mistakes.json", [&](auto& file) { run.mistakes = read_mistakes(file); });
    read_config(run);
    average_rounds(run);
    read_decisions(run);
    read_samples(run);
    const bool given = fs::is_regular_file(trace);  // not if the run could not write it
    if (given) run.timeline = read_timeline(trace);
    read_optional(run, given ? "" : find_trace(run),
                  [&](auto& file) { run.timeline = read_timeline(file); });
  } catch (const fs::filesystem_error& error) {
    throw InputError(concat(run.folder, ": ", error.code().message()));
  }
  return run;
}

StepRecord steady_step(const RunRecord& run) {
  StepRecord mean;
  if (run.steps.empty()) return mean;
  const auto half = run.steps.begin() + std::ssize(run.steps) / 2;
  const auto count = static_cast<double>(run.steps.end() - half);
  mean.step = half->step;
  mean.epoch = half->epoch;
  for (const auto& [key, field] : kMeasures) {
    double sum = 0;
    for (auto step = half; step != run.steps.end(); ++step) sum += (*step).*field;
    mean.*field = sum / count;
  }
  // Not the mean of rates, in which fast steps would weigh too much.
  double samples = 0;
  for (auto step = half; step != run.steps.end(); ++step) samples += step->rate * step->seconds();
  mean.rate = samples / (mean.seconds() * count);
  return mean;
}

}  // namespace heddle
