// Times whole training steps, ours and PyTorch's, alternating.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>

#include "apps/benchmarks/bench.h"
#include "apps/cli/format.h"
#include "apps/cli/program.h"
#include "core/error.h"
#include "core/files.h"

namespace heddle::bench {
namespace {

// One program at one setting.
struct Contender {
  std::string name;
  std::vector<std::string> command, environment = {};
  std::vector<double> round_ms = {};  // median of each round
  std::vector<double> ms = {};        // every step of every round
  double rss_mib = 0;
  bool dropped = false;
};

// Returns the best environment for Debian's PyTorch: a BLAS on OpenMP with AVX-512 kernels, ATen's
// AVX-512 kernels, and a malloc that returns no pages and uses large ones.
std::vector<std::string> best_environment() {
  std::vector<std::string> out = {"MALLOC_TOP_PAD_=1073741824", "MALLOC_MMAP_THRESHOLD_=4294967296",
                                  "MALLOC_TRIM_THRESHOLD_=17179869184",
                                  "GLIBC_TUNABLES=glibc.malloc.hugetlb=1"};
  const std::string openblas = "/usr/lib/x86_64-linux-gnu/openblas-openmp";
  if (std::filesystem::is_directory(openblas)) out.push_back("LD_LIBRARY_PATH=" + openblas);
  if (cpu_has("avx512f")) {
    out.push_back("OPENBLAS_CORETYPE=SkylakeX");
    out.push_back("ATEN_CPU_CAPABILITY=avx512");
  }
  return out;
}

// Returns the flags that describe a case to torch_step.py.
std::vector<std::string> script_flags(const Case& c) {
  std::vector<std::string> out = {concat("--batch=", c.batch), concat("--momentum=", c.momentum),
                                  concat("--weight-decay=", c.weight_decay),
                                  concat("--clip=", c.clip)};
  if (c.is_text()) {
    out.insert(out.end(), {"--arch=lstm_lm", concat("--vocabulary=", c.vocabulary),
                           concat("--emsize=", c.emsize), concat("--nhid=", c.nhid),
                           concat("--nlayers=", c.nlayers), concat("--bptt=", c.bptt),
                           concat("--dropout=", c.dropout)});
  } else {
    const bool cifar = c.stem == ResNetOptions::Stem::cifar;
    out.insert(out.end(), {"--arch=" + c.arch, concat("--stem=", cifar ? "cifar" : "imagenet"),
                           concat("--image-size=", c.image_size), concat("--classes=", c.classes)});
  }
  return out;
}

std::vector<Contender> make_contenders(const Options& o, const Case& c,
                                       const std::string& precision,
                                       const std::vector<Python>& pythons) {
  const bool gpu = o.parsed_device.is_cuda();
  std::vector<std::string> settings = {"stock nchw", "stock nhwc", "best"};
  if (c.is_text()) settings = {"stock", "best"};
  if (gpu) settings = {"eager", "compiled"};
  std::vector<Contender> out = {{"heddle", step_command(o, c, precision)}};
  for (const Python& python : pythons) {
    for (const std::string& setting : settings) {
      const bool nchw = setting == "stock nchw" || (c.is_text() && !gpu);
      Contender t;
      t.name = concat("PyTorch ", python.torch_version, " ", setting);
      t.command = {python.path,
                   "-Wignore",
                   find_script("torch_step.py"),
                   concat("--threads=", o.threads),
                   concat("--layout=", nchw ? "nchw" : "nhwc"),
                   "--precision=" + precision,
                   concat("--warmup=", o.warmup),
                   concat("--steps=", o.steps_of(c))};
      for (const std::string& flag : script_flags(c)) t.command.push_back(flag);
      if (gpu) t.command.insert(t.command.end(), {"--device=cuda", "--best"});
      if (setting == "compiled") t.command.push_back("--compile=max-autotune");
      if (setting == "best") t.command.push_back("--best"), t.environment = best_environment();
      out.push_back(std::move(t));
    }
  }
  return out;
}

void run_once(const Options& o, const std::string& title, Contender& t, double* gflop) {
  const nlohmann::json result = run_for_json(t.command, t.environment);
  *gflop = result.value("gflop", *gflop);  // only ours reports it
  const std::vector<double> ms = result.at(o.ms_key());
  check(!ms.empty(), t.name, ": no step was timed");
  t.round_ms.push_back(median(ms));
  t.ms.insert(t.ms.end(), ms.begin(), ms.end());
  t.rss_mib = std::max(t.rss_mib, result.at("rss_bytes").get<double>() / 1048576);
  std::fprintf(stderr, "bench: %s, %s: %.1f ms\n", title.c_str(), t.name.c_str(),
               t.round_ms.back());
}

// Drops the slower of a stock PyTorch's two layouts after the first round.
void drop_slower_layout(std::vector<Contender>& all) {
  for (size_t i = 0; i + 1 < all.size(); ++i) {
    if (!all[i].name.ends_with("stock nchw") || !all[i + 1].name.ends_with("stock nhwc")) continue;
    if (all[i].round_ms.empty() || all[i + 1].round_ms.empty()) continue;
    all[i].round_ms[0] < all[i + 1].round_ms[0] ? all[i + 1].dropped = true : all[i].dropped = true;
  }
}

// Returns the median over the rounds of their time over ours, measured within the same minute.
double ratio(const Contender& theirs, const Contender& ours) {
  std::vector<double> out;
  for (size_t i = 0; i < std::min(theirs.round_ms.size(), ours.round_ms.size()); ++i)
    out.push_back(theirs.round_ms[i] / ours.round_ms[i]);
  return median(out);
}

const TextTable kTable(
    "case -10|type -5|program -32|ms 9.1|min 9.1|max 9.1|items/s 9.1|GFLOP/s 8.1|% peak 7.1|MiB 7|"
    "ratio 6.2|of min 6.2");

// Measures one case and prints its rows; returns them as JSON.
nlohmann::ordered_json compare(const Options& o, const Case& c, const std::string& precision,
                               const std::vector<Python>& pythons, double peak) {
  std::vector<Contender> all = make_contenders(o, c, precision, pythons);
  double gflop = 0;
  for (int64_t round = 0; round < o.rounds; ++round) {
    for (Contender& t : all) {
      if (t.dropped) continue;
      try {
        run_once(o, c.name + " " + precision, t, &gflop);
      } catch (const std::exception& e) {
        if (&t == &all[0]) throw;
        std::fprintf(stderr, "bench: %s is left out: %s\n", t.name.c_str(), e.what());
        t.dropped = true;
        t.round_ms.clear();
      }
    }
    if (round == 0) drop_slower_layout(all);
  }
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const Contender& t : all) {
    if (t.dropped || t.round_ms.empty()) continue;
    const double ms = median(t.round_ms), low = shortest(t.ms), high = std::ranges::max(t.ms);
    const double rate = gflop / ms * 1000, items = to_double(c.items()) / ms * 1000;
    const double against = ratio(t, all[0]);
    const double of_min = low / shortest(all[0].ms);  // the ratio that other work disturbs least
    print(kTable.row({c.name, precision, t.name, ms, low, high, items, rate, 100 * rate / peak,
                      t.rss_mib, against, of_min}));
    rows.push_back({{"case", c.name},
                    {"precision", precision},
                    {"program", t.name},
                    {"batch", c.batch},
                    {"ms", ms},
                    {"ms_min", low},
                    {"ms_max", high},
                    {c.is_text() ? "tokens_per_s" : "images_per_s", items},
                    {"gflop_per_s", rate},
                    {"peak_share", rate / peak},
                    {"rss_mib", t.rss_mib},
                    {"ratio", against},
                    {"ratio_of_min", of_min}});
  }
  return rows;
}

}  // namespace

void compare_steps(const Options& o) {
  const std::vector<Python> pythons = find_pythons(o);
  if (pythons.empty() && o.torch)
    std::fprintf(stderr, "bench: no python3 with torch was found: no ratios (see --python)\n");
  const bool gpu = o.parsed_device.is_cuda();
  std::vector<std::string> precisions = {o.precision};
  if (o.precision == "all") {
    precisions = {"fp32"};
    if (gpu || cpu_has_bf16()) precisions.push_back("bf16");
  }
  const nlohmann::json peak = run_for_json(child_command(o, "peak"));
  const double loop = peak.at("fma"), gemm = peak.at("gemm"), half = peak.at("gemm_bf16");
  std::string heading = concat("# ", cpu_name(), ", ", o.threads, " threads, ", o.clock, " time, ",
                               o.rounds, " alternating rounds\n# peak GFLOP/s: fp32 ",
                               decimals(loop, 0), " (multiply-add loop), fp32 product of 2048 ",
                               decimals(gemm, 0), ", bf16 ", decimals(half, 0), "\n");
  if (gpu)
    heading +=
        concat("# on the GPU, GB/s read and written: copy ", decimals(peak.at("copy_gb_per_s"), 0),
               ", ScaleCom's selection from gradient and residual ",
               decimals(peak.at("select_gb_per_s"), 0), "\n# MiB are the GPU's, reserved\n");
  print(concat(
      heading,
      "# items: images or tokens; GFLOP: three times the forward pass by direct convolution\n"
      "# ratio: time / heddle's\n",
      kTable.heading()));
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const std::string& precision : precisions) {
    const double limit = precision == "bf16" && half > 0 ? half : std::max(loop, gemm);
    for (const Case& c : o.cases)
      for (auto& row : compare(o, c, precision, pythons, limit)) rows.push_back(row);
  }
  if (o.json.empty()) return;
  const nlohmann::ordered_json machine = {
      {"cpu", cpu_name()}, {"device", o.device}, {"threads", o.threads},  {"clock", o.clock},
      {"peak_fma", loop},  {"peak_gemm", gemm},  {"peak_gemm_bf16", half}};
  const nlohmann::ordered_json table = {{"machine", machine}, {"rows", rows}};
  write_file_atomically(o.json, table.dump(1) + '\n');
}

}  // namespace heddle::bench
