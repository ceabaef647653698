// The outcome of a run: what TrainingLog has counted, the compression ratios, and the two JSON
// objects that report them, the last line of stdout (--json) and the summary in metrics.jsonl.
//
//   folder.metric(summary_line(result, store));
//   print(json_line(final_json(result, {{"valid_loss", 0.3}}, "tokens_per_s", seed, folder)));
#pragma once

#include <cmath>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "core/error.h"
#include "core/parameters.h"
#include "optim/learner_optimizer.h"

namespace heddle {

// Dense over compressed, of this rank's payloads or bytes sent, with hosts of those between hosts;
// 1 where nothing is compressed.
struct Ratios {
  double layers = 1;  // values of the compressed tensors, as papers report
  double values = 1;  // values of the whole model
  double wire = 1;    // bytes on the wire, including indices, scales and flags
  double run = 1;     // the same over the whole run, including its dense steps
};
// Returns the ratios of what this rank has sent so far.
Ratios ratios(const LearnerOptimizer& optimizer, const ParameterStore& store);

// The privacy that a run with --compress topagg has spent.
struct PrivacyResult {
  std::string unit;                        // whose data are protected, in words
  bool secret = true;                      // false: the noise can be repeated
  double epsilon = NAN, delta = 0;         // of the weights; epsilon is infinite without noise
  double sigma = 0, noise_multiplier = 0;  // of the noise: in votes, over the sensitivity
  double rate = 1;                         // probability of a unit's vote in a step
  int64_t queries = 0;                     // noisy sums revealed, in killed processes too
};
constexpr double kLargestEpsilon = 100;  // beyond it nothing is called private
// Returns "epsilon 3.15 at delta 1e-05 for an image, used or left out", or "NOT PRIVATE: …".
std::string privacy_text(const PrivacyResult& privacy);

struct TrainingResult {
  std::string status = "done";  // or "diverged", "stopped"
  int64_t epoch = 0, step = 0;  // completed
  double train_loss = NAN;      // mean over the last epoch
  double rate = NAN;            // samples or tokens per second, without validation
  double first_step_s = NAN;    // seconds from the program's start to the end of its first step
  int world_size = 1;
  // Bytes of rank 0 over the run; dense: what an uncompressed exchange would have sent.
  int64_t bytes_sent = 0, bytes_received = 0, bytes_dense = 0;
  // Hosts of an exchange in two levels, 0 in one; of bytes_sent, those of gradients between them.
  int64_t hosts = 0, bytes_between = 0;
  Ratios ratios;
  // Bytes of gradients per compressed step (per step in a run without compression): the mean over
  // the ranks, with hosts over what these send to each other, and the largest of any rank. Counted
  // in this process, once the run is done.
  double bytes_step_mean = 0, bytes_step_max = 0;
  int64_t rejected_buckets = 0;  // exchanges discarded for a rank's non-finite gradients
  // Clipping after the exchange: steps, and the sum of what it cut off the norm of the gradient.
  int64_t clipped_steps = 0;
  double clipped_norm = 0;
  std::optional<double> consensus_error;  // with --peers; at the last validation, NaN before it
  std::optional<PrivacyResult> privacy;
  double exposed_comm_s = 0;  // seconds of exchange that backward did not hide
};

// Returns 0 for done, 3 for diverged, 75 for stopped by a signal.
ExitCode exit_code(const TrainingResult& result);

// Returns the final JSON object: status and position, the program's `own` keys, and what every
// program reports about time, memory and exchange. `rate_key` names the rate.
nlohmann::ordered_json final_json(const TrainingResult& result, const nlohmann::ordered_json& own,
                                  const std::string& rate_key, int64_t seed,
                                  const std::string& run_folder);

// Returns {"summary": status, …, "layers": {name: elements}}, a line of metrics.jsonl.
nlohmann::ordered_json summary_line(const TrainingResult& result, const ParameterStore& store);
// Reads such a line back; what it lacks is 0, or NaN for a measurement.
TrainingResult parse_summary_line(const nlohmann::json& line);

}  // namespace heddle
