// Measures how much of the gradient exchange backward hides, on a modelled network on which both
// take equally long, and the cost of data-parallel training without a slow network.
#include <cstdio>
#include <map>

#include "apps/benchmarks/bench.h"
#include "apps/benchmarks/bench_trainer.h"
#include "apps/cli/format.h"
#include "apps/cli/program.h"
#include "comm/threads.h"
#include "core/context.h"
#include "core/trace.h"

namespace heddle::bench {
namespace {

// Medians over the steps of a run, by key of metrics.jsonl.
using Steps = std::map<std::string, double>;

// Trains with train_resnet. The first steps, which make plans, do not count.
Steps train(const Options& o, const std::string& arch, int64_t batch, int64_t learners,
            const std::vector<std::string>& more = {}) {
  std::vector<std::string> flags = {"--data=shapes",
                                    "--arch=" + arch,
                                    "--stem=cifar",
                                    "--image-size=32",
                                    "--print-freq=1000",
                                    concat("--batch-size=", batch),
                                    concat("--steps=", (o.steps > 0 ? o.steps : 8) + o.warmup),
                                    concat("--learners=", learners)};
  flags.insert(flags.end(), more.begin(), more.end());
  std::map<std::string, std::vector<double>> values;
  for (const nlohmann::json& step : run_training(flags).steps)
    for (const char* key : {"t_backward", "t_comm", "t_exposed", "bytes_sent", "samples_per_s"})
      if (step.at("step").get<int64_t>() > o.warmup) values[key].push_back(step.value(key, 0.0));
  Steps medians;
  for (const auto& [key, of_steps] : values) medians[key] = median(of_steps);
  return medians;
}

// Compares one learner of the data-parallel optimizer with the plain optimizer, alternating.
void measure_frame(const Options& o) {
  Context context({.threads = to_int(o.threads)});
  const auto solo = make_solo();
  print("\n# One learner, and no learners at all: medians of alternating steps\n");
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
  const auto run = [&](const std::vector<std::string>& more) {
    return train(o, "resnet18", kBatch, o.learners, more);
  };
  Steps quiet = run({});
  const double rate = quiet["bytes_sent"] / quiet["t_backward"];  // bytes a second
  const std::string net = concat("--net=", to_int64(rate * 8e-3), "kbit,100us");
  const TextTable table(
      "run -22|backward s 10.3|exchange s 10.3|exposed s 10.3|images/s 10.1|hidden 8");
  print(concat("# ", cpu_name(), "; ResNet-18, ", o.learners, " learners (threads) of ", kBatch,
               " images; backward ", decimals(quiet["t_backward"], 3), " s, ",
               decimals(1e-6 * quiet["bytes_sent"], 1), " MB sent a step; ", net, '\n',
               table.heading()));
  // `exposed_s`: of the same exchange without overlap; 0: nothing to compare with.
  const auto print_run = [&](const char* name, Steps s, double exposed_s) {
    std::vector<TextTable::Cell> row = {name, s["t_backward"], s["t_comm"], s["t_exposed"],
                                        s["samples_per_s"]};
    if (exposed_s > 0) row.emplace_back(decimals(100 * (1 - s["t_exposed"] / exposed_s), 0) + " %");
    print(table.row(row));
  };
  print_run("no network model", quiet, 0);
  for (int64_t round = 0; round < o.rounds; ++round) {
    Steps off = run({net, "--overlap=off"});
    const Steps on = run({net, "--bucket-mb=1"});
    print_run("overlap off", off, 0);
    print_run("overlap on, 1 MB", on, off["t_exposed"]);
    print_run("overlap on, default", run({net}), off["t_exposed"]);
  }
  measure_frame(o);
  print("\n# The same global batch of 128 on the same cores, no network model\n");
  for (const char* arch : {"resnet20", "resnet18"})
    for (int64_t round = 0; round < o.rounds; ++round) {
      const double one = train(o, arch, 128, 1)["samples_per_s"];
      const double many = train(o, arch, 128 / o.learners, o.learners)["samples_per_s"];
      std::printf("%-22s one process %8.1f images/s, %d learners %8.1f, ratio %.3f\n", arch, one,
                  to_int(o.learners), many, many / one);
      std::fflush(stdout);
    }
}

}  // namespace heddle::bench
