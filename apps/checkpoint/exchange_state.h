// The state of the gradients' exchange (DataParallelOptimizer::State) in a checkpoint: what all
// ranks share is JSON in state.json, what differs between ranks is tensors of each rank's file.
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
// Parses it, without the tensors. Throws InputError, or what nlohmann::json throws.
DataParallelOptimizer::State parse_exchange(const nlohmann::json& json);

// Returns the tensors "plan.…", as copies.
NamedTensors exchange_tensors(const DataParallelOptimizer::State& state);
// Reads the tensors from this rank's file; or, if the number of ranks has changed, from those of
// all saved ranks: then their measurements for the next plan are averaged, and the window that was
// open continues without its sums.
void read_exchange_tensors(const std::vector<SafetensorsFile>& files,
                           DataParallelOptimizer::State& state);

// Packs doubles bit for bit into a type that safetensors files of this project hold.
Tensor pack_doubles(const std::vector<double>& values);    // i64 (n)
std::vector<double> unpack_doubles(const Tensor& packed);  // throws InputError for another type

}  // namespace heddle
