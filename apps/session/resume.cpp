#include "apps/session/resume.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <set>

#include "apps/cli/json.h"
#include "apps/log/run_folder.h"
#include "apps/report/report_data.h"
#include "apps/session/compare_runs.h"
#include "comm/group.h"
#include "core/error.h"
#include "core/files.h"
#include "layers/weights.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

// Returns a complete run's summary, validation and test as JSON; "" for any other folder.
std::string finished_lines(const CommonOptions& o, const std::string& config, bool best) {
  std::error_code none;
  const std::string at = o.output_dir + "/";
  if (!RunFolder::holds_finished_run(o.output_dir) || find_checkpoint(o.output_dir).newest ||
      !fs::exists(at + "config.toml", none) ||
      !same_config(read_text_file(at + "config.toml"), config))
    return "";
  const RunRecord run = read_run(o.output_dir);
  nlohmann::json out = {{"summary", run.summary}, {"valid", nullptr}, {"test", nullptr}};
  for (const RunRecord::Json& score : run.scores) {
    nlohmann::json& kept = out[text_at(score, "split")];
    const bool worse = best && kept.is_object() && text_at(score, "split") == "valid" &&
                       !(number_at(score, "loss") < number_at(kept, "loss"));
    if (!worse) kept = score;
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
        "--resume auto needs --output-dir, the run folder to resume in");
  check(automatic || fs::status(o.resume, none).type() != fs::file_type::not_found, "--resume ",
        o.resume, ": no such folder");
  if (!automatic &&
      fs::status(o.resume + "/manifest.json", none).type() != fs::file_type::not_found)
    return open_checkpoint(o.resume).path;
  const std::string folder = automatic ? o.output_dir : o.resume;
  const FoundCheckpoint found = find_checkpoint(folder);
  std::string reasons;
  for (const std::string& why : found.skipped) {
    say(o, "checkpoint skipped: " + why);
    reasons += "; " + why;
  }
  check(found.newest || found.skipped.empty(), "--resume ", o.resume, ": none of the ",
        found.skipped.size(), " checkpoints in ", folder, " is intact", reasons,
        "; nothing was changed; restore one, or move ", folder,
        "/checkpoints away to train from the first step");
  check(automatic || found.newest, "--resume ", o.resume, ": no checkpoint there");
  if (!found.newest && !RunFolder::holds_finished_run(folder))
    say(o, "--resume auto: no checkpoint in " + folder + ", starting from the first step");
  return found.newest ? found.newest->path : "";
}

// Throws InputError for a flag that names a step after the last: before a long run, not after it.
void check_steps_to_show(const CommonOptions& o, int64_t last) {
  last = std::max<int64_t>(last, 0);
  check(o.explain_step <= last, "--explain-step ", o.explain_step, ": this run ends with step ",
        last);
  check(o.dump_gradients <= last, "--dump-gradients ", o.dump_gradients,
        ": this run ends with step ", last);
  check(o.trace.empty() || o.parsed.trace_steps.first <= last, "--trace-steps ", o.trace_steps,
        ": this run ends with step ", last);
}

void check_same_run(const CommonOptions& o, const nlohmann::ordered_json& identity,
                    const Checkpoint& checkpoint) {
  const nlohmann::json& state = checkpoint.state;
  const std::string differs = difference(state.at("identity"), identity);
  check(differs.empty() || o.resume_anyway, checkpoint.path, ": belongs to another run: ", differs,
        "; repeat that run's flags (its config.toml has them), or --resume-anyway loads what fits");
  const std::string compression = compression_differs(state.at("compression"), o);
  check(compression.empty() || o.resume_anyway, checkpoint.path, ": ", compression,
        "; --resume-anyway ",
        o.peers.empty() && o.local_steps == 1 ? "drops the residuals"
                                              : "begins anew from the saved model");
}

// Returns what the first rank reads from its disk, for as long as that takes.
std::string read_by_first(Communicator& comm, const auto& read) {
  comm.set_tag("resume");
  const auto patient = make_patient(comm);
  return broadcast_text(comm.rank() == 0 ? read() : "", patient == nullptr ? comm : *patient);
}

// Throws InputError on all ranks if one has found that it was started differently from the first,
// with other HEDDLE_ variables, files or data; `differs` is empty if not. Collective.
void refuse_together(const std::string& differs, Communicator& comm) {
  const std::vector<std::string> all = gather_texts(comm, differs);
  for (size_t rank = 0; rank < all.size(); ++rank)
    check(all[rank].empty(), "rank ", rank, " was started differently from rank 0: ", all[rank],
          "; do their hosts have other HEDDLE_ variables or files?");
}

void check_same_data(nlohmann::ordered_json identity, Communicator& comm) {
  comm.set_tag("start");
  identity.erase("data");  // the name of a folder
  const auto first = nlohmann::json::parse(broadcast_text(json_line(identity), comm));
  refuse_together(difference(first, identity), comm);
}

void check_same_flags(const CommonOptions& o, const std::string& config, Communicator& comm) {
  comm.set_tag("start");
  const std::string mine =
      concat(config, "resume = ", o.resume.empty() || o.resume == "auto" ? o.resume : "folder",
             "\nresume-anyway = ", o.resume_anyway, "\ntrace = ", !o.trace.empty(), '\n');
  const std::set<std::string> own = {"comm-timeout", "data",        "device",  "init",
                                     "json",         "keep",        "name",    "quiet",
                                     "report",       "tensorboard", "threads", "workers"};
  std::string differs;
  note_changes(broadcast_text(mine, comm), mine, [&](const std::string& line) {
    const std::string what = line.substr(line.find(": ") + 2);
    if (differs.empty() && !own.contains(what.substr(0, what.find(' ')))) differs = what;
  });
  refuse_together(differs, comm);
}

}  // namespace

std::optional<FinishedRun> find_finished(const CommonOptions& o, const std::string& config,
                                         bool best, const NamedTensors& weights,
                                         Communicator& comm) {
  check_same_flags(o, config, comm);
  if (o.resume != "auto") return std::nullopt;
  const std::string text = read_by_first(comm, [&] {
    std::string lines = finished_lines(o, config, best);
    if (!lines.empty()) load_weights(WeightsFile(o.output_dir), weights);
    return lines;
  });
  if (text.empty()) return std::nullopt;
  for (const auto& [name, x] : weights) comm.broadcast(x, 0);
  const nlohmann::json lines = nlohmann::json::parse(text);
  FinishedRun run{.result = parse_summary_line(lines["summary"]),
                  .valid = lines["valid"],
                  .test = lines["test"]};
  if (!o.peers.empty()) run.result.consensus_error = number_at(run.valid, "consensus_error");
  if (comm.rank() == 0)
    say(o, concat("--resume auto: the run in ", o.output_dir, " is complete, with ",
                  run.result.step, " steps; nothing to do"));
  return run;
}

Start find_start(const CommonOptions& o, RunSpec& spec, Communicator& comm) {
  check_same_data(spec.identity, comm);
  Start start;
  const std::string path =
      o.resume.empty() ? "" : read_by_first(comm, [&] { return path_to_resume(o); });
  if (path.empty()) return check_steps_to_show(o, spec.plan.total_steps), start;
  start.checkpoint = read_checkpoint(path);
  read_members(path + "/state.json", [&] {
    const nlohmann::json& state = start.checkpoint->state;
    check_same_run(o, spec.identity, *start.checkpoint);
    if (compression_differs(state.at("compression"), o).empty())
      spec.plan.compress_start = state.value("compress_start", int64_t{-1});
    const auto epoch = whole(state.at("epoch")), seen = whole(state.at("units"));
    check(epoch >= 0 && seen >= 0, path, ": epoch ", epoch, ", ", seen, " units seen in it");
    const int64_t update =
        std::min(seen / spec.units_per_batch / o.accumulate, spec.plan.steps_per_epoch - 1);
    start.batch = update * o.accumulate;
    start.ahead = start.step() - epoch * spec.plan.steps_per_epoch - update;
  });
  // --steps counts updates, of however many learners.
  if (spec.plan.total_steps != o.steps) start.plan_ahead = start.ahead;
  check_steps_to_show(o, spec.plan.total_steps + start.plan_ahead);
  if (comm.rank() == 0) say(o, "resumes from " + path);
  return start;
}

}  // namespace heddle
