// How much of the exchange of gradients disappears behind the backward pass, on a modelled network
// that is just so slow that the exchange takes as long as backward; and what the frame of data
// parallel training costs where nothing is slow.
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "apps/benchmarks/bench.h"
#include "apps/benchmarks/bench_trainer.h"
#include "apps/cli/json.h"
#include "comm/threads.h"
#include "core/context.h"
#include "core/error.h"
#include "core/trace.h"

namespace heddle::bench {
namespace {

// Medians over the steps of one run of train_resnet, in seconds; the first steps, which make plans,
// are left out.
struct Steps {
  double forward, backward, update, comm, exposed, sent, rate;
};

Steps run_training(const Options& o, const std::string& arch, int64_t batch, int64_t learners,
                   const std::vector<std::string>& more) {
  const ScratchFolder scratch;
  const int64_t steps = o.steps > 0 ? o.steps : 8;
  std::vector<std::string> command = {own_folder() + "/train_resnet",
                                      "--data=shapes",
                                      "--arch=" + arch,
                                      "--stem=cifar",
                                      "--image-size=32",
                                      "--batch-size=" + std::to_string(batch),
                                      "--steps=" + std::to_string(steps + o.warmup),
                                      "--print-freq=1000",
                                      "--json",
                                      "--quiet",
                                      "--output-dir=" + scratch.path() + "/run"};
  if (learners > 1) command.push_back("--learners=" + std::to_string(learners));
  command.insert(command.end(), more.begin(), more.end());
  (void)run_for_json(command);
  std::ifstream metrics(scratch.path() + "/run/metrics.jsonl");
  std::vector<std::vector<double>> columns(7);
  for (std::string line; std::getline(metrics, line);) {
    const nlohmann::json step = parse_json(line, scratch.path() + "/run/metrics.jsonl");
    if (step.value("split", "") != "train" || step.at("step").get<int64_t>() <= o.warmup) continue;
    size_t i = 0;
    for (const char* key : {"t_forward", "t_backward", "t_update", "t_comm", "t_exposed",
                            "bytes_sent", "samples_per_s"})
      columns[i++].push_back(step.value(key, 0.0));
  }
  check(!columns[0].empty(), "overlap: the run has left no steps behind");
  return {median(columns[0]), median(columns[1]), median(columns[2]), median(columns[3]),
          median(columns[4]), median(columns[5]), median(columns[6])};
}

// One learner of the data parallel optimizer beside the plain optimizer, step by step in turns.
void measure_frame(const Options& o) {
  Context context({.threads = static_cast<int>(o.threads)});
  const auto solo = make_solo();
  std::printf("\n# One learner, and no learners at all: medians of steps in turns\n");
  for (const char* name : {"resnet20", "lstm"}) {
    Trainer plain(find_case(name), DType::f32, Device{});
    Trainer learner(find_case(name), DType::f32, Device{}, solo.get());
    std::vector<double> plain_ms, learner_ms;
    const int64_t steps = 20 * o.rounds;
    for (int64_t i = -o.warmup; i < steps; ++i)
      for (const bool is_plain : {true, false}) {
        const double begin = steady_seconds();
        (void)(is_plain ? plain : learner).step();
        if (i >= 0) (is_plain ? plain_ms : learner_ms).push_back(1e3 * (steady_seconds() - begin));
      }
    std::printf("%-22s plain %.2f ms, one learner %.2f ms, ratio %.3f\n", name, median(plain_ms),
                median(learner_ms), median(learner_ms) / median(plain_ms));
    std::fflush(stdout);
  }
}

}  // namespace

void measure_overlap(const Options& o) {
  constexpr int64_t kBatch = 32;
  const Steps quiet = run_training(o, "resnet18", kBatch, o.learners, {});
  const double rate = quiet.sent / quiet.backward;  // bytes a second
  const std::string net = std::to_string(static_cast<int64_t>(rate * 8e-3)) + "kbit,100us";
  std::printf(
      "# %s; ResNet-18, %lld learners (threads) of %lld images; backward %.3f s, %.1f MB sent"
      " a step; --net %s\n",
      cpu_name().c_str(), static_cast<long long>(o.learners), static_cast<long long>(kBatch),
      quiet.backward, quiet.sent * 1e-6, net.c_str());
  std::printf("%-22s %10s %10s %10s %10s %8s\n", "run", "backward s", "exchange s", "exposed s",
              "images/s", "hidden");
  const auto print = [](const char* name, const Steps& s, double whole) {
    std::printf("%-22s %10.3f %10.3f %10.3f %10.1f", name, s.backward, s.comm, s.exposed, s.rate);
    if (whole > 0) std::printf(" %6.0f %%", 100 * (1 - s.exposed / whole));
    std::printf("\n");
    std::fflush(stdout);
  };
  print("no network model", quiet, 0);
  for (int64_t round = 0; round < o.rounds; ++round) {
    const Steps off =
        run_training(o, "resnet18", kBatch, o.learners, {"--net=" + net, "--overlap=off"});
    const Steps on =
        run_training(o, "resnet18", kBatch, o.learners, {"--net=" + net, "--bucket-mb=1"});
    print("overlap off", off, 0);
    print("overlap on, 1 MB", on, off.exposed);
    const Steps whole = run_training(o, "resnet18", kBatch, o.learners, {"--net=" + net});
    print("overlap on, default", whole, off.exposed);
  }
  measure_frame(o);
  std::printf("\n# The same global batch of 128 on the same cores, no network model\n");
  for (const char* arch : {"resnet20", "resnet18"})
    for (int64_t round = 0; round < o.rounds; ++round) {
      const Steps one = run_training(o, arch, 128, 1, {});
      const Steps many = run_training(o, arch, 128 / o.learners, o.learners, {});
      std::printf("%-22s one process %8.1f images/s, %lld learners %8.1f, ratio %.3f\n", arch,
                  one.rate, static_cast<long long>(o.learners), many.rate, many.rate / one.rate);
      std::fflush(stdout);
    }
}

}  // namespace heddle::bench
