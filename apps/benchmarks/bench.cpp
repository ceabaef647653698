// Measures whole training steps against PyTorch's, the loader, the first step, the layers of a step
// and the convolutions. Prints tables on stdout and progress on stderr.
#include "apps/benchmarks/bench.h"

#include <omp.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <sstream>

#include "apps/cli/flags.h"
#include "apps/cli/process.h"
#include "apps/cli/program.h"
#include "core/error.h"
#include "core/trace.h"

namespace heddle::bench {
namespace {

struct Part {
  std::string name, help;
  void (*run)(const Options&);
  bool has_cases = false;  // whether names of cases may follow
};

const std::vector<Part> kParts = {
    {"comm", "collectives over threads, over MPI, and over a slow network (--net)", measure_comm},
    {"overlap", "how much of the exchange backward hides; cost of data parallelism",
     measure_overlap},
    {"compress", "bytes, error and time of codecs, on random or given gradients",
     measure_compression},
    {"peers", "steps and bits of learners that talk to neighbours only, by graph and code",
     measure_peers},
    {"softmax", "how near the optimum of a softmax regression such learners come, over bytes",
     measure_softmax},
    {"gcn", "a training step of a graph network, next to PyTorch's, on the same batches",
     measure_gcn},
    {"loader", "images per second and CPU time of the loader, and resnet20's demand",
     measure_loader},
    {"first-step", "seconds from process start to the end of train_resnet's first step",
     measure_first_step},
    {"ops", "time of a step by layer, of the cases that follow (default: resnet20)",
     break_down_steps, true},
    {"tune-table", "time of convolution kernels by shape and direction", print_tune_table}};

const std::vector<Part> kChildren = {{"step", "", child_step, true},
                                     {"peak", "", child_peak},
                                     {"loader", "", child_loader},
                                     {"comm", "", child_comm}};

// Returns the part of that name, null if there is none.
const Part* find_part(const std::vector<Part>& parts, const std::string& name) {
  const auto part = std::ranges::find(parts, name, &Part::name);
  return part == parts.end() ? nullptr : &*part;
}

std::string summary() {
  std::string out =
      "Measures training steps, communication, compression and loading.\n\nWHAT is one of these:\n"
      "  resnet20 resnet18 resnet50  a training step, next to PyTorch's (default: all five cases)\n"
      "  lstm char                   the same for language models: Zaremba's medium, characters";
  for (const Part& part : kParts)
    out += concat("\n  ", part.name, std::string(28 - part.name.size(), ' '), part.help);
  return out;
}

FlagTable make_flags(Options& o, std::vector<std::string>& words) {
  std::vector<std::string> children = {""};
  for (const Part& part : kChildren) children.push_back(part.name);
  FlagTable flags("bench [WHAT...]", summary());
  flags.collect_words(&words);
  flags.group("Flags");
  flags.add("threads", &o.threads, "N", "compute threads of every program", at_least(1),
            otherwise("all cores"));
  flags.add("precision", &o.precision, "P", "type of products", one_of({"all", "fp32", "bf16"}));
  flags.add("rounds", &o.rounds, "N", "processes that measure each program", at_least(1));
  flags.add("steps", &o.steps, "N", "timed steps of each process", at_least(1),
            otherwise("by case"));
  flags.add("batch", &o.batch, "N", "batch size of every case", at_least(1), otherwise("by case"));
  flags.add("warmup", &o.warmup, "N", "untimed steps of each process");
  flags.add("clock", &o.clock, "C",
            "wall-clock time; cpu: CPU time of the process, for --threads 1 on a busy machine",
            one_of({"wall", "cpu"}));
  flags.add("device", &o.device, "D", "device that computes: auto, cpu, cuda or cuda:N");
  flags.add("torch", &o.torch, "", "run PyTorch too, if it is found");
  flags.add("python", &o.python, "FILE", "a Python with PyTorch", otherwise("python3, /usr/bin"));
  flags.add("python-new", &o.python_new, "FILE", "a second Python, with a newer PyTorch");
  flags.add("data", &o.data, "DIR",
            "folder of CIFAR-10, for loader, first-step and softmax; of a graph, for gcn",
            otherwise("../shared/data next to the sources, else shapes; a block model"),
            not_in_environment);
  flags.add("learners", &o.learners, "N", "ranks, for comm and overlap", at_least(1),
            at_most(1024));
  flags.add("net", &o.net, "SPEC", "simulated network, for comm, as for train_resnet --net");
  flags.add("collective", &o.collective, "NAME", "only this collective, for comm",
            one_of({"", "all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all"}));
  flags.add("bytes", &o.bytes, "N", "only this payload, for comm", at_most(1e9));
  flags.add("segment", &o.segment, "N", "bytes of a segment of a message, for comm", at_most(1e9),
            otherwise("the communicator's"));
  flags.add("arch", &o.arch, "NAME", "the ResNet whose shapes random gradients have, for compress");
  flags.add("gradients", &o.gradients, "FILE",
            "read fp32 gradients from a safetensors file instead, for compress");
  flags.add("compress", &o.compress, "SPEC",
            "only this codec, as for train_resnet --compress, for compress");
  flags.add("seed", &o.seed, "N",
            "seed of random gradients, codecs and problems, for compress and peers");
  flags.add("step-ms", &o.step_ms, "MS",
            "duration of the training step to compare with, for compress", otherwise("measured"));
  flags.add("json", &o.json, "FILE",
            "also write the table of steps, or the curves of softmax, as JSON");
  flags.add(
      "child", &o.child, "PART",
      "measure this in the process itself and print one line of JSON (comm, under mpirun: its "
      "rows), as bench does in processes that it starts",
      one_of(children), not_in_environment);
  flags.add("help", &o.help, "", "print this text", not_saved);
  flags.add("version", &o.version, "", "print version and build", not_saved);
  return flags;
}

int run(const Arguments& arguments, const Arguments& environment) {
  Options o;
  std::vector<std::string> words;
  FlagTable flags = make_flags(o, words);
  flags.parse({arguments.begin() + 1, arguments.end()}, environment);
  for (const std::string& warning : flags.warnings())
    std::fprintf(stderr, "bench: %s\n", warning.c_str());
  if (o.help) return print(flags.help()), 0;
  if (o.version) return print(version_text()), 0;
  if (o.threads == 0) o.threads = omp_get_num_procs();
  o.parsed_device = parse_device(o.device);
  const Part* part = find_part(kChildren, o.child);
  if (part == nullptr && !words.empty()) {
    part = find_part(kParts, words[0]);
    if (part != nullptr) words.erase(words.begin());
  }
  if (words.empty() && part != nullptr && part->has_cases) words = {"resnet20"};
  if (words.empty() && part == nullptr)
    for (const Case& c : all_cases()) words.push_back(c.name);
  for (const std::string& word : words) {
    check(part == nullptr || part->has_cases, part->name, ": takes no cases, found '", word, "'");
    o.cases.push_back(find_case(word));
    if (o.batch > 0) o.cases.back().batch = o.batch;
  }
  part != nullptr ? part->run(o) : compare_steps(o);
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

Case find_case(const std::string& name) {
  std::string known;
  for (const Case& c : all_cases()) {
    if (c.name == name) return c;
    known += c.name + ", ";
  }
  for (const Part& part : kParts) known += part.name + ", ";
  throw InputError(concat("expected one of ", known, "found '", name, "'"));
}

double median(std::vector<double> values) {
  check(!values.empty(), "median: nothing was measured");
  std::ranges::sort(values);
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

bool cpu_has(const std::string& feature) {
  std::istringstream flags(proc_value("/proc/cpuinfo", "flags"));
  for (std::string flag; flags >> flag;)
    if (flag == feature) return true;
  return false;
}

bool cpu_has_bf16() { return cpu_has("avx512_bf16") || cpu_has("amx_bf16"); }

std::string cpu_name() {
  const std::string name = proc_value("/proc/cpuinfo", "model name");
  return name.empty() ? "unknown processor" : name;
}

double process_cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return to_double(time.tv_sec) + 1e-9 * to_double(time.tv_nsec);
}

Clock clock_of(const Options& o) { return o.clock == "cpu" ? process_cpu_seconds : steady_seconds; }

}  // namespace heddle::bench

int main(int argc, char** argv) {
  return heddle::run_program("bench", argc, argv, heddle::bench::run);
}
