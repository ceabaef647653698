// What copying takes, the loader against what a training step eats, and the time to the first step
// of train_resnet.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "apps/benchmarks/bench.h"
#include "core/context.h"
#include "core/error.h"
#include "core/tensor.h"
#include "data/cifar.h"

namespace heddle::bench {
namespace {

// CIFAR-10 in the folder of --data, or of the data sets beside this tree; "" means rendered shapes.
std::string find_data(const Options& o) {
  std::vector<std::filesystem::path> folders = {o.data};
  if (o.data.empty()) folders = {std::filesystem::path(HEDDLE_SOURCE_DIR) / "../shared/data"};
  for (const auto& folder : folders)
    for (const auto& path : {folder, folder / "cifar-10-batches-bin"})
      if (holds_cifar10(path)) return path.string();
  check(o.data.empty(), "--data: ", o.data, " holds no CIFAR-10 in its binary version");
  return "";
}

}  // namespace

double copy_rate(int64_t threads, Clock clock) {
  constexpr int64_t kBytes = 64 << 20;
  Context context({.threads = static_cast<int>(threads)});
  const Tensor from = Tensor::zeros({kBytes}, DType::u8), to = Tensor::zeros({kBytes}, DType::u8);
  double best = 0;
  for (int i = 0; i < 15; ++i) {
    const double begin = clock();
#pragma omp parallel for num_threads(static_cast <int>(threads))
    for (int64_t t = 0; t < threads; ++t) {
      const int64_t at = kBytes * t / threads, end = kBytes * (t + 1) / threads;
      std::memcpy(to.data<uint8_t>() + at, from.data<uint8_t>() + at,
                  static_cast<size_t>(end - at));
    }
    best = std::max(best, kBytes / (clock() - begin) * 1e-9);
  }
  return best;
}

void measure_loader(const Options& o) {
  const std::string data = find_data(o);
  std::vector<double> rates, costs, eaten;
  std::string set;
  for (int64_t round = 0; round < o.rounds; ++round) {
    const nlohmann::json loader = run_for_json({own_path(), "--child", "loader", "--data", data});
    const nlohmann::json step = run_own_step(o, find_case("resnet20"), "fp32");
    set = loader.at("set");
    const double images = loader.at("images");
    rates.push_back(images / loader.at("seconds").get<double>());
    costs.push_back(loader.at("cpu_seconds").get<double>() / images);
    const std::vector<double> ms = step.at(o.clock == "cpu" ? "cpu_ms" : "ms");
    eaten.push_back(static_cast<double>(find_case("resnet20").batch) / median(ms) * 1000);
  }
  const double rate = median(rates), cost = median(costs), step_rate = median(eaten);
  std::printf(
      "# %s, loader with one worker, standard augmentation; resnet20 fp32 on %lld threads\n",
      cpu_name().c_str(), static_cast<long long>(o.threads));
  std::printf("%-10s %12s %14s %14s %8s %16s\n", "set", "images/s", "us CPU/image",
              "resnet20 img/s", "feeds", "% of a core used");
  std::printf("%-10s %12.0f %14.2f %14.0f %8.2f %16.1f\n", set.c_str(), rate, 1e6 * cost, step_rate,
              rate / step_rate, 100 * cost * step_rate);
}

void measure_first_step(const Options& o) {
  const std::string program = own_folder() + "/train_resnet", data = find_data(o);
  check(std::filesystem::exists(program), program, ": not there; build it first");
  std::vector<double> times;
  for (int64_t round = 0; round < o.rounds; ++round) {
    const ScratchFolder folder;
    std::vector<std::string> command = {program,
                                        "--arch=resnet20",
                                        "--batch-size=128",
                                        "--steps=1",
                                        "--json",
                                        "--quiet",
                                        "--output-dir=" + folder.path() + "/run",
                                        "--threads=" + std::to_string(o.threads)};
    command.push_back("--data=" + (data.empty() ? "shapes" : data));
    times.push_back(run_for_json(command).at("first_step_s"));
  }
  std::printf("# %s, %lld threads: seconds from process start to the end of the first step\n",
              cpu_name().c_str(), static_cast<long long>(o.threads));
  std::printf("%-10s %10s %8s %8s %8s\n", "case", "set", "median", "min", "max");
  std::printf("%-10s %10s %8.3f %8.3f %8.3f\n", "resnet20", data.empty() ? "shapes" : "cifar-10",
              median(times), *std::min_element(times.begin(), times.end()),
              *std::max_element(times.begin(), times.end()));
}

}  // namespace heddle::bench
