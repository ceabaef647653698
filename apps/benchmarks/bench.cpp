// Measures: whole training steps beside PyTorch's, the loader, the first step, the layers of a
// step, the convolutions. Tables go to stdout, what is going on to stderr.
#include "apps/benchmarks/bench.h"

#include <omp.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <fstream>
#include <sstream>

#include "apps/cli/build_info.h"
#include "apps/cli/flags.h"
#include "apps/cli/program.h"
#include "core/error.h"
#include "core/trace.h"

extern char** environ;

namespace heddle::bench {
namespace {

constexpr const char* kSummary = R"(Measures. WHAT is one of these, in front of the flags:
  resnet20 resnet18 resnet50  a whole training step, with PyTorch's beside it (default: all five)
  lstm char                   the same for language models: Zaremba's medium one, and characters
  comm                        collectives: over threads, over MPI beside Open MPI's own, and over
                              a slow network (--net) beside its formula
  overlap                     how much of an exchange backward hides, and what data parallel training
                              costs where nothing is slow
  compress                    what codecs save, lose and take, on gradients that are made up in the
                              shapes of --arch, or those of --gradients
  loader                      images per second and CPU time of the loader, against resnet20's step
  first-step                  seconds from process start to the end of train_resnet's first step
  ops [CASE…]                 where the time of a step goes, layer by layer (default: resnet20)
  tune-table                  convolution kernels by shape and direction)";

FlagTable make_flags(Options& o) {
  FlagTable flags("bench [WHAT…]", kSummary);
  flags.group("Flags");
  flags.add("threads", &o.threads, "N", "compute threads of every program", at_least(1),
            otherwise("all cores"));
  flags.add("precision", &o.precision, "P", "type of products", one_of({"all", "fp32", "bf16"}));
  flags.add("rounds", &o.rounds, "N", "processes of each program", at_least(1));
  flags.add("steps", &o.steps, "N", "timed steps of each process", at_least(1),
            otherwise("by case"));
  flags.add("batch", &o.batch, "N", "batch size of every case", at_least(1), otherwise("by case"));
  flags.add("warmup", &o.warmup, "N", "steps before the timed ones");
  flags.add("clock", &o.clock, "C",
            "cpu: count the process's own time, for --threads 1 on a busy machine",
            one_of({"wall", "cpu"}));
  flags.add("device", &o.device, "D", "device that computes: auto, cpu, cuda or cuda:N");
  flags.add("torch", &o.torch, "", "run PyTorch too, where it is found");
  flags.add("python", &o.python, "FILE", "a Python with PyTorch", otherwise("python3, /usr/bin"));
  flags.add("python-new", &o.python_new, "FILE", "a second Python, with a newer PyTorch");
  flags.add("data", &o.data, "DIR", "folder of CIFAR-10, for loader and first-step",
            otherwise("../shared/data next to the sources, else shapes"));
  flags.add("learners", &o.learners, "N", "ranks, for comm and overlap", at_least(1),
            at_most(1024));
  flags.add("net", &o.net, "SPEC", "simulated network of comm, as for train_resnet --net");
  flags.add("collective", &o.collective, "NAME", "only this collective",
            one_of({"", "all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all"}));
  flags.add("bytes", &o.bytes, "N", "only this payload", at_most(1e9));
  flags.add("segment", &o.segment, "N", "bytes of a segment of a message, for comm", at_most(1e9),
            otherwise("the communicator's"));
  flags.add("arch", &o.arch, "NAME", "a ResNet, for compress");
  flags.add("gradients", &o.gradients, "FILE",
            "fp32 tensors in safetensors format instead, for compress");
  flags.add("compress", &o.compress, "SPEC",
            "only this codec, as for train_resnet --compress, for compress");
  flags.add("seed", &o.seed, "N", "seed of gradients and codecs, for compress");
  flags.add("step-ms", &o.step_ms, "MS",
            "duration of the training step to compare with, for compress", otherwise("measured"));
  flags.add("json", &o.json, "FILE", "also write the table of steps as JSON");
  flags.add("help", &o.help, "", "print this text", not_saved);
  flags.add("version", &o.version, "", "print version and build", not_saved);
  return flags;
}

std::vector<std::string> environment() {
  std::vector<std::string> out;
  for (char** entry = environ; *entry != nullptr; ++entry) out.emplace_back(*entry);
  return out;
}

void run_child(const Options& o, const std::vector<std::string>& words) {
  const std::string& what = words.at(1);
  if (what == "step") return child_step(o, find_case(words.at(2), o.batch));
  if (what == "peak") return child_peak(o);
  if (what == "loader") return child_loader(o);
  if (what == "comm") return child_comm(o);
  throw InputError("--child " + what + ": unknown");
}

void run(Options& o, const std::vector<std::string>& words) {
  if (o.threads == 0) o.threads = omp_get_num_procs();
  if (!words.empty() && words[0] == "--child") return run_child(o, words);
  const std::string what = words.empty() ? "" : words[0];
  if (words.size() == 1) {
    if (what == "comm") return measure_comm(o);
    if (what == "overlap") return measure_overlap(o);
    if (what == "compress") return measure_compression(o);
    if (what == "loader") return measure_loader(o);
    if (what == "first-step") return measure_first_step(o);
    if (what == "tune-table") return print_tune_table(o);
  }
  std::vector<Case> cases;
  for (const std::string& word : words)
    if (&word != &words[0] || what != "ops") cases.push_back(find_case(word, o.batch));
  if (what == "ops") {
    if (cases.empty()) cases.push_back(find_case("resnet20", o.batch));
    for (const Case& c : cases) break_down_step(o, c);
    return;
  }
  compare_steps(o, cases.empty() ? all_cases() : cases);
}

int bench_main(const std::vector<std::string>& arguments) {
  Options o;
  FlagTable flags = make_flags(o);
  // Words first, flags behind them; a child begins with a flag of its own.
  auto is_word = [](const std::string& a) { return !a.starts_with("--") || a == "--child"; };
  const auto split = std::find_if_not(arguments.begin(), arguments.end(), is_word);
  flags.parse({split, arguments.end()}, environment());
  for (const std::string& warning : flags.warnings())
    std::fprintf(stderr, "bench: %s\n", warning.c_str());
  if (o.help) {
    std::printf("%s", flags.help().c_str());
  } else if (o.version) {
    std::printf("heddle %s (%s, %s, %s)\n", HEDDLE_VERSION, kBuildRevision, kBuildType,
                kBuildCompiler);
  } else {
    run(o, {arguments.begin(), split});
  }
  return 0;
}

}  // namespace

const std::vector<Case>& all_cases() {
  using Stem = ResNetOptions::Stem;
  auto resnet = [](Case c) {
    c.arch = c.name;
    c.momentum = 0.9;
    c.weight_decay = 1e-4;
    return c;
  };
  static const std::vector<Case> cases = {
      resnet({.name = "resnet20", .batch = 128, .steps = 12, .image_size = 32, .classes = 10}),
      resnet({.name = "resnet18", .batch = 128, .steps = 4, .image_size = 32, .classes = 10}),
      resnet({.name = "resnet50",
              .batch = 16,
              .steps = 4,
              .stem = Stem::imagenet,
              .image_size = 224,
              .classes = 1000}),
      // Zaremba et al. clip the sum over T at 5; our loss is the mean.
      {.name = "lstm",
       .batch = 20,
       .steps = 8,
       .clip = 5.0 / 35,
       .vocabulary = 10000,
       .emsize = 650,
       .nhid = 650,
       .nlayers = 2,
       .bptt = 35,
       .dropout = 0.5f},
      {.name = "char",
       .batch = 32,
       .steps = 8,
       .momentum = 0.9,
       .vocabulary = 96,
       .emsize = 64,
       .nhid = 512,
       .nlayers = 2,
       .bptt = 128},
  };
  return cases;
}

Case find_case(const std::string& name, int64_t batch) {
  for (Case c : all_cases()) {
    if (c.name != name) continue;
    if (batch > 0) c.batch = batch;
    return c;
  }
  throw InputError(
      concat("expected resnet20, resnet18, resnet50, lstm, char, comm, overlap, compress, ",
             "loader, first-step, ops or tune-table; found '", name, "'"));
}

double median(std::vector<double> values) {
  check(!values.empty(), "median: nothing was measured");
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

namespace {

// The value behind `key` in the first processor's entry.
std::string cpu_field(const std::string& key) {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(key) && line.find(": ") != std::string::npos)
      return line.substr(line.find(": ") + 2);
  return "";
}

}  // namespace

bool cpu_has(const std::string& feature) {
  std::istringstream flags(cpu_field("flags"));
  for (std::string flag; flags >> flag;)
    if (flag == feature) return true;
  return false;
}

std::string cpu_name() {
  const std::string name = cpu_field("model name");
  return name.empty() ? "unknown processor" : name;
}

double process_cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

Clock clock_of(const Options& o) { return o.clock == "cpu" ? process_cpu_seconds : steady_seconds; }

}  // namespace heddle::bench

int main(int argc, char** argv) {
  heddle::prepare_process(argv);
  try {
    return heddle::bench::bench_main({argv + 1, argv + argc});
  } catch (const heddle::Error& e) {
    std::fprintf(stderr, "bench: %s\n", e.what());
    return static_cast<int>(e.exit_code());
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench: %s\n", e.what());
    return 1;
  }
}
