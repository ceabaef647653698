#include <stdlib.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <sstream>
#include <utility>

#include "apps/benchmarks/bench.h"
#include "apps/cli/json.h"
#include "core/error.h"
#include "core/files.h"

namespace heddle::bench {
namespace {

std::string own_path() { return std::filesystem::read_symlink("/proc/self/exe").string(); }

// Returns the text as one word of a shell.
std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out + "'";
}

std::optional<Python> python_with_torch(const std::string& path) {
  try {
    std::string version =
        run_process({path, "-c", "import torch; print(torch.__version__)"}, {}, true);
    while (version.ends_with('\n')) version.pop_back();
    return Python{path, version};
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

std::string run_process(const std::vector<std::string>& command,
                        const std::vector<std::string>& environment, bool quiet) {
  std::string line;
  for (const std::string& entry : environment) {
    const size_t value = entry.find('=') + 1;
    line += entry.substr(0, value) + quoted(entry.substr(value)) + " ";
  }
  line += "exec";  // so that a signal that ends the program is seen here
  for (const std::string& word : command) line += " " + quoted(word);
  if (quiet) line += " 2>/dev/null";
  FILE* const pipe = popen(line.c_str(), "re");
  if (pipe == nullptr)
    throw Error(concat(command[0], ": cannot be started: ", std::strerror(errno)));
  std::string out;
  char piece[4096];
  while (const size_t n = std::fread(piece, 1, sizeof piece, pipe)) out.append(piece, n);
  const int status = pclose(pipe);
  if (WIFSIGNALED(status)) throw Error(concat("killed by signal ", WTERMSIG(status), ": ", line));
  if (WEXITSTATUS(status) != 0) throw Error(concat("exit code ", WEXITSTATUS(status), ": ", line));
  return out;
}

nlohmann::json run_for_json(const std::vector<std::string>& command,
                            const std::vector<std::string>& environment) {
  std::string out = run_process(command, environment);
  while (out.ends_with('\n')) out.pop_back();
  nlohmann::json line = nlohmann::json::parse(out.substr(out.rfind('\n') + 1), nullptr, false);
  if (!line.is_object()) throw Error(concat(command[0], ": expected a JSON object, found ", out));
  return line;
}

std::string own_folder() { return std::filesystem::path(own_path()).parent_path().string(); }

std::string find_script(const std::string& name) {
  for (const std::string& folder :
       {own_folder(), std::string(HEDDLE_SOURCE_DIR "/apps/benchmarks")})
    if (std::string path = concat(folder, "/", name); std::filesystem::exists(path)) return path;
  throw Error(concat(
      name, ": found neither next to this program nor in " HEDDLE_SOURCE_DIR "/apps/benchmarks"));
}

std::vector<std::string> child_command(const Options& o, const std::string& part) {
  return {own_path(),           "--child=" + part,      concat("--threads=", o.threads),
          "--clock=" + o.clock, "--device=" + o.device, concat("--warmup=", o.warmup)};
}

std::vector<std::string> step_command(const Options& o, const Case& c,
                                      const std::string& precision) {
  std::vector<std::string> command = child_command(o, "step");
  command.insert(command.end(), {c.name, "--precision=" + precision, concat("--batch=", c.batch),
                                 concat("--steps=", o.steps_of(c))});
  return command;
}

TrainingRun run_training(const std::vector<std::string>& flags) {
  namespace fs = std::filesystem;
  std::string folder = fs::temp_directory_path() / "heddle-bench-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) throw Error(concat(folder, ": ", std::strerror(errno)));
  const std::shared_ptr<void> removed(nullptr, [&](void*) {
    std::error_code ignored;
    fs::remove_all(folder, ignored);
  });
  std::vector<std::string> command = {own_folder() + "/train_resnet", "--json", "--quiet",
                                      "--output-dir=" + folder + "/run"};
  check(fs::exists(command[0]), command[0], ": expected this program; build it first");
  command.insert(command.end(), flags.begin(), flags.end());
  TrainingRun run{run_for_json(command), {}};
  std::istringstream metrics(read_text_file(folder + "/run/metrics.jsonl"));
  for (std::string line; std::getline(metrics, line);)
    if (auto step = parse_json(line, "metrics.jsonl"); step.value("split", "") == "train")
      run.steps.push_back(std::move(step));
  return run;
}

std::vector<Python> find_pythons(const Options& o) {
  std::vector<Python> found;
  if (!o.torch) return found;
  const auto add = [&](const std::string& path) {
    const std::optional<Python> python = python_with_torch(path);
    if (python) found.push_back(*python);
    return python.has_value();
  };
  if (o.python.empty())
    (void)(add("python3") || add("/usr/bin/python3"));
  else
    check(add(o.python), "--python: ", o.python, " has no PyTorch");
  check(o.python_new.empty() || add(o.python_new), "--python-new: ", o.python_new,
        " has no PyTorch");
  return found;
}

}  // namespace heddle::bench
