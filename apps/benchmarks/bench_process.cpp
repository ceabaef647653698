#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "apps/benchmarks/bench.h"
#include "core/error.h"

extern char** environ;

namespace heddle::bench {
namespace {

std::vector<std::string> merged_environment(const std::vector<std::string>& extra) {
  std::vector<std::string> out;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry, name = text.substr(0, text.find('=') + 1);
    bool replaced = false;
    for (const std::string& e : extra) replaced = replaced || e.starts_with(name);
    if (!replaced) out.push_back(text);
  }
  out.insert(out.end(), extra.begin(), extra.end());
  return out;
}

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> out;
  out.reserve(texts.size() + 1);
  for (const std::string& text : texts) out.push_back(const_cast<char*>(text.c_str()));
  out.push_back(nullptr);
  return out;
}

std::optional<std::string> torch_version(const std::string& python) {
  try {
    std::string out =
        run_process({python, "-c", "import torch; print(torch.__version__)"}, {}, true);
    while (!out.empty() && out.back() == '\n') out.pop_back();
    return out;
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

ScratchFolder::ScratchFolder() {
  std::string name = std::filesystem::temp_directory_path() / "heddle-bench-XXXXXX";
  if (mkdtemp(name.data()) == nullptr) throw Error(concat(name, ": cannot be made"));
  path_ = name;
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string run_process(const std::vector<std::string>& command,
                        const std::vector<std::string>& environment, bool quiet) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw Error(concat("pipe: ", std::strerror(errno)));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  if (quiet) posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  const std::vector<std::string> entries = merged_environment(environment);
  pid_t pid = 0;
  const int error = posix_spawnp(&pid, command[0].c_str(), &actions, nullptr,
                                 pointers(command).data(), pointers(entries).data());
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  std::string out;
  char piece[4096];
  ssize_t n = 0;
  while (error == 0 && ((n = read(ends[0], piece, sizeof piece)) > 0 || (n < 0 && errno == EINTR)))
    if (n > 0) out.append(piece, static_cast<size_t>(n));
  close(ends[0]);
  if (error != 0) throw Error(concat(command[0], ": cannot be started: ", std::strerror(error)));
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  std::string text;
  for (const std::string& word : command) text += (text.empty() ? "" : " ") + word;
  if (WIFSIGNALED(status)) throw Error(concat("killed by signal ", WTERMSIG(status), ": ", text));
  if (WEXITSTATUS(status) != 0) throw Error(concat("exit code ", WEXITSTATUS(status), ": ", text));
  return out;
}

nlohmann::json run_for_json(const std::vector<std::string>& command,
                            const std::vector<std::string>& environment) {
  std::string out = run_process(command, environment);
  while (!out.empty() && out.back() == '\n') out.pop_back();
  nlohmann::json line = nlohmann::json::parse(out.substr(out.rfind('\n') + 1), nullptr, false);
  if (!line.is_object()) throw Error(concat(command[0], ": expected a JSON object, found ", out));
  return line;
}

std::string own_path() { return std::filesystem::read_symlink("/proc/self/exe").string(); }

std::string own_folder() { return std::filesystem::path(own_path()).parent_path().string(); }

std::vector<Python> find_pythons(const Options& o) {
  std::vector<Python> found;
  if (!o.torch) return found;
  std::vector<std::string> candidates = {"python3", "/usr/bin/python3"};
  if (!o.python.empty()) candidates = {o.python};
  for (const std::string& path : candidates) {
    if (const auto version = torch_version(path); version && found.empty())
      found.push_back({path, *version});
  }
  if (!o.python_new.empty()) {
    const auto version = torch_version(o.python_new);
    check(version.has_value(), "--python-new: ", o.python_new, " has no PyTorch");
    found.push_back({o.python_new, *version});
  }
  check(o.python.empty() || !found.empty(), "--python: ", o.python, " has no PyTorch");
  return found;
}

nlohmann::json run_own_step(const Options& o, const Case& c, const std::string& precision) {
  return run_for_json({own_path(), "--child", "step", c.name, "--precision", precision, "--threads",
                       std::to_string(o.threads), "--device", o.device, "--warmup",
                       std::to_string(o.warmup), "--batch", std::to_string(c.batch), "--steps",
                       std::to_string(o.steps > 0 ? o.steps : c.steps)});
}

}  // namespace heddle::bench
