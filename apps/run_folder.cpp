#include "apps/run_folder.h"

#include <sys/file.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "apps/build_info.h"
#include "core/error.h"
#include "core/files.h"
#include "core/trace.h"

namespace heddle {

namespace fs = std::filesystem;

namespace {

constexpr int kMetricsSchema = 1;

std::string format_time(const char* format) {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char text[64];
  return {text, std::strftime(text, sizeof text, format, &local)};
}

// The value behind "key : value" in /proc/cpuinfo or /proc/meminfo; "" without it.
std::string proc_value(const char* file, const std::string& key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(key)) continue;
    const size_t begin = line.find_first_not_of(" \t", line.find(':') + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
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

// runs/<name>-<time>, with a number behind it where two runs begin in the same second.
std::string make_default_folder(const std::string& name) {
  fs::create_directories("runs");
  const std::string base = concat("runs/", name, "-", format_time("%Y%m%d-%H%M%S"));
  std::string path = base;
  for (int i = 2; !fs::create_directory(path); ++i) path = concat(base, "-", i);
  return path;
}

// What AtomicFile leaves behind when its process is killed.
bool is_temporary(const std::string& name) {
  return name.starts_with('.') && name.find(".tmp-") != std::string::npos;
}

// One run at a time: two would write over each other's lines and checkpoints. The system drops the
// lock with the process, however it ends; a moment's patience is for a run that is just ending.
void lock(std::FILE* file, const std::string& folder, std::chrono::milliseconds patience) {
  const auto end = std::chrono::steady_clock::now() + patience;
  while (::flock(fileno(file), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) return;  // a file system without locks
    // Not bad input: it may pass, and ./run supervise tries again.
    if (std::chrono::steady_clock::now() >= end)
      throw Error(concat("run folder ", folder, ": another run is writing there"));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

}  // namespace

std::string json_line(const nlohmann::ordered_json& value) {
  return value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + '\n';
}

RunFolder RunFolder::create(const std::string& folder, const std::string& name) {
  try {
    check(!fs::exists(folder) || fs::is_directory(folder), "--output-dir ", folder,
          ": expected a folder, found a file");
    std::error_code ignored;
    check(!fs::exists(folder) || fs::is_empty(folder), "--output-dir ", folder,
          ": expected a new or empty folder, found ",
          std::distance(fs::directory_iterator(folder, ignored), fs::directory_iterator()),
          " entries; --resume auto goes on with a run");
    if (!folder.empty()) fs::create_directories(folder);
    RunFolder made(folder.empty() ? make_default_folder(name) : folder, {});
    // Another run may have begun there since.
    if (std::ftell(made.metrics_.get()) != 0)
      throw Error(concat("run folder ", folder, ": another run was faster"));
    made.keep(0);
    return made;
  } catch (const fs::filesystem_error& error) {
    const std::string path = error.path1().empty() ? folder : error.path1().string();
    throw Error(concat("run folder ", path, ": ", error.code().message()));
  }
}

RunFolder RunFolder::reopen(const std::string& folder, int64_t bytes,
                            const std::function<void()>& locked,
                            std::chrono::milliseconds patience) {
  std::error_code error;
  fs::create_directories(folder, error);
  RunFolder found(folder, patience);
  if (locked) locked();
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (is_temporary(name)) fs::remove(entry.path(), error);
  }
  int64_t kept = 0;
  if (bytes > 0) {
    // Shorter than it was: the machine went down before all of it was on disk.
    const std::string text =
        read_text_file(found.file("metrics.jsonl")).substr(0, static_cast<size_t>(bytes));
    kept = static_cast<int64_t>(text.rfind('\n') + 1);
  }
  found.keep(kept);
  return found;
}

bool RunFolder::holds_finished_run(const std::string& folder) {
  const std::string file = concat(folder, "/metrics.jsonl");
  std::error_code error;
  return fs::exists(file, error) &&
         read_text_file(file).find("\n{\"summary\":\"done\"") != std::string::npos;
}

RunFolder::RunFolder(std::string path, std::chrono::milliseconds patience)
    : path_(std::move(path)),
      metrics_(std::fopen(file("metrics.jsonl").c_str(), "abe"), std::fclose) {
  if (metrics_ == nullptr) {
    throw Error(concat(file("metrics.jsonl"), ": cannot be written: ", std::strerror(errno)));
  }
  lock(metrics_.get(), path_, patience);
  std::fseek(metrics_.get(), 0, SEEK_END);
}

void RunFolder::keep(int64_t bytes) {
  if (::ftruncate(fileno(metrics_.get()), bytes) != 0) {
    throw Error(concat(file("metrics.jsonl"), ": cannot be cut: ", std::strerror(errno)));
  }
  std::fseek(metrics_.get(), 0, SEEK_END);
  if (bytes == 0) metric({{"schema", kMetricsSchema}, {"program", "heddle " HEDDLE_VERSION}});
  flush();
}

void RunFolder::write(const std::string& name, const std::string& content) const {
  write_file_atomically(file(name), content);
}

void RunFolder::metric(const nlohmann::ordered_json& line) {
  const std::string text = json_line(line);
  if (std::fwrite(text.data(), 1, text.size(), metrics_.get()) != text.size()) {
    throw Error(concat(file("metrics.jsonl"), ": write failed: ", std::strerror(errno)));
  }
  if (listener_) listener_(line);
  if (const double now = steady_seconds(); now - flushed_at_ > 1) flush(), flushed_at_ = now;
}

int64_t RunFolder::flush() {
  if (std::fflush(metrics_.get()) != 0) {
    throw Error(concat(file("metrics.jsonl"), ": write failed: ", std::strerror(errno)));
  }
  return std::ftell(metrics_.get());
}

std::string describe_build() {
  return concat(kBuildCompiler, ", ", kBuildType, ", git ", kBuildRevision);
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

double seconds_since_process_start() {
  std::ifstream in("/proc/self/stat");
  std::string stat;
  std::getline(in, stat);
  // The command's name may hold blanks; the fields are counted behind its closing bracket.
  unsigned long long start_ticks = 0;
  const size_t bracket = stat.rfind(')');
  if (bracket == std::string::npos ||
      std::sscanf(
          stat.c_str() + bracket + 1,
          " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
          &start_ticks) != 1) {
    return 0;
  }
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec) -
         static_cast<double>(start_ticks) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

int64_t peak_rss_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

}  // namespace heddle
