#include "apps/cli/process.h"

#include <sys/resource.h>

#include <fstream>

#include "apps/cli/build_info.h"
#include "core/error.h"
#include "core/trace.h"

namespace heddle {
namespace {

const double kStart = steady_seconds();

}  // namespace

std::string describe_build() {
  return concat(kBuildCompiler, ", ", kBuildType, ", git ", kBuildRevision);
}

double seconds_since_process_start() { return steady_seconds() - kStart; }

int64_t peak_rss_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

std::string proc_value(const char* file, const std::string& key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(key)) continue;
    const size_t begin = line.find_first_not_of(" \t", line.find(':') + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

}  // namespace heddle
