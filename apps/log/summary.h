// The outcome of a run: what TrainingLog has counted, the compression ratios, and the two JSON
// objects that report them, the last line of stdout (--json) and the summary in metrics.jsonl.
//
//   nlohmann::ordered_json json = begin_summary(result);
//   json["valid_loss"] = ...;                            // the program's own keys
//   end_summary(json, "tokens_per_s", result, seed, folder);
#pragma once

#include <cmath>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "core/error.h"
#include "core/parameters.h"
#include "optim/data_parallel.h"

namespace heddle {

// Dense over compressed, of this rank's payloads or bytes sent; 1 where nothing is compressed.
struct Ratios {
  double layers = 1;  // values of the compressed tensors, as papers print
  double values = 1;  // values of the whole model
  double wire = 1;    // bytes on the wire, including indices, scales and flags
  double run = 1;     // the same over the whole run, including its dense steps
};
Ratios ratios(const DataParallelOptimizer& optimizer, const ParameterStore& store);

struct TrainingResult {
  std::string status = "done";  // or "diverged", "stopped"
  int64_t epoch = 0, step = 0;  // completed
  double train_loss = NAN;      // mean over the last epoch
  double rate = NAN;            // samples or tokens per second, without validation
  double first_step_s = NAN;    // seconds from the program's start to the end of its first step
  int world_size = 1;
  // Bytes of rank 0 over the run; dense: what an uncompressed exchange would have sent.
  int64_t bytes_sent = 0, bytes_received = 0, bytes_dense = 0;
  Ratios ratios;
  // Bytes of gradients per compressed step (per step in a run without compression): the mean over
  // the ranks, and the largest of any rank. Counted in this process, once the run is done.
  double bytes_step_mean = 0, bytes_step_max = 0;
  int64_t rejected_buckets =
      0;  // exchanges discarded because some rank's gradients were not finite
  // Clipping after the exchange: steps, and the sum of what it cut off the norm of the gradient.
  int64_t clipped_steps = 0;
  double clipped_norm = 0;
  double exposed_comm_s = 0;  // seconds of exchange that backward did not hide
};

// 0 done, 3 diverged, 75 stopped by a signal.
ExitCode exit_code(const TrainingResult& result);

// The final JSON object: the keys with which every program begins, and, after the program's own,
// those with which every program ends.
nlohmann::ordered_json begin_summary(const TrainingResult& result);
void end_summary(nlohmann::ordered_json& summary, const std::string& rate_key,
                 const TrainingResult& result, int64_t seed, const std::string& run_folder);

// {"summary": status, …, "layers": {name: elements}}: the last line but one of metrics.jsonl.
nlohmann::ordered_json summary_line(const TrainingResult& result, const ParameterStore& store);

}  // namespace heddle
