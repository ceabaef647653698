#include "apps/cli/program.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <new>

#include "apps/cli/process.h"
#include "comm/launch.h"
#include "core/device.h"
#include "core/error.h"
#include "core/files.h"

extern char** environ;

namespace heddle {
namespace {

// Prints one line, whatever control characters come from a flag or a file. It begins with "[rank
// 3]" in one of several processes that a launcher has started.
void complain(const char* name, const char* what) {
  std::string rank;
  try {
    const LaunchInfo launch = detect_launch();
    if (launch.size > 1) rank = concat("[rank ", launch.rank, "] ");
  } catch (const Error&) {  // already reported by the program
  }
  const std::string line = printable(what, std::string::npos);
  std::fprintf(stderr, "%s%s: %s\n", rank.c_str(), name, line.c_str());
}

// To be called before there are threads or files.
void prepare_process(char** argv) {
  // The next file to be opened would get the descriptor of a closed stdin, stdout or stderr, and
  // with it the messages. /dev/null is opened in the wrong direction, so that using it still fails.
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd)
    if (::fcntl(fd, F_GETFD) == -1)
      (void)::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  // Waiting threads of libgomp spin: on a busy machine two training steps took 53 s instead of 5 s.
  // libgomp reads the limit when it is loaded, before main, hence the second start.
  if (std::getenv("GOMP_SPINCOUNT") != nullptr || std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  if (::setenv("GOMP_SPINCOUNT", "10000", 0) != 0) return;
  std::error_code error;
  const std::string self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) ::execv(self.c_str(), argv);  // returns if it fails: then threads spin
}

}  // namespace

int run_program(const char* name, int argc, char** argv,
                const std::function<int(const Arguments&, const Arguments&)>& run) {
  prepare_process(argv);
  try {
    Arguments environment;
    for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);
    return run({argv, argv + argc}, environment);
  } catch (const Error& error) {
    complain(name, error.what());
    return to_int(error.exit_code());
  } catch (const std::bad_alloc&) {
    complain(name, "out of memory");
  } catch (const std::exception& error) {
    complain(name, error.what());
  }
  return to_int(ExitCode::runtime);
}

void print(const std::string& text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (!written || std::fflush(stdout) != 0) throw Error("stdout cannot be written");
}

std::string version_text() {
  return concat("heddle ", HEDDLE_VERSION, " (", describe_build(), ")\n", library_versions(), "\n");
}

bool answer_questions(const CommonOptions& o, const FlagTable& flags, const std::string& choices) {
  if (o.help)
    print(flags.help());
  else if (o.man)
    print(flags.manual());
  else if (!o.completion.empty())
    print(flags.completion(o.completion));
  else if (o.version)
    print(version_text());
  else if (o.list)
    print(choices);
  return o.help || o.man || !o.completion.empty() || o.version || o.list;
}

void print_warnings(const CommonOptions& o, const FlagTable& flags) {
  if (o.quiet || detect_launch().rank > 0) return;
  if (o.evaluate && o.init.empty())
    std::fprintf(stderr, "--evaluate without --init: the weights are untrained\n");
  for (const std::string& line : flags.warnings()) std::fprintf(stderr, "%s\n", line.c_str());
}

}  // namespace heddle
