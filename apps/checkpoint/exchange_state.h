// Saves and restores the state of the gradient exchange (LearnerOptimizer::State) in a
// checkpoint: what all ranks share is JSON in state.json, what differs between ranks is stored as
// tensors in each rank's file.
//
//   state["exchange"] = exchange_json(optimizer.state());
//   LearnerOptimizer::State s = parse_exchange(state.at("exchange"));
//   read_exchange_tensors(files, s);
#pragma once

#include <functional>
#include <nlohmann/json.hpp>

#include "core/safetensors.h"
#include "optim/learner_optimizer.h"

namespace heddle {

// The files that ranks have saved, which together may not fit into memory: read one at a time.
struct RankFiles {
  int count;
  std::function<SafetensorsFile(int)> open;  // number 0 to count - 1; throws InputError
};

nlohmann::ordered_json exchange_json(const LearnerOptimizer::State& state);
// Parses {"queries": …, "spent": […]}. Throws as parse_exchange().
RdpAccountant::State parse_account(const nlohmann::json& json);
// Parses exchange_json(), which lacks the tensors. Throws InputError, or an exception of
// nlohmann::json.
LearnerOptimizer::State parse_exchange(const nlohmann::json& json);

// Returns the tensors "plan.…", as copies.
NamedTensors exchange_tensors(const LearnerOptimizer::State& state);
// Reads the tensors from this rank's file; or, if the number of ranks has changed, from those of
// all saved ranks: then their measurements for the next plan are averaged, and the open window
// continues without its sums. Throws InputError.
void read_exchange_tensors(const RankFiles& files, LearnerOptimizer::State& state);

}  // namespace heddle
