// The communicator suite under mpirun, and the bits of an all-reduce against those of threads:
//   mpirun -n 4 test_comm_mpi
// Every rank exits with 0 if all tests pass; rank 0 prints the number of ranks.
#include <cstdio>
#include <cstring>
#include <mutex>
#include <thread>

#include "comm/launch.h"
#include "comm/mpi_communicator.h"
#include "comm/threads.h"
#include "core/context.h"
#include "tests/comm_suite.h"

namespace {

using namespace heddle;

Tensor values_of(int rank) {
  const Tensor x = Tensor::empty_on(Device{}, {40009});
  for (int64_t i = 0; i < x.size(); ++i)
    x.data<float>()[i] = static_cast<float>((i * 7919 + rank * 31) % 1013) / 997.0f;
  return x;
}

// Returns the all-reduce's result on p threads with the same values.
std::vector<float> threads_result(int p) {
  auto comms = make_threads(p);
  std::vector<float> result;
  std::vector<std::thread> threads;
  for (int r = 0; r < p; ++r)
    threads.emplace_back([&, r] {
      Context context({.threads = 1});
      const Tensor x = values_of(r);
      comms[static_cast<size_t>(r)]->all_reduce(x);
      if (r == 0) result = x.to_vector();
    });
  for (std::thread& t : threads) t.join();
  return result;
}

}  // namespace

int main() {
  MpiSession mpi;
  Context context({.threads = 1});
  const auto comm = mpi.make_communicator();
  std::vector<std::string> failures = check_collectives(*comm, 300007);
  const Tensor x = values_of(comm->rank());
  comm->all_reduce(x);
  if (x.to_vector() != threads_result(comm->size()))
    failures.push_back("all_reduce: threads and MPI give different bits");
  const LaunchInfo launch = detect_launch();
  if (launch.rank != comm->rank() || launch.size != comm->size() || launch.launcher.empty())
    failures.push_back(concat("launcher: found rank ", launch.rank, " of ", launch.size));
  for (const std::string& failure : failures) std::fprintf(stderr, "%s\n", failure.c_str());
  if (!failures.empty()) comm->abort("the suite failed");
  comm->barrier();
  if (comm->rank() == 0) std::printf("%d ranks: all well\n", comm->size());
  return 0;
}
