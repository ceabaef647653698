#include "comm/launch.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "comm/mpi_communicator.h"
#include "core/error.h"
#include "core/parse_number.h"

namespace heddle {
namespace {

bool read_number(const char* name, int* value) {
  const char* text = std::getenv(name);
  if (text == nullptr) return false;
  *value = parse_number<int>(text).value_or(-1);
  check(*value >= 0, name, ": expected a number of at least 0, found '", text, "'");
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

#ifdef HEDDLE_MPI
int run_mpi(double timeout_s, const std::function<int(Communicator&)>& body) {
  MpiSession mpi(timeout_s);
  const auto comm = mpi.make_communicator();
  const LaunchInfo launch = detect_launch();
  check(comm->size() == launch.size && comm->rank() == launch.rank, launch.launcher, " says rank ",
        launch.rank, " of ", launch.size, ", MPI says rank ", comm->rank(), " of ", comm->size(),
        ": the launcher belongs to a different MPI from this program's; use Open MPI's mpirun, or "
        "srun --mpi=pmix");
  std::string failure;
  ExitCode code = ExitCode::runtime;
  try {
    return body(*comm);
  } catch (const CommError& error) {
    // Ranks that wait for each other in a row give up at almost the same moment, and only one of
    // them names the cause: each says which rank it waited for before any of them ends the others.
    std::fprintf(stderr, "[rank %d] %s\n", comm->rank(), error.what());
    std::this_thread::sleep_for(std::chrono::seconds(2));
  } catch (const Error& error) {
    failure = error.what();
    code = error.exit_code();
  } catch (const std::exception& error) {
    failure = error.what();
  }
  // Bad input is usually bad on every rank: rank 0 reports it and ends the others before they
  // repeat it. An error that only another rank has met is reported by that rank.
  if (code == ExitCode::usage && comm->rank() > 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
  comm->abort(failure, to_int(code));
  return to_int(code);
}
#endif

int ranks_sharing_cores() {
  if (std::getenv("OMP_NUM_THREADS") != nullptr) return 1;
  cpu_set_t mine, launchers;
  const bool known = sched_getaffinity(0, sizeof mine, &mine) == 0 &&
                     sched_getaffinity(getppid(), sizeof launchers, &launchers) == 0;
  const int cores = known ? CPU_COUNT(&mine) : 1, all = known ? CPU_COUNT(&launchers) : 1;
  for (const char* name : {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS",
                           "SLURM_STEP_TASKS_PER_NODE"})  // "4" or "4(x2),3"
    if (const char* text = std::getenv(name))
      return std::max(1, std::atoi(text) * cores / std::max(1, all));
  return 1;
}

}  // namespace heddle
