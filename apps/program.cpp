#include "apps/program.h"

#include <cstdio>
#include <exception>
#include <new>

#include "apps/run_folder.h"
#include "comm/launch.h"
#include "core/device.h"
#include "core/error.h"

extern char** environ;

namespace heddle {

namespace {

std::string version_text() {
  return concat("heddle ", HEDDLE_VERSION, " (", describe_build(), ")\n", library_versions(), "\n");
}

// "[rank 3] train_lm" for a process that a launcher has started beside others.
std::string speaker(const char* name) {
  try {
    const LaunchInfo launch = detect_launch();
    if (launch.size > 1) return concat("[rank ", launch.rank, "] ", name);
  } catch (const Error&) {  // which the program has met itself
  }
  return name;
}

}  // namespace

int run_program(const char* name, int argc, char** argv,
                const std::function<int(const Arguments&, const Arguments&)>& run) {
  try {
    Arguments environment;
    for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);
    return run({argv, argv + argc}, environment);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s: %s\n", speaker(name).c_str(), error.what());
    return static_cast<int>(error.exit_code());
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "%s: out of memory\n", speaker(name).c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", speaker(name).c_str(), error.what());
  }
  return static_cast<int>(ExitCode::runtime);
}

void print(const std::string& text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (!written || std::fflush(stdout) != 0) throw Error("stdout cannot be written");
}

bool answer_questions(const CommonOptions& o, const FlagTable& flags, const std::string& choices) {
  if (o.help)
    print(flags.help());
  else if (o.man)
    print(flags.manual());
  else if (o.version)
    print(version_text());
  else if (o.list)
    print(choices);
  return o.help || o.man || o.version || o.list;
}

void print_warnings(const CommonOptions& o, const FlagTable& flags) {
  if (o.quiet) return;
  if (o.evaluate && o.init.empty())
    std::fprintf(stderr, "--evaluate without --init: these weights have learned nothing\n");
  for (const std::string& line : flags.warnings()) std::fprintf(stderr, "%s\n", line.c_str());
}

}  // namespace heddle
