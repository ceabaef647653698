// Measuring, shared by the files of the program bench. Every timing runs in a fresh process: the
// program starts itself with --child, or PyTorch with apps/benchmarks/torch_step.py, and reads one
// JSON line. So peak memory is that of one case alone, and two programs are compared in turns: A B
// A B.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "layers/resnet.h"

namespace heddle::bench {

// One network at one size: a ResNet, or, where there is a vocabulary, a language model.
struct Case {
  std::string name;
  int64_t batch = 0;
  int64_t steps = 0;                                // timed ones per process
  double momentum = 0, weight_decay = 0, clip = 0;  // of the update; clip: global norm, 0: none
  std::string arch = {};
  ResNetOptions::Stem stem = ResNetOptions::Stem::cifar;
  int64_t image_size = 0, classes = 0;
  int64_t vocabulary = 0, emsize = 0, nhid = 0, nlayers = 0, bptt = 0;
  float dropout = 0;

  bool is_text() const { return vocabulary > 0; }
  // What the table counts per second: images, or tokens.
  int64_t items() const { return is_text() ? batch * bptt : batch; }
};

const std::vector<Case>& all_cases();
Case find_case(const std::string& name, int64_t batch = 0);  // 0: its own; throws InputError

struct Options {
  int64_t threads = 0, rounds = 3, steps = 0, warmup = 2, batch = 0;
  std::string precision = "all", clock = "wall", device = "cpu";
  std::string json, python, python_new, data;
  int64_t learners = 4, bytes = 0, segment = 0;  // of collectives
  std::string collective, net = "100mbit,1ms";
  std::string arch = "resnet18", gradients, compress;  // of compress: where from, and how
  int64_t seed = 1;
  double step_ms = 0;
  bool torch = true, help = false, version = false;
};

double median(std::vector<double> values);
// Whether the processor's list of features holds this name, as Linux spells it.
bool cpu_has(const std::string& feature);
// "Intel(R) Xeon(R) Processor"
std::string cpu_name();
// CPU seconds that this process has used, all threads together.
double process_cpu_seconds();
// Seconds by wall clock, or used by this process, by --clock.
using Clock = double (*)();
Clock clock_of(const Options& o);
// GB/s at which `threads` threads copy from memory to memory at best, bytes counted once.
double copy_rate(int64_t threads, Clock clock);

// ---- processes (bench_process.cpp)

// A folder of our own that goes with its owner.
class ScratchFolder {
 public:
  ScratchFolder();
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Runs a program to its end and returns what it wrote on stdout. `environment` holds NAME=value to
// add; quiet: its stderr goes nowhere. Throws Error unless it exits with 0.
std::string run_process(const std::vector<std::string>& command,
                        const std::vector<std::string>& environment = {}, bool quiet = false);
// The last line of that output, which must be a JSON object.
nlohmann::json run_for_json(const std::vector<std::string>& command,
                            const std::vector<std::string>& environment = {});
// The folder of this program, and its own file.
std::string own_folder();
std::string own_path();

// A Python that has PyTorch.
struct Python {
  std::string path, torch_version;
};
// The first of --python, python3, /usr/bin/python3 that has it, and --python-new beside it.
std::vector<Python> find_pythons(const Options& o);

// What a child prints: {"ms": [...], "cpu_ms": [...], "gflop": ..., "rss_bytes": ..., "loss": ...}
nlohmann::json run_own_step(const Options& o, const Case& c, const std::string& precision);

// ---- children (bench_child.cpp): measure in this process, print one JSON line

void child_step(const Options& o, const Case& c);
void child_peak(const Options& o);
void child_loader(const Options& o);
void child_comm(const Options& o);  // bench_comm.cpp; under mpirun

// ---- what a user calls; the tables go to stdout

void compare_steps(const Options& o, const std::vector<Case>& cases);  // bench_steps.cpp
void measure_comm(const Options& o);                                   // bench_comm.cpp
void measure_overlap(const Options& o);                                // bench_overlap.cpp
void measure_compression(const Options& o);                            // bench_compress.cpp
void measure_loader(const Options& o);                                 // bench_tools.cpp
void measure_first_step(const Options& o);                             // bench_tools.cpp
void break_down_step(const Options& o, const Case& c);                 // bench_child.cpp
void print_tune_table(const Options& o);                               // bench_tune.cpp

}  // namespace heddle::bench
