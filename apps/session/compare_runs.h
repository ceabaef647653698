// Whether a saved run and this one are the same: identity (network, data), compression, planning
// and configuration, compared for --resume, each with the first difference in words.
//
//   const std::string differs = difference(state.at("identity"), identity);
//   check(differs.empty(), path, ": of another run: ", differs);
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "apps/cli/common_options.h"
#include "apps/log/progress.h"

namespace heddle {

// Returns the first of `here`'s keys with another value in `there`, "arch: resnet20 there, resnet32
// here"; empty where all are equal.
std::string difference(const nlohmann::json& there, const nlohmann::ordered_json& here);

// Return the options that decide how gradients are compressed, and how settings vary by layer.
nlohmann::ordered_json compression_of(const CommonOptions& o);
nlohmann::ordered_json planning_of(const CommonOptions& o);

// Returns the first difference that makes saved residuals meaningless for this run; beta is none
// (see residual_scale()), nor is a ramp. `there`: the compression_of() the saved run.
std::string compression_differs(const nlohmann::json& there, const CommonOptions& o);

// Returns the factor that rescales a saved residual for this run's settings: a residual holds a sum
// over --accumulate batches, times beta. `state` is the checkpoint's. Throws InputError.
double residual_scale(const nlohmann::json& state, const CommonOptions& o);

// Notes each key of config.toml that differs between the saved run and this one.
void note_changes(const std::string& there, const std::string& here, const Logger& note);

// Returns whether two config.toml differ in nothing but what a run prints, and where.
bool same_config(const std::string& there, const std::string& here);

}  // namespace heddle
