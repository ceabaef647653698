// Collectives: time, bandwidth and correctness of each, over threads, over MPI next to Open MPI's
// own, and over a modelled network next to its formula.
#include <algorithm>
#include <utility>

#include "apps/benchmarks/bench.h"
#include "apps/cli/format.h"
#include "apps/cli/program.h"
#include "comm/mpi_communicator.h"
#include "comm/threads.h"
#include "core/context.h"
#include "core/error.h"
#include "core/kernels.h"
#include "core/trace.h"

#ifdef HEDDLE_MPI
#include <mpi.h>
#endif

namespace heddle::bench {
namespace {

constexpr int kWarmUp = 2;

// Inputs and outputs for n elements and P ranks: mine (n / P), all and other (P, n / P).
struct Payload {
  Payload(int64_t bytes, int ranks)
      : mine(Tensor::empty_on(Device{}, {std::max<int64_t>(1, bytes / 4 / ranks)})),
        all(Tensor::empty_on(Device{}, {ranks, mine.size()})),
        other(Tensor::empty_on(Device{}, all.shape())) {}
  Tensor mine, all, other;
};

// A collective by a Communicator and by Open MPI. With r + 1 everywhere in rank r's inputs, block b
// of the result, one for each rank, holds expected(b, P): small integers, whose sums are exact.
struct Collective {
  const char* name;
  double factor;  // how many times (P - 1) / P of the payload crosses each link; 0: all of it once
  void (*ours)(Communicator&, const Payload&);
  void (*library)(const Payload&);
  Tensor Payload::*result;
  int (*expected)(int block, int ranks);
};

#ifdef HEDDLE_MPI
#define HEDDLE_BY_MPI(call) [](const Payload& x) { call; }
int count(const Tensor& x) { return to_int(x.size()); }
#else
#define HEDDLE_BY_MPI(call) nullptr
#endif

int sum_of_ranks(int, int ranks) { return ranks * (ranks + 1) / 2; }
int by_rank(int block, int) { return block + 1; }
int from_first(int, int) { return 1; }

const Collective kCollectives[] = {
    {"all_reduce", 2, [](Communicator& comm, const Payload& x) { comm.all_reduce(x.all); },
     HEDDLE_BY_MPI(MPI_Allreduce(MPI_IN_PLACE, x.all.raw(), count(x.all), MPI_FLOAT, MPI_SUM,
                                 MPI_COMM_WORLD)),
     &Payload::all, sum_of_ranks},
    {"reduce_scatter", 1,
     [](Communicator& comm, const Payload& x) { comm.reduce_scatter(x.all, x.mine); },
     HEDDLE_BY_MPI(MPI_Reduce_scatter_block(x.all.raw(), x.mine.raw(), count(x.mine), MPI_FLOAT,
                                            MPI_SUM, MPI_COMM_WORLD)),
     &Payload::mine, sum_of_ranks},
    {"all_gather", 1, [](Communicator& comm, const Payload& x) { comm.all_gather(x.mine, x.all); },
     HEDDLE_BY_MPI(MPI_Allgather(x.mine.raw(), count(x.mine), MPI_FLOAT, x.all.raw(), count(x.mine),
                                 MPI_FLOAT, MPI_COMM_WORLD)),
     &Payload::all, by_rank},
    {"broadcast", 0, [](Communicator& comm, const Payload& x) { comm.broadcast(x.all, 0); },
     HEDDLE_BY_MPI(MPI_Bcast(x.all.raw(), count(x.all), MPI_FLOAT, 0, MPI_COMM_WORLD)),
     &Payload::all, from_first},
    {"all_to_all", 1, [](Communicator& comm, const Payload& x) { comm.all_to_all(x.all, x.other); },
     HEDDLE_BY_MPI(MPI_Alltoall(x.all.raw(), count(x.mine), MPI_FLOAT, x.other.raw(), count(x.mine),
                                MPI_FLOAT, MPI_COMM_WORLD)),
     &Payload::other, by_rank}};

// Returns how many elements are wrong after one call of ours, summed over the ranks.
int64_t count_wrong(Communicator& comm, const Collective& collective, const Payload& x) {
  for (const Tensor& input : {x.mine, x.all}) fill(input, to_float(comm.rank() + 1));
  collective.ours(comm, x);
  const Tensor& result = x.*collective.result;
  const Tensor wrong = Tensor::zeros({1}, DType::i64);
  for (int64_t i = 0; i < result.size(); ++i) {
    const auto block = to_int(i / x.mine.size());
    const int expected = collective.expected(block, comm.size());
    wrong.data<int64_t>()[0] += result.data<float>()[i] != to_float(expected) ? 1 : 0;
  }
  comm.all_reduce(wrong);
  return wrong.data<int64_t>()[0];
}

// Returns the median over the calls of the slowest rank's milliseconds: ours, and Open MPI's or 0.
std::pair<double, double> time_calls_of(Communicator& comm, const Collective& collective,
                                        const Payload& x) {
  const bool both = collective.library != nullptr && comm.name() == std::string("mpi");
  const auto calls = to_size(std::clamp<int64_t>((int64_t{48} << 20) / x.all.bytes(), 7, 60));
  std::vector<double> ours, library;
  for (size_t i = 0; i < kWarmUp + calls; ++i)
    for (const bool is_ours : {true, false}) {
      if (!is_ours && !both) continue;
      comm.barrier();
      const double begin = steady_seconds();
      is_ours ? collective.ours(comm, x) : collective.library(x);
      if (i >= kWarmUp) (is_ours ? ours : library).push_back(1e3 * (steady_seconds() - begin));
    }
  const auto slowest = [&](const std::vector<double>& ms) {
    std::vector<double> out = ms;
    for (const auto& of_rank : gather_values(comm, ms))
      for (size_t i = 0; i < out.size(); ++i) out[i] = std::max(out[i], of_rank[i]);
    return median(out);
  };
  return {slowest(ours), both ? slowest(library) : 0.0};
}

const TextTable kTable(
    "collective -16|over -8|ranks 5|bytes 10|ms 10.3|GB/s 9.3|bus GB/s 9.3|"
    "#wrong 7|MPI's ms 10.3|ratio 6.2");

// Measures all collectives on all payloads; rank 0 prints a row for each.
void measure_all(Communicator& comm, const Options& o) {
  std::vector<int64_t> sizes = {4 << 10, 64 << 10, 1 << 20, 4 << 20, 32 << 20};
  if (o.bytes > 0) sizes = {o.bytes};
  for (const int64_t bytes : sizes) {
    const Payload x(bytes, comm.size());
    for (const Collective& collective : kCollectives) {
      if (!o.collective.empty() && collective.name != o.collective) continue;
      const auto [ms, library_ms] = time_calls_of(comm, collective, x);
      const int64_t wrong = count_wrong(comm, collective, x);
      if (wrong > 0) throw Error(concat(collective.name, ": wrong results"));
      if (comm.rank() > 0) continue;
      const double rate = to_double(x.all.bytes()) / ms * 1e-6;
      const double part = collective.factor * (comm.size() - 1) / comm.size();
      std::vector<TextTable::Cell> row = {collective.name,
                                          comm.name(),
                                          comm.size(),
                                          x.all.bytes(),
                                          ms,
                                          rate,
                                          rate * (part > 0 ? part : 1),
                                          wrong};
      if (library_ms > 0) row.insert(row.end(), {library_ms, library_ms / ms});
      print(kTable.row(row));
    }
  }
}

void run_as_threads(const Options& o, const ThreadsOptions& options,
                    const std::function<void(Communicator&)>& body) {
  run_threads(
      to_int(o.learners),
      [&](Communicator& comm) {
        const Context context({.threads = 1});
        body(comm);
      },
      options);
}

// Compares real sleeping with the formula of Thakur et al. for a ring: 2 (P - 1) times the latency
// and the transfer of n / P bytes.
void compare_model(const Options& o) {
  const NetModel net = parse_net(o.net);
  const TextTable table("collective -16|ranks 5|bytes 10|ms 10.2|formula 10.2|ratio 6.2");
  print(concat("\n# all_reduce over threads under --net ", o.net,
               ", against 2 (P - 1) (latency + n / P / rate)\n", table.heading()));
  run_as_threads(o, {.net = net}, [&](Communicator& comm) {
    for (const int64_t bytes : {64 << 10, 1 << 20, 4 << 20}) {
      const Tensor x = Tensor::zeros({bytes / 4});
      std::vector<double> ms;
      for (int i = 0; i < 3; ++i) {
        comm.barrier();
        const double begin = steady_seconds();
        comm.all_reduce(x);
        ms.push_back(1e3 * (steady_seconds() - begin));
      }
      const double transfer_s = to_double(bytes) / comm.size() / net.bytes_per_s;
      const double formula = 1e3 * 2 * (comm.size() - 1) * (net.latency_s + transfer_s);
      if (comm.rank() == 0)
        print(table.row(
            {"all_reduce", comm.size(), bytes, median(ms), formula, median(ms) / formula}));
    }
  });
}

CollectiveOptions collective_options(const Options& o) {
  CollectiveOptions options;
  if (o.segment > 0) options.segment_bytes = o.segment;
  return options;
}

}  // namespace

void child_comm(const Options& o) {
#ifdef HEDDLE_MPI
  MpiSession mpi;
  const Context context({.threads = 1});
  const auto comm = mpi.make_communicator(collective_options(o));
  measure_all(*comm, o);
  comm->barrier();
#else
  (void)o;
  throw InputError("this build has no MPI");
#endif
}

void measure_comm(const Options& o) {
  const int64_t cores = std::min<int64_t>(o.learners, o.threads);
  print(concat(
      "# copying with ", cores, " threads: ", decimals(copy_rate(cores, steady_seconds), 2),
      " GB/s\n# ", cpu_name(), ", ", o.learners,
      " ranks; bytes of the whole payload, median of calls, slowest rank\n", kTable.heading()));
  run_as_threads(o, {.collectives = collective_options(o)},
                 [&](Communicator& comm) { measure_all(comm, o); });
#ifdef HEDDLE_MPI
  std::vector<std::string> command = {
      "mpirun",          "-n",    std::to_string(o.learners), "--allow-run-as-root",
      "--oversubscribe", "--mca", "mpi_yield_when_idle",      "1"};
  for (const std::string& word : child_command(o, "comm")) command.push_back(word);
  command.insert(command.end(), {"--collective=" + o.collective, concat("--segment=", o.segment),
                                 concat("--bytes=", o.bytes)});
  print(run_process(command));
#endif
  compare_model(o);
}

}  // namespace heddle::bench
