#include "apps/session/open_run.h"

#include <filesystem>

#include "apps/cli/json.h"
#include "apps/log/tensorboard.h"
#include "core/error.h"

namespace heddle {
namespace {

// Returns whether the checkpoint, <folder>/checkpoints/step-400, is one of this run folder.
bool is_run_of(const std::string& folder, const Checkpoint& checkpoint) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path path = fs::weakly_canonical(checkpoint.path, error);
  return fs::equivalent(folder, path.parent_path().parent_path(), error);
}

RunFolder open_folder(const CommonOptions& o, const std::optional<Checkpoint>& checkpoint) {
  // A run that ended while this one chose its checkpoint may have left a newer one.
  const auto still_newest = [&] {
    if (o.resume != "auto") return;
    if (find_checkpoint(o.output_dir, checkpoint ? checkpoint->step : -1).newest)
      throw Error(concat("run folder ", o.output_dir,
                         ": another run has just saved a checkpoint there; start again"));
  };
  if (checkpoint && !o.output_dir.empty() && is_run_of(o.output_dir, *checkpoint)) {
    const auto& bytes = checkpoint->state.at("log").at("metrics_bytes");
    return RunFolder::reopen(o.output_dir, bytes.is_number_integer() ? whole(bytes) : 0,
                             still_newest, true);
  }
  if (o.resume == "auto") {
    check(!RunFolder::holds_finished_run(o.output_dir), "--resume auto: ", o.output_dir,
          " holds a complete run without a checkpoint, which would be overwritten");
    return RunFolder::reopen(o.output_dir, 0, still_newest);
  }
  return RunFolder::create(o.output_dir, o.name);
}

}  // namespace

RunFiles open_run(const CommonOptions& o, const RunSpec& spec,
                  const std::vector<std::string>& arguments, Learner& learner, const Start& start) {
  RunFiles files;
  if (learner.is_first())
    files.folder = std::make_unique<RunFolder>(open_folder(o, start.checkpoint));
  if (start.checkpoint) wait_for_all(learner.comm);  // the first rank may have to read others
  if (!learner.is_first()) return files;
  files.facts = describe_run({arguments, o.seed, learner.context.threads(),
                              to_string(learner.context.device()), o.precision});
  files.progress = std::make_unique<Progress>(
      ProgressOptions{.total_steps = spec.plan.total_steps + start.plan_ahead,
                      .print_freq = o.print_freq,
                      .quiet = o.quiet,
                      .unit = spec.unit});
  files.folder->warn_by(console_logger(files.progress.get()));
  files.progress->note("run folder " + files.folder->path());
  return files;
}

void begin_run(const CommonOptions& o, const RunSpec& spec, RunFiles& files, bool resumes) {
  if (files.folder == nullptr) return;
  files.folder->begin();
  std::error_code none;
  if (!resumes && std::filesystem::is_regular_file(o.trace, none))
    std::filesystem::remove(o.trace, none);  // of an earlier run: the page would show it
  if (!o.trace.empty()) files.trace = std::make_unique<AtomicFile>(o.trace);
  if (o.tensorboard) begin_events(*files.folder);
  files.folder->write("config.toml", spec.config);
  files.folder->write("run.json", files.facts);
}

void finish_trace(const CommonOptions& o, const RunFiles& files, Learner& learner) {
  Communicator& comm = learner.comm;
  if (o.trace.empty()) return;
  comm.set_tag("trace");
  // Clocks of other machines have different origins; after a barrier all ranks read theirs at once.
  // Those of modelled hosts are one clock, and those of network namespaces almost.
  constexpr double kSameClock = 0.1e6;  // microseconds
  const std::vector<int> hosts = comm.hosts();
  const bool own_clock = !o.parsed.net && hosts[to_size(comm.rank())] != hosts[0];
  comm.barrier();
  const double now = Trace::now();
  const Tensor clock = Tensor::empty_on(Device{}, {1}, DType::i64);
  clock.data<int64_t>()[0] = to_int64(now);
  comm.broadcast(clock, 0);
  const double difference = to_double(clock.data<int64_t>()[0]) - now;
  std::string all = learner.context.trace().events(
      comm.rank(), own_clock && std::abs(difference) > kSameClock ? difference : 0.0);
  // One rank after the other, so that only the first rank holds the events of more than two ranks.
  for (int rank = 1; rank < comm.size(); ++rank) {
    const std::string text = broadcast_text(all, comm, rank);
    if (comm.rank() == 0) all += text;
  }
  // A resumed run keeps the trace of steps that an earlier process ran.
  const bool empty = all.find("\"ph\":\"X\"") == std::string::npos;
  if (files.trace == nullptr || (empty && std::filesystem::exists(o.trace))) return;
  try {
    files.trace->write(Trace::json(all));
    files.trace->commit();
  } catch (const Error& error) {
    files.folder->note_trouble("trace.json", error.what());
  }
}

}  // namespace heddle
