#include "apps/log/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>
#include <thread>

#include "apps/cli/build_info.h"
#include "apps/cli/json.h"
#include "apps/cli/process.h"
#include "core/error.h"
#include "core/files.h"
#include "core/trace.h"

namespace heddle {

namespace fs = std::filesystem;

namespace {

std::string format_time(const char* format) {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char text[64];
  return {text, std::strftime(text, sizeof text, format, &local)};
}

nlohmann::ordered_json describe_machine() {
  utsname system{};
  uname(&system);
  return {{"host", system.nodename},
          {"system", concat(system.sysname, " ", system.release, " ", system.machine)},
          {"cpu", proc_value("/proc/cpuinfo", "model name")},
          {"cores", std::thread::hardware_concurrency()},
          {"memory_bytes", int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE)}};
}

// Makes runs/<name>-<time>, with a number appended where two runs start in the same second.
std::string make_default_folder(const std::string& name) {
  fs::create_directories("runs");
  const std::string base = concat("runs/", name, "-", format_time("%Y%m%d-%H%M%S"));
  std::string path = base;
  for (int i = 2; !fs::create_directory(path); ++i) path = concat(base, "-", i);
  return path;
}

// Returns whether a run whose process is killed may leave a temporary file of this name.
bool is_temporary(const std::string& name) {
  static const std::string seen = R"(\.seen-by-all\.tmp-[0-9a-f]{8})";
  static const std::regex ours(
      seen +
      R"(|\.((config\.toml|run\.json|privacy\.json|mistakes\.json|model\.safetensors|report\.html|trace\.json)|)" +
      R"((plan|exchange)-[0-9]+\.json|gradients-[0-9]+\.safetensors|explain-[0-9]+\.txt|samples-[0-9]+\.png|)" +
      seen + R"()\.tmp-[0-9]+-[0-9]+)");
  return std::regex_match(name, ours);
}

constexpr const char* kSchemaLine = "{\"schema\":";
constexpr const char* kProgram = "\"program\":\"heddle ";

bool is_metrics(const std::string& text) {
  const std::string line = text.substr(0, text.find('\n'));
  return line.size() < text.size() && line.starts_with(kSchemaLine) &&
         line.find(kProgram) != std::string::npos;
}

// Throws InputError unless a folder is new or empty, or holds a run of this program.
void check_ours(const std::string& folder) {
  if (!fs::exists(folder) || fs::is_empty(folder)) return;
  std::string names;
  int64_t count = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    if (++count <= 3) names += (names.empty() ? "" : ", ") + entry.path().filename().string();
  const std::string metrics = folder + "/metrics.jsonl", facts = folder + "/run.json";
  if (fs::exists(metrics)) {
    const std::string text = read_text_file(metrics);
    // A run that was killed before the end of its first line has written nothing else.
    if (is_metrics(text) || (count == 1 && std::string(kSchemaLine).starts_with(text))) return;
  }
  if (fs::exists(facts) && read_text_file(facts).starts_with(std::string("{") + kProgram)) return;
  throw InputError(concat("--output-dir ", folder,
                          ": expected a new or empty folder, or one with a run of this program "
                          "(run.json, metrics.jsonl), found ",
                          count, " entries (", printable(names), count > 3 ? ", ..." : "",
                          "); nothing was changed"));
}

// Locks the folder: two runs would overwrite each other's lines and checkpoints. The system
// releases the lock with the process, however it ends. Throws Error if another run holds it after
// `timeout`.
void lock(int file, const std::string& folder, std::chrono::milliseconds timeout) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  while (::flock(file, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) return;  // a file system without locks
    // Not an InputError, so that ./run supervise tries again.
    if (std::chrono::steady_clock::now() >= end)
      throw Error(concat("run folder ", folder, ": another run is writing there"));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

// Returns open(), and turns an exception of the file system into an Error that names the path.
template <class Open>
RunFolder open_or_explain(const std::string& folder, const Open& open) {
  try {
    return open();
  } catch (const fs::filesystem_error& error) {
    const std::string path = error.path1().empty() ? folder : error.path1().string();
    throw Error(concat("run folder ", path, ": ", error.code().message()));
  }
}

}  // namespace

RunFolder RunFolder::create(const std::string& folder, const std::string& name) {
  return open_or_explain(folder, [&] {
    check(!fs::exists(folder) || fs::is_directory(folder), "--output-dir ", folder,
          ": expected a folder, found a file");
    std::error_code ignored;
    check(!fs::exists(folder) || fs::is_empty(folder), "--output-dir ", folder,
          ": expected a new or empty folder, found ",
          std::distance(fs::directory_iterator(folder, ignored), fs::directory_iterator()),
          " entries; --resume auto resumes a run");
    const bool there = fs::exists(folder);
    if (!folder.empty()) fs::create_directories(folder);
    RunFolder made(folder.empty() ? make_default_folder(name) : folder, {});
    if (made.metrics_->flush() != 0)  // the folder was empty a moment ago
      throw Error(concat("run folder ", folder, ": another run has just begun there"));
    made.keep(0);
    made.fresh_ = true;
    made.made_ = !there;
    return made;
  });
}

void RunFolder::discard() const {
  if (!fresh_) return;
  std::error_code ignored;
  std::vector<fs::path> files;
  for (fs::directory_iterator entry(path_, ignored), end; entry != end; entry.increment(ignored))
    files.push_back(entry->path());
  for (const fs::path& file : files) fs::remove(file, ignored);
  if (made_) fs::remove(path_, ignored);
}

RunFolder RunFolder::reopen(const std::string& folder, int64_t bytes,
                            const std::function<void()>& locked, bool known,
                            std::chrono::milliseconds timeout) {
  return open_or_explain(folder, [&] {
    if (!known) check_ours(folder);
    check(!fs::is_symlink(folder + "/checkpoints"), folder,
          "/checkpoints: is a symbolic link; expected a folder: nothing is written through links");
    const bool there = fs::exists(folder), fresh = !there || fs::is_empty(folder);
    fs::create_directories(folder);
    RunFolder found(folder, timeout);
    if (locked) locked();
    found.fresh_ = fresh;
    found.made_ = !there;
    found.reopened_at_ = bytes;
    return found;
  });
}

void RunFolder::begin() {
  if (reopened_at_ < 0) return;
  std::vector<fs::path> left;
  std::error_code ignored;
  for (fs::directory_iterator entry(path_, ignored), end; entry != end; entry.increment(ignored))
    if (is_temporary(entry->path().filename().string())) left.push_back(entry->path());
  for (const fs::path& path : left) fs::remove(path, ignored);
  const std::string text = read_text_file(file("metrics.jsonl"));
  // The file is shorter than it was if the machine crashed before all of it was on disk. The first
  // line stays: without it, a run that is killed now would leave a folder that does not look like a
  // run.
  const size_t kept = reopened_at_ > 0
                          ? text.substr(0, static_cast<size_t>(reopened_at_)).rfind('\n')
                      : is_metrics(text) ? text.find('\n')
                                         : std::string::npos;
  const bool fresh = fresh_;
  keep(static_cast<int64_t>(kept + 1));
  fresh_ = fresh;
}

bool RunFolder::in_use(const std::string& folder) {
  const int file = ::open((folder + "/metrics.jsonl").c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  const bool used = ::flock(file, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(file);
  return used;
}

bool RunFolder::holds_finished_run(const std::string& folder) {
  const std::string metrics = folder + "/metrics.jsonl";
  std::error_code error;
  return fs::exists(metrics, error) && fs::exists(folder + "/model.safetensors", error) &&
         read_text_file(metrics).find("\n{\"summary\":\"done\"") != std::string::npos;
}

RunFolder::RunFolder(std::string path, std::chrono::milliseconds timeout)
    : path_(std::move(path)),
      metrics_(std::make_unique<AppendFile>(file("metrics.jsonl"), AppendFile::Start::append)) {
  lock(metrics_->descriptor(), path_, timeout);
}

void RunFolder::keep(int64_t bytes) {
  metrics_->truncate(bytes);
  if (bytes == 0) metric({{"schema", kMetricsSchema}, {"program", "heddle " HEDDLE_VERSION}});
  (void)metrics_->flush();
  // Nothing has been trained yet, so a full disk is a reason not to begin.
  if (const std::string why = metrics_->trouble(); !why.empty()) throw Error(why);
}

void RunFolder::write(const std::string& name, const std::string& content) const {
  write_file_atomically(file(name), content);
}

void RunFolder::write_optional(const std::string& name, const std::string& content) const {
  try {
    write(name, content);
    note_trouble(name, "");
  } catch (const Error& error) {
    note_trouble(name, error.what());
  }
}

void RunFolder::note_trouble(const std::string& name, const std::string& why) const {
  const std::lock_guard guard(troubles_->mutex);
  if (why.empty()) {
    troubles_->why.erase(name);
    return;
  }
  troubles_->why[name] = why;
  // The kind of plan-50.json is "plan".
  if (!troubles_->warned.insert(name.substr(0, name.find_first_of("-."))).second) return;
  const std::string warning = why + "; training continues";
  if (troubles_->warn)
    troubles_->warn(warning);
  else
    std::fprintf(stderr, "%s\n", warning.c_str());
}

std::string RunFolder::incomplete() const {
  const std::lock_guard guard(troubles_->mutex);
  std::string all;
  for (const auto& [name, why] : troubles_->why) all += (all.empty() ? "" : "; ") + why;
  return all.empty() ? "" : "not complete: " + all;
}

void RunFolder::metric(const nlohmann::ordered_json& line) {
  fresh_ = false;
  metrics_->write(json_line(line));
  if (listener_) listener_(line);
  if (const double now = steady_seconds(); now - flushed_at_ > 1) flush(), flushed_at_ = now;
}

int64_t RunFolder::flush() {
  const int64_t bytes = metrics_->flush();
  note_trouble("metrics.jsonl", metrics_->trouble());
  return bytes;
}

std::string describe_run(const RunFacts& facts) {
  const nlohmann::ordered_json build = {{"git_revision", kBuildRevision},
                                        {"type", kBuildType},
                                        {"compiler", kBuildCompiler},
                                        {"flags", kBuildFlags}};
  return json_line({{"program", "heddle " HEDDLE_VERSION},
                    {"start_time", format_time("%Y-%m-%dT%H:%M:%S%z")},
                    {"argv", facts.arguments},
                    {"seed", facts.seed},
                    {"threads", facts.threads},
                    {"device", facts.device},
                    {"precision", facts.precision},
                    {"build", build},
                    {"machine", describe_machine()}});
}

}  // namespace heddle
