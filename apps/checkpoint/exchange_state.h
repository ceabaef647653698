// What a checkpoint keeps of the gradients' exchange (DataParallelOptimizer::State): what all ranks
// share as JSON in state.json, what a rank has for itself as tensors of its file.
//
//   state["exchange"] = exchange_json(optimizer.state());
//   DataParallelOptimizer::State s = parse_exchange(state.at("exchange"));
//   read_exchange_tensors(files, s);
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/safetensors.h"
#include "optim/data_parallel.h"

namespace heddle {

nlohmann::ordered_json exchange_json(const DataParallelOptimizer::State& state);
// Without the tensors. Throws InputError, or what nlohmann::json throws, for anything else.
DataParallelOptimizer::State parse_exchange(const nlohmann::json& json);

// "plan.…": copies, which nobody changes.
NamedTensors exchange_tensors(const DataParallelOptimizer::State& state);
// From this rank's file; or, when the number of ranks has changed, from those of all that were:
// then what they have found out for the next plan is averaged, and the window that was open goes on
// without what it had seen.
void read_exchange_tensors(const std::vector<SafetensorsFile>& files,
                           DataParallelOptimizer::State& state);

// For numbers that must come back bit for bit: files of weights know no doubles.
Tensor pack_doubles(const std::vector<double>& values);    // i64 (n)
std::vector<double> unpack_doubles(const Tensor& packed);  // throws InputError for another type

}  // namespace heddle
