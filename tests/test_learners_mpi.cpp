// Learners under mpirun and as threads of one process: the same weights, bit for bit, with every
// compression algorithm, overlapped with backward.
//   mpirun -n 3 test_learners_mpi
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include "comm/mpi_communicator.h"
#include "core/random.h"
#include "optim/decentralized.h"
#include "tests/learner_net.h"
#include "tests/ranks.h"

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
        "qsgd:bits=4,bucket=64", "qsgd:bits=3,rounding=nearest", "powersgd:rank=2",
        "scalecom:rate=10,values=bf16", "topk:density=0.1,values=bf16",
        "powersgd:rank=2,values=bf16"}) {
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

TEST_CASE("learners: threads and MPI give the same bits in two levels, too") {
  const int p = processes->size();
  CHECK(processes->hosts() == std::vector<int>(static_cast<size_t>(p)));  // all on this machine
  if (p == 1) return;
  for (const std::string spec : {"none", "topk:density=0.1", "scalecom:rate=10"}) {
    RunOptions o{.batch = 12, .steps = 5, .compress = spec};
    o.parallel = {.bucket_bytes = 2000, .compress_start = 1};
    for (int r = 0; r < p; ++r) o.parallel.hosts.push_back(r % 2);
    const ContextOptions options{.threads = 1, .deterministic = true};
    std::vector<float> values;
    {
      Context context(options);
      values = train(*processes, o);
    }
    if (processes->rank() == 0) CHECK(values == train_ranks(p, o, options)[0]);
  }
}

namespace {

// Trains on quadratics that differ from rank to rank; returns this rank's weights and the mean.
std::vector<float> train_with_peers(Communicator& comm, const std::string& innovation) {
  ParameterStore store;
  store.add("small", {20}, constant_init(0));
  store.add("large", {300}, constant_init(0));
  store.finalize(1);
  DecentralizedOptimizer optimizer(
      store, make_sgd({.momentum = 0.9}), comm, {},
      {.innovation = innovation, .resync = 4, .bucket_bytes = 1000, .seed = 3});
  for (int step = 0; step < 10; ++step) {
    optimizer.begin_step(0.1);
    for (Parameter& p : store.parameters()) {
      for (int64_t i = 0; i < p.size(); ++i)
        p.grad.data<float>()[i] =
            p.value.data<float>()[i] -
            Philox(1, static_cast<uint64_t>(comm.rank())).normal(static_cast<uint64_t>(i));
      p.written = true;
      optimizer.ready(p);
      optimizer.weights_free(p);
    }
    (void)optimizer.finish_step();
  }
  std::vector<float> out = store.values().to_vector();
  for (const float x : optimizer.consensus().mean.to_vector()) out.push_back(x);
  return out;
}

}  // namespace

TEST_CASE("peers: threads and MPI give the same bits with every code") {
  for (const std::string code :
       {"none", "qsgd:bits=4,rounding=stochastic", "topk:density=0.1", "dyna"}) {
    CAPTURE(code);
    const Context context({.threads = 1});
    const auto found = gather_values(*processes, train_with_peers(*processes, code));
    if (processes->rank() > 0) continue;
    std::vector<std::vector<float>> expected(found.size());
    expect_none(run_ranks(processes->size(), [&](Communicator& comm) {
      expected[static_cast<size_t>(comm.rank())] = train_with_peers(comm, code);
    }));
    CHECK(found == expected);
    for (size_t r = 1; r < found.size(); ++r) CHECK(found[r] != found[0]);
  }
}

int main(int argc, char** argv) {
  MpiSession mpi;
  const auto comm = mpi.make_communicator();
  processes = comm.get();
  const int code = doctest::Context(argc, argv).run();
  if (code != 0) comm->abort("learners under MPI");
  return code;
}
