#include "comm/launch.h"

#include <charconv>
#include <cstdlib>
#include <cstring>

#include "core/error.h"

namespace heddle {
namespace {

bool read_number(const char* name, int* value) {
  const char* text = std::getenv(name);
  if (text == nullptr) return false;
  const char* end = text + std::strlen(text);
  const auto [last, error] = std::from_chars(text, end, *value);
  check(error == std::errc() && last == end && *value >= 0, name,
        ": expected a number of at least 0, found '", text, "'");
  return true;
}

}  // namespace

LaunchInfo detect_launch() {
  struct Launcher {
    const char *name, *rank, *size;
  };
  // SLURM_NTASKS is also set in a batch job's shell; SLURM_STEP_NUM_TASKS only in srun's processes.
  constexpr Launcher kLaunchers[] = {{"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                     {"PMI", "PMI_RANK", "PMI_SIZE"},
                                     {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"}};
  for (const Launcher& launcher : kLaunchers) {
    LaunchInfo info;
    if (!read_number(launcher.rank, &info.rank) || !read_number(launcher.size, &info.size))
      continue;
    check(info.rank < info.size, launcher.rank, ": expected a rank below ", info.size, ", found ",
          info.rank);
    info.launcher = launcher.name;
    return info;
  }
  return {};
}

}  // namespace heddle
