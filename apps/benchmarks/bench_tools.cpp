// Measures the rate of copying, the loader against the demand of a training step, and the time to
// train_resnet's first step.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "apps/benchmarks/bench.h"
#include "apps/cli/format.h"
#include "apps/cli/program.h"
#include "core/context.h"
#include "core/error.h"
#include "core/tensor.h"
#include "data/cifar.h"

namespace heddle::bench {
std::string find_cifar(const Options& o) {
  const char* sets = std::getenv("HEDDLE_DATA");
  const std::string home = sets != nullptr ? sets : HEDDLE_SOURCE_DIR "/../shared/data";
  const std::filesystem::path folder = o.data.empty() ? home : o.data;
  for (const auto& path : {folder, folder / "cifar-10-batches-bin"})
    if (holds_cifar10(path)) return path.string();
  check(o.data.empty(), "--data: ", o.data, ": expected CIFAR-10's binary version, found none");
  return "";
}

double copy_rate(int64_t threads, Clock clock) {
  constexpr int64_t kBytes = 64 << 20;
  Context context({.threads = to_int(threads)});
  const Tensor from = Tensor::zeros({kBytes}, DType::u8), to = Tensor::zeros({kBytes}, DType::u8);
  const auto copy = [&] {
#pragma omp parallel for num_threads(static_cast <int>(threads))
    for (int64_t t = 0; t < threads; ++t) {
      const int64_t at = kBytes * t / threads, end = kBytes * (t + 1) / threads;
      std::memcpy(to.data<uint8_t>() + at, from.data<uint8_t>() + at, to_size(end - at));
    }
  };
  return kBytes / shortest(time_calls(clock, {.least = 15}, copy)) * 1e-9;
}

void measure_loader(const Options& o) {
  std::vector<std::string> loader_command = child_command(o, "loader");
  loader_command.push_back("--data=" + find_cifar(o));
  const Case trained = find_case("resnet20");
  std::vector<double> rates, costs, demands;
  std::string set;
  for (int64_t round = 0; round < o.rounds; ++round) {
    const nlohmann::json loader = run_for_json(loader_command);
    set = loader.at("set");
    const double images = loader.at("images");
    rates.push_back(images / loader.at("seconds").get<double>());
    costs.push_back(loader.at("cpu_seconds").get<double>() / images);
    const nlohmann::json step = run_for_json(step_command(o, trained, "fp32"));
    demands.push_back(to_double(trained.batch) / median(step.at(o.ms_key())) * 1000);
  }
  const double rate = median(rates), cost = median(costs), demand = median(demands);
  const TextTable table(
      "set -10|images/s 12|us CPU/image 14.2|resnet20 img/s 14|feeds 8.2|"
      "% of a core used 16.1");
  print(concat("# ", cpu_name(),
               ", loader with one worker, standard augmentation; resnet20 fp32 on ", o.threads,
               " threads\n", table.heading(),
               table.row({set, rate, 1e6 * cost, demand, rate / demand, 100 * cost * demand})));
}

void measure_first_step(const Options& o) {
  const std::string data = find_cifar(o);
  std::vector<double> times;
  for (int64_t round = 0; round < o.rounds; ++round)
    times.push_back(run_training({"--arch=resnet20", "--batch-size=128", "--steps=1",
                                  concat("--threads=", o.threads),
                                  "--data=" + (data.empty() ? "shapes" : data)})
                        .result.at("first_step_s"));
  const TextTable table("case -10|set 10|median 8.3|min 8.3|max 8.3");
  print(concat("# ", cpu_name(), ", ", o.threads,
               " threads: seconds from process start to the end of the first step\n",
               table.heading(),
               table.row({"resnet20", data.empty() ? "shapes" : "cifar-10", median(times),
                          shortest(times), std::ranges::max(times)})));
}

}  // namespace heddle::bench
