#include "apps/session/training_state.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <sstream>

#include "apps/checkpoint/exchange_state.h"
#include "apps/cli/json.h"
#include "apps/models/weights.h"
#include "apps/session/exchange.h"
#include "apps/session/learners.h"
#include "core/error.h"
#include "core/files.h"
#include "core/hash.h"
#include "core/kernels.h"
#include "core/safetensors.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kBuffer = "buffer.";
constexpr const char* kExchange = "exchange.";
constexpr const char* kOwn = "own.";
constexpr const char* kModel = "model.safetensors";
constexpr const char* kOptimizer = "optimizer.safetensors";
constexpr const char* kShared = "shared.safetensors";

// Infinity and NaN, which JSON lacks, are null.
double number_or(const nlohmann::json& json, double otherwise) {
  return json.is_number() ? json.get<double>() : otherwise;
}

void add_copies(NamedTensors& out, const NamedTensors& tensors, const std::string& prefix = "") {
  for (const auto& [name, x] : tensors) {
    const Tensor host = x.to(Device{});
    out.emplace_back(prefix + name, host.raw() == x.raw() ? host.clone() : host);
  }
}

NamedTensors buffers_of(const TrainingParts& parts) {
  NamedTensors buffers;
  for (const Buffer& b : parts.store.buffers()) buffers.emplace_back(b.name, b.value);
  return buffers;
}

// Running statistics, which every rank gathers on its own batches, averaged; ranks keep theirs.
NamedTensors averaged_model(const TrainingParts& parts) {
  NamedTensors model;
  add_copies(model, parts.model);
  if (parts.optimizer.learners() == 1) return model;
  const NamedTensors buffers = buffers_of(parts);
  const auto is_statistic = [&](const std::string& name) {
    return std::ranges::any_of(buffers, [&](const auto& b) { return b.first == name; });
  };
  parts.optimizer.collective("checkpoint", [&](Communicator& comm) {
    for (auto& [name, x] : model) {
      if (x.dtype() != DType::f32 || !is_statistic(name)) continue;
      comm.all_reduce(x);
      scale(x, 1.0f / static_cast<float>(comm.size()));
    }
  });
  return model;
}

// Copies from the file into what is there already, by name and shape. `lenient`: what the file has
// not, or of another shape, stays as it is.
void fill_from(const SafetensorsFile& file, const NamedTensors& tensors, const std::string& prefix,
               bool lenient = false) {
  for (const auto& [name, x] : tensors) {
    const std::string saved = prefix + name;
    if (lenient && (!file.has(saved) || file.info(saved).shape != x.shape())) continue;
    check(file.has(saved), file.path(), ": ", saved, " is missing");
    const Tensor loaded = file.load(saved);
    check(loaded.shape() == x.shape() && loaded.dtype() == x.dtype(), file.path(), ": ", saved,
          ": expected ", dtype_name(x.dtype()), " ", to_string(x.shape()), ", found ",
          dtype_name(loaded.dtype()), " ", to_string(loaded.shape()));
    x.copy_from(loaded);
  }
}

// Residuals: their mean over the ranks that saved. The rest, which all ranks share: the first's.
void fill_from_all(const std::vector<SafetensorsFile>& files, const NamedTensors& tensors) {
  fill_from(files.front(), tensors, kExchange);
  for (const auto& [name, x] : tensors) {
    if (!name.starts_with("residual.")) continue;
    for (size_t r = 1; r < files.size(); ++r) {
      const Tensor other = files[r].load(kExchange + name);
      check(other.shape() == x.shape(), files[r].path(), ": ", name, ": expected ",
            to_string(x.shape()), ", found ", to_string(other.shape()));
      axpy(1, other, x);
    }
    scale(x, 1.0f / static_cast<float>(files.size()));
  }
}

// "arch: resnet20 there, resnet32 here": the first difference; empty where all is equal.
std::string difference(const nlohmann::json& there, const Json& here) {
  for (const auto& [key, value] : here.items()) {
    const nlohmann::json mine = value;
    if (!there.contains(key)) return concat(key, ": unknown there, ", mine.dump(), " here");
    if (there[key] != mine)
      return concat(key, ": ", printable(there[key].dump()), " there, ", printable(mine.dump()),
                    " here");
  }
  return "";
}

// What decides how gradients travel, and how settings differ from layer to layer.
Json compression_of(const CommonOptions& o) {
  return {
      {"compress", o.compress}, {"dense-layers", o.dense_layers}, {"min-compress", o.min_compress}};
}
// The first difference that makes residuals another thing. Beta is none (see residual_scale()), nor
// is a ramp.
std::string compression_differs(const nlohmann::json& there, const CommonOptions& o) {
  CommonOptions same = o;
  same.compress = there.at("compress").get<std::string>();
  CompressSpec spec = parse_compress_choice(same.compress).spec, mine = o.parsed.compress.spec;
  for (const char* key : {"beta", "ramp"})
    if (mine.values.contains(key)) spec.values[key] = mine.values[key];
  const bool automatic = o.parsed.compress.automatic;
  if (to_string(spec) != to_string(mine) || same.compress.starts_with("auto") != automatic)
    same = o;
  return difference(there, compression_of(same));
}
Json planning_of(const CommonOptions& o) {
  return {{"layerwise", o.layerwise}, {"lgreco", o.lgreco}, {"plan", o.plan}};
}

// "lr = 0.1" by "lr", without the remarks behind it.
std::map<std::string, std::string> lines_of(const std::string& config) {
  std::map<std::string, std::string> lines;
  std::istringstream in(config);
  for (std::string line; std::getline(in, line);)
    if (const size_t end = line.find(" ="); end != std::string::npos && line[0] != '#')
      lines[line.substr(0, end)] = line.substr(0, line.find("  #"));
  return lines;
}

// Returns the factor that rescales a saved residual for this run's settings: a residual
// holds a sum over --accumulate batches, times beta.
double residual_scale(const nlohmann::json& state, const CommonOptions& o) {
  CommonOptions there = o;
  there.compress = state.at("compression").at("compress").get<std::string>();
  const auto lines = lines_of(state.at("config").get<std::string>());
  if (const auto line = lines.find("accumulate"); line != lines.end())
    there.accumulate = std::atoll(line->second.substr(line->second.find('=') + 1).c_str());
  check(there.accumulate > 0, "accumulate of the saved run: expected at least 1, found ",
        there.accumulate);
  const auto beta = [](const CommonOptions& options) {
    const CompressSpec spec = parse_compress_choice(options.compress).spec;
    return spec.values.contains("beta") ? spec.values.at("beta") : 1.0;
  };
  return static_cast<double>(o.accumulate) / static_cast<double>(there.accumulate) * beta(o) /
         beta(there);
}

void note_changes(const std::string& there, const std::string& here,
                  const std::function<void(const std::string&)>& note) {
  const auto before = lines_of(there), now = lines_of(here);
  const auto line = [](const auto& lines, const std::string& key) {
    const auto found = lines.find(key);
    return found == lines.end() ? key + " not set" : printable(found->second);
  };
  for (const auto* lines : {&before, &now})
    for (const auto& [key, text] : *lines) {
      if (lines == &now && before.contains(key)) continue;
      if (line(before, key) != line(now, key))
        note(concat("changed: ", line(before, key), " there, ", line(now, key), " here"));
    }
}

// Whether two configurations differ in nothing but what a run says, and to whom.
bool same_run(const std::string& there, const std::string& here) {
  auto before = lines_of(there), now = lines_of(here);
  for (const char* key : {"output-dir", "print-freq", "quiet", "json", "comm-timeout"})
    before.erase(key), now.erase(key);
  return before == now;
}

// Summary, validation and test of a complete run that --resume asks for; "" for others.
std::string finished_lines(const CommonOptions& o, const std::string& config, bool best) {
  std::error_code none;
  const std::string at = o.output_dir + "/";
  if (o.resume != "auto" || !RunFolder::holds_finished_run(o.output_dir) ||
      find_checkpoint(o.output_dir).newest || !fs::exists(at + "config.toml", none) ||
      !same_run(read_text_file(at + "config.toml"), config))
    return "";
  nlohmann::json out = {{"summary", nullptr}, {"valid", nullptr}, {"test", nullptr}};
  std::istringstream lines(read_text_file(at + "metrics.jsonl"));
  for (std::string text; std::getline(lines, text);) {
    nlohmann::json line;
    try {
      line = parse_json(text, at + "metrics.jsonl");
    } catch (const InputError&) {
      continue;  // of a process that was killed while it wrote
    }
    if (!line.is_object()) continue;
    const std::string split = line.contains("summary") ? "summary" : line.value("split", "");
    const bool better =
        split != "valid" || !best || out["valid"].is_null() ||
        FinishedRun::number(line, "loss") < FinishedRun::number(out["valid"], "loss");
    if (out.contains(split) && better) out[split] = line;
  }
  return out.dump();
}

void say(const CommonOptions& o, const std::string& line) {
  if (!o.quiet) std::fprintf(stderr, "%s\n", line.c_str());
}

std::string path_to_resume(const CommonOptions& o) {
  std::error_code none;
  const bool automatic = o.resume == "auto";
  check(!automatic || !o.output_dir.empty(),
        "--resume auto: needs --output-dir, the run folder to look in");
  check(automatic || fs::status(o.resume, none).type() != fs::file_type::not_found, "--resume ",
        o.resume, ": no such folder");
  if (!automatic &&
      fs::status(o.resume + "/manifest.json", none).type() != fs::file_type::not_found)
    return open_checkpoint(o.resume).path;
  const FoundCheckpoint found = find_checkpoint(automatic ? o.output_dir : o.resume);
  for (const std::string& why : found.skipped) say(o, "checkpoint passed over: " + why);
  const std::string folder = automatic ? o.output_dir : o.resume;
  std::string reasons;
  for (const std::string& why : found.skipped) reasons += "; " + why;
  check(found.newest || found.skipped.empty(), "--resume ", o.resume, ": none of the ",
        found.skipped.size(), " checkpoints in ", folder, " is whole, and nothing was changed",
        reasons, "; restore one, or move ", folder,
        "/checkpoints away to train from the beginning");
  check(automatic || found.newest, "--resume ", o.resume, ": no checkpoint there");
  if (!found.newest) say(o, "--resume auto: no checkpoint in " + folder + ", from the beginning");
  return found.newest ? found.newest->path : "";
}

// Said before a long run, not behind it.
void check_steps_to_show(const CommonOptions& o, int64_t last) {
  check(o.explain_step <= last, "--explain-step ", o.explain_step, ": this run ends with step ",
        last);
  check(o.dump_gradients <= last, "--dump-gradients ", o.dump_gradients,
        ": this run ends with step ", last);
  check(o.trace.empty() || o.parsed.trace_steps.first <= last, "--trace-steps ", o.trace_steps,
        ": this run ends with step ", last);
}

void check_same_run(const CommonOptions& o, const Json& identity, const Checkpoint& checkpoint) {
  const nlohmann::json& state = checkpoint.state;
  const std::string differs = difference(state.at("identity"), identity);
  check(differs.empty() || o.resume_anyway, checkpoint.path, ": of another run: ", differs,
        "; --resume-anyway takes what fits");
  const std::string packed = compression_differs(state.at("compression"), o);
  check(packed.empty() || o.resume_anyway, checkpoint.path, ": ", packed,
        "; --resume-anyway drops what was still owed");
}

// The checkpoint to go on from; none: from the beginning.
std::string path_for_all(const CommonOptions& o, Communicator& comm) {
  if (o.resume.empty()) return "";
  comm.set_tag("resume");
  return broadcast_text(comm.rank() == 0 ? path_to_resume(o) : "", comm);
}

}  // namespace

double FinishedRun::number(const nlohmann::json& line, const char* key) {
  return line.is_object() && line.contains(key) ? number_or(line[key], NAN) : NAN;
}

std::optional<FinishedRun> find_finished(const CommonOptions& o, const std::string& config,
                                         bool best, Communicator& comm) {
  if (o.resume != "auto") return std::nullopt;
  comm.set_tag("resume");
  const std::string text =
      broadcast_text(comm.rank() == 0 ? finished_lines(o, config, best) : "", comm);
  if (text.empty()) return std::nullopt;
  const nlohmann::json lines = nlohmann::json::parse(text), &summary = lines["summary"];
  FinishedRun run{.result = {}, .valid = lines["valid"], .test = lines["test"]};
  const auto count = [&](const char* key) {
    const double x = FinishedRun::number(summary, key);
    return std::isfinite(x) ? static_cast<int64_t>(x) : 0;
  };
  run.result.epoch = count("epoch");
  run.result.step = count("step");
  run.result.train_loss = FinishedRun::number(summary, "train_loss");
  run.result.world_size = static_cast<int>(count("world_size"));
  run.result.bytes_sent = count("bytes_sent");
  run.result.bytes_received = count("bytes_received");
  run.result.bytes_dense = count("bytes_dense");
  run.result.ratios = {.layers = FinishedRun::number(summary, "ratio_layers"),
                       .values = FinishedRun::number(summary, "ratio_values"),
                       .wire = FinishedRun::number(summary, "ratio_wire"),
                       .run = FinishedRun::number(summary, "ratio_run")};
  run.result.exposed_comm_s = FinishedRun::number(summary, "exposed_comm_s");
  if (comm.rank() == 0)
    say(o, concat("--resume auto: the run in ", o.output_dir, " is complete, with ",
                  run.result.step, " steps; nothing is left to do"));
  return run;
}

Start find_start(const CommonOptions& o, const StepPlan& plan, int64_t units, const Json& identity,
                 Communicator& comm) {
  Start start{.identity = identity};
  const std::string path = path_for_all(o, comm);
  if (path.empty()) {
    check_steps_to_show(o, plan.total_steps);
    return start;
  }
  start.checkpoint = read_checkpoint(path);
  try {
    const nlohmann::json& state = start.checkpoint->state;
    check_same_run(o, identity, *start.checkpoint);
    const auto epoch = state.at("epoch").get<int64_t>(), seen = state.at("units").get<int64_t>();
    check(epoch >= 0 && seen >= 0, path, ": epoch ", epoch, ", ", seen, " units of it");
    const int64_t update = std::min(seen / units / o.accumulate, plan.steps_per_epoch - 1);
    start.batch = update * o.accumulate;
    start.ahead = start.step() - epoch * plan.steps_per_epoch - update;
  } catch (const nlohmann::json::exception& error) {
    throw InputError(concat(path, "/state.json: ", printable(error.what(), 200)));
  }
  check_steps_to_show(o, plan.total_steps + start.ahead);
  if (comm.rank() == 0) say(o, "goes on from " + path);
  return start;
}

std::optional<CheckpointFiles> save_training(const TrainingParts& parts, int64_t batch,
                                             const OwnState& own) {
  if (!parts.log.settle() || parts.log.refused() > 0 || !all_finite(parts.store.values()))
    return std::nullopt;
  CheckpointFiles files;
  const DataParallelOptimizer::State exchange = parts.optimizer.state();
  // All ranks have the same weights, and no other step or run has them.
  const Tensor values = parts.store.values().to(Device{});
  const std::string weights = std::to_string(hash_bytes(values.raw(), values.bytes()));
  files.metadata[rank_file(parts.rank)] = {{"rank", std::to_string(parts.rank)},
                                           {"learners", std::to_string(parts.optimizer.learners())},
                                           {"step", std::to_string(parts.log.step())},
                                           {"weights", weights}};
  NamedTensors& mine = files.tensors[rank_file(parts.rank)];
  add_copies(mine, own.rank, kOwn);
  add_copies(mine, buffers_of(parts), kBuffer);
  add_copies(mine, parts.optimizer.named_state(), kExchange);
  for (auto& tensor : exchange_tensors(exchange)) mine.push_back(std::move(tensor));
  NamedTensors model = averaged_model(parts);
  if (parts.rank > 0) return files;

  files.tensors[kModel] = std::move(model);
  files.metadata[kModel] = parts.metadata;
  add_copies(files.tensors[kOptimizer], parts.optimizer.optimizer().named_state());
  if (!own.shared.empty()) add_copies(files.tensors[kShared], own.shared);
  const ScheduleState schedule = parts.schedule.state();
  Json state = {{"version", kCheckpointVersion},
                {"step", parts.log.step()},
                {"epoch", parts.log.epoch()},
                {"units", batch * parts.units},
                {"learners", parts.optimizer.learners()},
                {"weights", weights},
                {"identity", parts.identity},
                {"compression", compression_of(parts.o)},
                {"planning", planning_of(parts.o)},
                {"log", parts.log.save()},
                {"schedule", {{"lr", schedule.lr}, {"best", schedule.best}, {"bad", schedule.bad}}},
                {"exchange", exchange_json(exchange)},
                {"own", own.json},
                {"config", parts.config}};
  if (own.json.contains("valid_loss")) state["valid_loss"] = own.json["valid_loss"];
  files.texts["state.json"] = state.dump(1, ' ', false, Json::error_handler_t::replace) + '\n';
  return files;
}

namespace {

// Throws InputError for another rank's file, or one of another checkpoint; versions before this one
// wrote nothing that would tell.
void check_rank(const SafetensorsFile& file, int rank, int learners, const Checkpoint& checkpoint) {
  if (!file.metadata().contains("rank")) return;
  const std::map<std::string, std::string> expected = {
      {"rank", std::to_string(rank)},
      {"learners", std::to_string(learners)},
      {"step", std::to_string(checkpoint.step)},
      {"weights", checkpoint.state.at("weights").get<std::string>()}};
  for (const auto& [key, value] : expected) {
    const auto found = file.metadata().find(key);
    check(found != file.metadata().end() && found->second == value, file.path(),
          ": is of another rank or checkpoint: expected ", key, " ", printable(value), ", found ",
          found == file.metadata().end() ? "none" : printable(found->second));
  }
}

// What a rank has for itself, of this number of ranks or of another.
void restore_ranks(const TrainingParts& parts, const Checkpoint& checkpoint, const OwnState& own,
                   DataParallelOptimizer::State& exchange, bool same_compression,
                   const std::function<void(const std::string&)>& note) {
  const int learners = checkpoint.state.at("learners").get<int>();
  check(learners >= 1 && learners <= 1 << 20, checkpoint.path, ": ", learners, " learners");
  const bool same = learners == parts.optimizer.learners();
  std::vector<SafetensorsFile> files;
  for (int r = same ? parts.rank : 0; r < (same ? parts.rank + 1 : learners); ++r)
    check_rank(files.emplace_back(SafetensorsFile::open(checkpoint.file(rank_file(r)))), r,
               learners, checkpoint);
  read_exchange_tensors(files, exchange);
  parts.optimizer.restore(exchange);  // settings, which decide about the tensors
  if (same_compression && same)
    fill_from(files[0], parts.optimizer.named_state(), kExchange);
  else if (same_compression)
    fill_from_all(files, parts.optimizer.named_state());
  if (const double factor = residual_scale(checkpoint.state, parts.o); factor != 1)
    for (const auto& [name, x] : parts.optimizer.named_state())
      if (name.starts_with("residual.")) scale(x, static_cast<float>(factor));
  if (!same && note && parts.rank == 0)
    note(concat("changed: ", learners, " learners there, ", parts.optimizer.learners(),
                " here: each gets the mean of the residuals and of the statistics"));
  if (!same) return;
  fill_from(files[0], buffers_of(parts), kBuffer);
  fill_from(files[0], own.rank, kOwn);
}

}  // namespace

void restore_training(const TrainingParts& parts, const Checkpoint& checkpoint, const OwnState& own,
                      const std::function<void(const std::string&)>& note) {
  const nlohmann::json& state = checkpoint.state;
  const bool anyway = parts.o.resume_anyway;
  try {
    const bool same_compression = compression_differs(state.at("compression"), parts.o).empty();
    load_weights(WeightsFile(checkpoint.file(kModel)), parts.model);
    fill_from(SafetensorsFile::open(checkpoint.file(kOptimizer)),
              parts.optimizer.optimizer().named_state(), "", anyway);
    if (!own.shared.empty())
      fill_from(SafetensorsFile::open(checkpoint.file(kShared)), own.shared, "", anyway);
    const auto& schedule = state.at("schedule");
    parts.schedule.restore(
        {.lr = schedule.at("lr").get<double>(),
         .best = number_or(schedule.at("best"), std::numeric_limits<double>::infinity()),
         .bad = schedule.at("bad").get<int64_t>()});
    DataParallelOptimizer::State exchange = parse_exchange(state.at("exchange"));
    if (!same_compression || !difference(state.at("planning"), planning_of(parts.o)).empty()) {
      exchange.settings.clear();
      exchange.planner.reset();
    }
    restore_ranks(parts, checkpoint, own, exchange, same_compression, note);
    parts.log.restore(checkpoint.step, state.at("epoch").get<int64_t>(), state.at("log"));
    if (note) note_changes(state.at("config").get<std::string>(), parts.config, note);
  } catch (const nlohmann::json::exception& error) {
    throw InputError(concat(checkpoint.file("state.json"), ": ", printable(error.what(), 200)));
  }
}

}  // namespace heddle
