// Learners under mpirun and as threads of one process: the same weights, bit for bit, with every
// compression algorithm, overlapped with backward.
//   mpirun -n 3 test_learners_mpi
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include "comm/mpi_communicator.h"
#include "tests/learner_net.h"

using namespace heddle;

namespace {

Communicator* processes = nullptr;

}  // namespace

TEST_CASE("learners: threads and MPI give the same bits with every family") {
  for (const std::string spec :
       {"none", "bf16", "fp16", "topk:density=0.1", "topk:density=0.1,indices=plain",
        "randomk:density=0.1", "scalecom:rate=10,beta=0.3", "scalecom:rate=10,select=exact",
        "scalecom:rate=auto", "adacomp:bin=20", "adacomp:bin=9,scale=bin",
        "lgc:density=0.1,train=2,gate=10", "lgc:density=0.1,train=1,gate=10,codec=paper,refresh=2",
        "qsgd:bits=4,bucket=64", "qsgd:bits=3,rounding=nearest", "powersgd:rank=2"}) {
    CAPTURE(spec);
    RunOptions o{.batch = 12, .steps = 5, .compress = spec};
    o.parallel = {.bucket_bytes = 2000, .compress_start = 1};
    const ContextOptions options{.threads = 1, .deterministic = true};
    std::vector<float> values;
    {
      Context context(options);
      values = train(*processes, o);  // compares the replicas at its end
    }
    if (processes->rank() == 0) CHECK(values == train_ranks(processes->size(), o, options)[0]);
  }
}

int main(int argc, char** argv) {
  MpiSession mpi;
  const auto comm = mpi.make_communicator({.timeout_s = 60});
  processes = comm.get();
  const int code = doctest::Context(argc, argv).run();
  if (code != 0) comm->abort("learners under MPI");
  return code;
}
