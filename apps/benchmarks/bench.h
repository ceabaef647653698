// The program bench: its options, its cases, and helpers that all its parts share. Every timing of
// a step runs in a fresh process: the program starts itself with --child, or PyTorch with
// apps/benchmarks/torch_step.py, and reads one line of JSON. So peak memory is that of one case
// alone, and two programs alternate: A B A B.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/device.h"
#include "layers/resnet.h"

namespace heddle::bench {

// One network at one size: a ResNet, or a language model if it has a vocabulary.
struct Case {
  std::string name;
  int64_t batch = 0;
  int64_t steps = 0;                                // timed by each process
  double momentum = 0, weight_decay = 0, clip = 0;  // of the update; clip: global norm, 0: none
  std::string arch = {};
  ResNetOptions::Stem stem = ResNetOptions::Stem::cifar;
  int64_t image_size = 0, classes = 0;
  int64_t vocabulary = 0, emsize = 0, nhid = 0, nlayers = 0, bptt = 0;
  float dropout = 0;

  bool is_text() const { return vocabulary > 0; }
  // Returns how many items a step processes: images, or tokens.
  int64_t items() const { return is_text() ? batch * bptt : batch; }
};

// All cases, with their own batch sizes.
const std::vector<Case>& all_cases();
// Returns the case of that name; throws InputError if there is none.
Case find_case(const std::string& name);

struct Options {
  int64_t threads = 0, rounds = 3, steps = 0, warmup = 2, batch = 0;
  std::string precision = "all", clock = "wall", device = "cpu";
  std::string json, python, python_new, data;
  int64_t learners = 4, bytes = 0, segment = 0;  // of collectives
  std::string collective, net = "100mbit,1ms";
  std::string arch = "resnet18", gradients, compress;  // of compress: source and codec
  int64_t seed = 1;
  double step_ms = 0;
  bool torch = true, help = false, version = false;
  std::string child;

  // Parsed from the strings above.
  Device parsed_device;
  std::vector<Case> cases;  // those named, with --batch applied

  int64_t steps_of(const Case& c) const { return steps > 0 ? steps : c.steps; }
  DType dtype() const { return precision == "bf16" ? DType::bf16 : DType::f32; }
  // Returns the key under which children report a step's milliseconds by --clock.
  const char* ms_key() const { return clock == "cpu" ? "cpu_ms" : "ms"; }
};

// ---- measuring

double median(std::vector<double> values);
inline double shortest(const std::vector<double>& values) {
  return *std::ranges::min_element(values);
}
// Returns whether the processor's list of features holds this name, as Linux spells it.
bool cpu_has(const std::string& feature);
bool cpu_has_bf16();
// Returns "Intel(R) Xeon(R) Processor".
std::string cpu_name();
// Returns the CPU seconds that this process has used, all threads together.
double process_cpu_seconds();
// Returns seconds by the wall clock, or those that this process has used, by --clock.
using Clock = double (*)();
Clock clock_of(const Options& o);

// Calls at least `least` times, and then until `seconds` have passed or `most` is reached.
struct Repeat {
  size_t least = 1, most = std::numeric_limits<size_t>::max();
  double seconds = 0;
};
// Returns the seconds of every call by `clock`.
template <class Call>
std::vector<double> time_calls(Clock clock, const Repeat& repeat, Call&& call) {
  std::vector<double> seconds;
  const double end = clock() + repeat.seconds;
  while (seconds.size() < repeat.least || (seconds.size() < repeat.most && clock() < end)) {
    const double begin = clock();
    call();
    seconds.push_back(clock() - begin);
  }
  return seconds;
}

// Returns the highest GB/s at which `threads` threads copied memory; each byte counts once.
double copy_rate(int64_t threads, Clock clock);

// ---- processes (bench_process.cpp)

// Runs a program to its end and returns its stdout. `environment` holds NAME=value to add; quiet:
// drops its stderr. Throws Error unless it exits with 0.
std::string run_process(const std::vector<std::string>& command,
                        const std::vector<std::string>& environment = {}, bool quiet = false);
// Returns the last line of that output, which must be a JSON object.
nlohmann::json run_for_json(const std::vector<std::string>& command,
                            const std::vector<std::string>& environment = {});
// Returns the path of CIFAR-10 in the folder of --data, or in shared/data next to this tree; ""
// means rendered shapes. Throws InputError if --data has none.
std::string find_cifar(const Options& o);
// Returns the command that measures `part` in a process of its own, with these options.
std::vector<std::string> child_command(const Options& o, const std::string& part);
// Returns the command of --child step, which prints {"ms": [...], "cpu_ms": [...], "gflop": ...,
// "rss_bytes": ..., "loss": ...}.
std::vector<std::string> step_command(const Options& o, const Case& c,
                                      const std::string& precision);
// Returns the folder of this program.
std::string own_folder();
// Returns the path of a Python script of the benchmarks. Throws Error if it is not found.
std::string find_script(const std::string& name);

struct TrainingRun {
  nlohmann::json result;              // the line of --json
  std::vector<nlohmann::json> steps;  // the lines of metrics.jsonl with "split": "train"
};
// Runs train_resnet with --json and these flags in a temporary run folder.
TrainingRun run_training(const std::vector<std::string>& flags);

// A Python that has PyTorch.
struct Python {
  std::string path, torch_version;
};
// Returns --python, or else python3 or /usr/bin/python3 if one has it, and --python-new.
std::vector<Python> find_pythons(const Options& o);

// ---- the parts that a user names; they print tables on stdout

void compare_steps(const Options& o);        // bench_steps.cpp
void measure_comm(const Options& o);         // bench_comm.cpp
void measure_overlap(const Options& o);      // bench_overlap.cpp
void measure_compression(const Options& o);  // bench_compress.cpp
void measure_peers(const Options& o);        // bench_peers.cpp
void measure_softmax(const Options& o);      // bench_softmax.cpp
void measure_gcn(const Options& o);          // bench_gcn.cpp
void measure_loader(const Options& o);       // bench_tools.cpp
void measure_first_step(const Options& o);   // bench_tools.cpp
void break_down_steps(const Options& o);     // bench_ops.cpp
void print_tune_table(const Options& o);     // bench_tune.cpp

// ---- the parts of --child; they measure in this process and print one line of JSON

void child_step(const Options& o);    // bench_child.cpp
void child_peak(const Options& o);    // bench_child.cpp
void child_loader(const Options& o);  // bench_child.cpp
void child_comm(const Options& o);    // bench_comm.cpp, under mpirun; prints rows of its table

}  // namespace heddle::bench
