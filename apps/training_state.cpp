#include "apps/training_state.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <sstream>

#include "apps/exchange_state.h"
#include "apps/learners.h"
#include "apps/weights.h"
#include "core/error.h"
#include "core/files.h"
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

void say(const CommonOptions& o, const std::string& line) {
  if (!o.quiet) std::fprintf(stderr, "%s\n", line.c_str());
}

std::string path_to_resume(const CommonOptions& o) {
  std::error_code none;
  const bool automatic = o.resume == "auto";
  check(!automatic || !o.output_dir.empty(),
        "--resume auto: needs --output-dir, the run folder to look in");
  if (!automatic && fs::exists(o.resume + "/manifest.json", none))
    return open_checkpoint(o.resume).path;
  const FoundCheckpoint found = find_checkpoint(automatic ? o.output_dir : o.resume);
  for (const std::string& why : found.skipped) say(o, "checkpoint passed over: " + why);
  if (!found.newest && automatic)
    say(o, "--resume auto: no checkpoint in " + o.output_dir + ", from the beginning");
  check(automatic || found.newest, "--resume ", o.resume, ": no checkpoint there that is whole",
        found.skipped.empty() ? "" : "; " + found.skipped.front());
  return found.newest ? found.newest->path : "";
}

// Said before a long run, not behind it.
void check_steps_to_show(const CommonOptions& o, int64_t last) {
  check(o.explain_step <= last, "--explain-step ", o.explain_step, ": this run ends with step ",
        last);
  check(o.dump_gradients <= last, "--dump-gradients ", o.dump_gradients,
        ": this run ends with step ", last);
  check(o.trace.empty() || parse_step_range(o.trace_steps).first <= last, "--trace-steps ",
        o.trace_steps, ": this run ends with step ", last);
}

void check_same_run(const CommonOptions& o, const Json& identity, const Checkpoint& checkpoint) {
  const nlohmann::json& state = checkpoint.state;
  const std::string differs = difference(state.at("identity"), identity);
  check(differs.empty() || o.resume_anyway, checkpoint.path, ": of another run: ", differs,
        "; --resume-anyway takes what fits");
  const std::string packed = difference(state.at("compression"), compression_of(o));
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
  if (!parts.log.settle() || !all_finite(parts.store.values())) return std::nullopt;
  CheckpointFiles files;
  const DataParallelOptimizer::State exchange = parts.optimizer.state();
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

// What a rank has for itself, of this number of ranks or of another.
void restore_ranks(const TrainingParts& parts, const Checkpoint& checkpoint, const OwnState& own,
                   DataParallelOptimizer::State& exchange, bool same_compression,
                   const std::function<void(const std::string&)>& note) {
  const int learners = checkpoint.state.at("learners").get<int>();
  check(learners >= 1 && learners <= 1 << 20, checkpoint.path, ": ", learners, " learners");
  const bool same = learners == parts.optimizer.learners();
  std::vector<SafetensorsFile> files;
  for (int r = same ? parts.rank : 0; r < (same ? parts.rank + 1 : learners); ++r)
    files.push_back(SafetensorsFile::open(checkpoint.file(rank_file(r))));
  read_exchange_tensors(files, exchange);
  parts.optimizer.restore(exchange);  // settings, which decide about the tensors
  if (same_compression && same)
    fill_from(files[0], parts.optimizer.named_state(), kExchange);
  else if (same_compression)
    fill_from_all(files, parts.optimizer.named_state());
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
    const bool same_compression =
        difference(state.at("compression"), compression_of(parts.o)).empty();
    load_weights(checkpoint.file(kModel), parts.model);
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
