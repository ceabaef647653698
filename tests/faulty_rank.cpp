// A learner of a small net that trains until it is stopped, for tests/test_kills.sh:
//   mpirun -n 4 faulty_rank none            for ever
//   mpirun -n 4 faulty_rank return 2 50     rank 2 leaves the loop before step 50, without an error
//   mpirun -n 4 faulty_rank throw 2 50      rank 2 throws in the backward pass of step 50
//   faulty_rank throw 2 50 4                the same with four learners as threads
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "apps/cli/program.h"
#include "apps/session/learners.h"
#include "core/context.h"
#include "layers/activation.h"
#include "layers/linear.h"
#include "layers/loss.h"
#include "optim/data_parallel.h"

namespace {

using namespace heddle;

int train(Communicator& comm, const std::string& fault, int64_t rank, int64_t at) {
  Context context({.threads = 1});
  ParameterStore store;
  const Linear first(store, "first", 64, 512), second(store, "second", 512, 10);
  store.finalize(1);
  DataParallelOptimizer optimizer(store, make_sgd({}), comm, {},
                                  {.bucket_bytes = 4096, .check_every = 0});
  const Tensor x = Tensor::zeros({8, 64}), y = Tensor::zeros({8}, DType::i32);
  for (int64_t step = 0;; ++step) {
    const bool mine = comm.rank() == rank && step == at;
    if (mine && fault == "return") return 0;
    Tape tape;
    const Var out = second.forward(tape, relu(tape, first.forward(tape, Var(x))));
    const Var loss = softmax_cross_entropy(tape, out, y);
    optimizer.begin_step(0.01);
    tape.backward(
        loss,
        [&](Parameter& p) {
          if (mine && fault == "throw") throw Error("bad luck in " + p.name);
          optimizer.ready(p);
        },
        [&](Parameter& p) { optimizer.weights_free(p); });
    optimizer.finish_step();
    if (comm.rank() == 0 && step == 20) std::fprintf(stderr, "training\n");
  }
}

int run(const Arguments& arguments, const Arguments&) {
  alarm(600);  // in case whoever was to stop it is gone
  check(arguments.size() >= 2, "usage: faulty_rank none|return|throw [RANK STEP [LEARNERS]]");
  const auto number = [&](size_t i, int64_t missing) {
    return i < arguments.size() ? std::atoll(arguments[i].c_str()) : missing;
  };
  CommonOptions o;
  const char* timeout = std::getenv("COMM_TIMEOUT");
  o.comm_timeout = timeout == nullptr ? 10 : std::atof(timeout);
  o.learners = number(4, 1);
  parse_texts(o);
  return start_learners(o, [&](Communicator& comm) {
    return train(comm, arguments[1], number(2, -1), number(3, -1));
  });
}

}  // namespace

int main(int argc, char** argv) { return heddle::run_program("faulty_rank", argc, argv, run); }
