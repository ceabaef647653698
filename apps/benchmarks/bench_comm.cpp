// Collectives: time, bandwidth and correctness of every one, over threads, over MPI with Open MPI's
// own beside it, and over a modelled network beside its formula.
#include <atomic>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <thread>

#include "apps/benchmarks/bench.h"
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

// One collective on one payload, ours and the library's where there is one.
struct Trial {
  std::string name;
  int64_t bytes = 0;      // of the whole payload, as in NVIDIA's nccl-tests
  double bus_factor = 1;  // of what crosses a link
  std::function<void()> ours, raw;
  std::function<int64_t()> wrong;  // elements that are not what they must be, after one call
};

// Sums of small whole numbers are exact: rank r holds r + 1 everywhere.
class Trials {
 public:
  explicit Trials(Communicator& comm) : comm_(comm), p_(comm.size()) {}

  std::vector<Trial> of_size(int64_t bytes) {
    const int64_t share = std::max<int64_t>(1, bytes / 4 / p_), n = share * p_;
    const Tensor mine = Tensor::empty_on(Device{}, {share});
    const Tensor all = Tensor::empty_on(Device{}, {p_, share}), flat = all.reshape({n});
    const Tensor other = Tensor::empty_on(Device{}, {p_, share});
    const float own = static_cast<float>(comm_.rank() + 1),
                sum = static_cast<float>(p_ * (p_ + 1) / 2);
    const double part = static_cast<double>(p_ - 1) / static_cast<double>(p_);
    const auto by_rank = [this, share](const Tensor& x) {
      int64_t wrong = 0;
      for (int64_t i = 0; i < x.size(); ++i)
        wrong += x.data<float>()[i] != static_cast<float>(i / share + 1);
      return wrong;
    };
    std::vector<Trial> out;
    out.push_back({"all_reduce", 4 * n, 2 * part, [=, this] { comm_.all_reduce(flat); },
                   raw_all_reduce(flat),
                   [=, this] {
                     fill(flat, own);
                     comm_.all_reduce(flat);
                     return count_others(flat, sum);
                   }});
    out.push_back({"reduce_scatter", 4 * n, part, [=, this] { comm_.reduce_scatter(all, mine); },
                   raw_reduce_scatter(all, mine),
                   [=, this] {
                     fill(all, own);
                     comm_.reduce_scatter(all, mine);
                     return count_others(mine, sum);
                   }});
    out.push_back({"all_gather", 4 * n, part, [=, this] { comm_.all_gather(mine, all); },
                   raw_all_gather(mine, all),
                   [=, this] {
                     fill(mine, own);
                     comm_.all_gather(mine, all);
                     return by_rank(all);
                   }});
    out.push_back({"broadcast", 4 * n, 1, [=, this] { comm_.broadcast(flat, 0); },
                   raw_broadcast(flat),
                   [=, this] {
                     fill(flat, own);
                     comm_.broadcast(flat, 0);
                     return count_others(flat, 1.0f);
                   }});
    out.push_back({"all_to_all", 4 * n, part, [=, this] { comm_.all_to_all(all, other); },
                   raw_all_to_all(all, other),
                   [=, this] {
                     fill(all, own);
                     comm_.all_to_all(all, other);
                     return by_rank(other);
                   }});
    return out;
  }

 private:
  static int64_t count_others(const Tensor& x, float expected) {
    int64_t wrong = 0;
    for (float v : x.to_vector()) wrong += v != expected;
    return wrong;
  }

#ifdef HEDDLE_MPI
  bool is_mpi() const { return comm_.name() == std::string("mpi"); }
  std::function<void()> raw_all_reduce(const Tensor& x) const {
    if (!is_mpi()) return {};
    return [x] {
      MPI_Allreduce(MPI_IN_PLACE, x.raw(), static_cast<int>(x.size()), MPI_FLOAT, MPI_SUM,
                    MPI_COMM_WORLD);
    };
  }
  std::function<void()> raw_reduce_scatter(const Tensor& all, const Tensor& mine) const {
    if (!is_mpi()) return {};
    return [all, mine] {
      MPI_Reduce_scatter_block(all.raw(), mine.raw(), static_cast<int>(mine.size()), MPI_FLOAT,
                               MPI_SUM, MPI_COMM_WORLD);
    };
  }
  std::function<void()> raw_all_gather(const Tensor& mine, const Tensor& all) const {
    if (!is_mpi()) return {};
    return [mine, all] {
      const int n = static_cast<int>(mine.size());
      MPI_Allgather(mine.raw(), n, MPI_FLOAT, all.raw(), n, MPI_FLOAT, MPI_COMM_WORLD);
    };
  }
  std::function<void()> raw_broadcast(const Tensor& x) const {
    if (!is_mpi()) return {};
    return [x] { MPI_Bcast(x.raw(), static_cast<int>(x.size()), MPI_FLOAT, 0, MPI_COMM_WORLD); };
  }
  std::function<void()> raw_all_to_all(const Tensor& from, const Tensor& to) const {
    if (!is_mpi()) return {};
    return [from, to, n = static_cast<int>(from.size() / p_)] {
      MPI_Alltoall(from.raw(), n, MPI_FLOAT, to.raw(), n, MPI_FLOAT, MPI_COMM_WORLD);
    };
  }
#else
  std::function<void()> raw_all_reduce(const Tensor&) const { return {}; }
  std::function<void()> raw_reduce_scatter(const Tensor&, const Tensor&) const { return {}; }
  std::function<void()> raw_all_gather(const Tensor&, const Tensor&) const { return {}; }
  std::function<void()> raw_broadcast(const Tensor&) const { return {}; }
  std::function<void()> raw_all_to_all(const Tensor&, const Tensor&) const { return {}; }
#endif

  Communicator& comm_;
  int64_t p_;
};

// Median over the calls of the slowest rank's milliseconds, ours first, the library's second.
std::pair<double, double> time_trial(Communicator& comm, const Trial& trial) {
  const int64_t calls = std::clamp<int64_t>((int64_t{48} << 20) / trial.bytes, 7, 60);
  const Tensor mine = Tensor::zeros({2, calls}), all = Tensor::zeros({comm.size(), 2, calls});
  for (int64_t i = -kWarmUp; i < calls; ++i)
    for (int which = 0; which < (trial.raw ? 2 : 1); ++which) {
      comm.barrier();
      const double begin = steady_seconds();
      which == 0 ? trial.ours() : trial.raw();
      if (i >= 0)
        mine.data<float>()[which * calls + i] =
            static_cast<float>(1e3 * (steady_seconds() - begin));
    }
  comm.all_gather(mine, all);
  const auto slowest = [&](int which) {
    std::vector<double> out(static_cast<size_t>(calls));
    for (int64_t r = 0; r < comm.size(); ++r)
      for (int64_t i = 0; i < calls; ++i)
        out[static_cast<size_t>(i)] = std::max<double>(
            out[static_cast<size_t>(i)], all.data<float>()[(r * 2 + which) * calls + i]);
    return median(out);
  };
  return {slowest(0), trial.raw ? slowest(1) : 0.0};
}

// Runs all trials; rank 0 prints a line for each.
void run_trials(Communicator& comm, const Options& o) {
  Trials trials(comm);
  for (int64_t bytes : {int64_t{4} << 10, int64_t{64} << 10, int64_t{1} << 20, int64_t{4} << 20,
                        int64_t{32} << 20}) {
    if (o.bytes > 0 && bytes != int64_t{4} << 10) break;
    for (const Trial& trial : trials.of_size(o.bytes > 0 ? o.bytes : bytes)) {
      if (!o.collective.empty() && trial.name != o.collective) continue;
      const auto [ms, raw_ms] = time_trial(comm, trial);
      const Tensor wrong = Tensor::empty_on(Device{}, {1}, DType::i64);
      wrong.data<int64_t>()[0] = trial.wrong();
      comm.all_reduce(wrong);
      if (wrong.data<int64_t>()[0] > 0) throw Error(trial.name + ": wrong results");
      if (comm.rank() > 0) continue;
      const double rate = static_cast<double>(trial.bytes) / ms * 1e-6;
      std::printf("%-16s %-8s %5d %10lld %10.3f %9.3f %9.3f %7lld", trial.name.c_str(), comm.name(),
                  comm.size(), static_cast<long long>(trial.bytes), ms, rate,
                  rate * trial.bus_factor, static_cast<long long>(wrong.data<int64_t>()[0]));
      if (trial.raw) std::printf(" %10.3f %6.2f", raw_ms, raw_ms / ms);
      std::printf("\n");
      std::fflush(stdout);
    }
  }
}

void print_heading(const Options& o) {
  std::printf("# %s, %lld ranks; bytes of the whole payload, median of calls, slowest rank\n",
              cpu_name().c_str(), static_cast<long long>(o.learners));
  std::printf("%-16s %-8s %5s %10s %10s %9s %9s %7s %10s %6s\n", "collective", "over", "ranks",
              "bytes", "ms", "GB/s", "bus GB/s", "#wrong", "MPI's ms", "ratio");
}

template <class Body>
void as_threads(const Options& o, const ThreadsOptions& options, const Body& body) {
  auto comms = make_threads(static_cast<int>(o.learners), options);
  std::vector<std::thread> threads;
  threads.reserve(comms.size());
  std::atomic<bool> failed = false;
  for (auto& comm : comms)
    threads.emplace_back([&body, &comm, &failed] {
      Context context({.threads = 1});
      try {
        body(*comm);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "bench: %s\n", error.what());
        failed = true;
        comm->abort(error.what());
      }
    });
  for (std::thread& t : threads) t.join();
  if (failed) throw Error("a rank has failed");
}

// Real sleeping against the formula of Thakur et al. for a ring: 2 (P - 1) steps of the latency and
// of n / P bytes.
void compare_model(const Options& o) {
  const NetModel net = parse_net(o.net);
  std::printf(
      "\n# all_reduce over threads under --net %s, against 2 (P - 1) (latency + n / P / rate)\n",
      o.net.c_str());
  std::printf("%-16s %5s %10s %10s %10s %6s\n", "collective", "ranks", "bytes", "ms", "formula",
              "ratio");
  as_threads(o, {.net = net}, [&](Communicator& comm) {
    for (int64_t bytes : {int64_t{64} << 10, int64_t{1} << 20, int64_t{4} << 20}) {
      const Tensor x = Tensor::zeros({bytes / 4});
      std::vector<double> ms;
      for (int i = 0; i < 3; ++i) {
        comm.barrier();
        const double begin = steady_seconds();
        comm.all_reduce(x);
        ms.push_back(1e3 * (steady_seconds() - begin));
      }
      const double steps = 2.0 * (comm.size() - 1),
                   formula =
                       1e3 * steps *
                       (net.latency_s + static_cast<double>(bytes) / comm.size() / net.bytes_per_s);
      if (comm.rank() == 0)
        std::printf("%-16s %5d %10lld %10.2f %10.2f %6.2f\n", "all_reduce", comm.size(),
                    static_cast<long long>(bytes), median(ms), formula, median(ms) / formula);
    }
  });
}

}  // namespace

void child_comm(const Options& o) {
#ifdef HEDDLE_MPI
  MpiSession mpi;
  Context context({.threads = 1});
  MpiOptions options;
  if (o.segment > 0) options.collectives.segment_bytes = o.segment;
  const auto comm = mpi.make_communicator(options);
  run_trials(*comm, o);
  comm->barrier();
#else
  (void)o;
  throw InputError("this build has no MPI");
#endif
}

void measure_comm(const Options& o) {
  const int64_t cores = std::min<int64_t>(o.learners, o.threads);
  std::printf("# copying with %lld threads: %.2f GB/s\n", static_cast<long long>(cores),
              copy_rate(cores, steady_seconds));
  print_heading(o);
  ThreadsOptions options;
  if (o.segment > 0) options.collectives.segment_bytes = o.segment;
  as_threads(o, options, [&](Communicator& comm) { run_trials(comm, o); });
#ifdef HEDDLE_MPI
  std::vector<std::string> command = {"mpirun",
                                      "-n",
                                      std::to_string(o.learners),
                                      "--allow-run-as-root",
                                      "--oversubscribe",
                                      "--mca",
                                      "mpi_yield_when_idle",
                                      "1",
                                      own_path(),
                                      "--child",
                                      "comm"};
  if (!o.collective.empty()) command.insert(command.end(), {"--collective", o.collective});
  if (o.segment > 0) command.insert(command.end(), {"--segment", std::to_string(o.segment)});
  if (o.bytes > 0) command.insert(command.end(), {"--bytes", std::to_string(o.bytes)});
  std::printf("%s", run_process(command).c_str());
#endif
  compare_model(o);
}

}  // namespace heddle::bench
