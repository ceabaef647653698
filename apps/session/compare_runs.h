// Compares a saved run with this one for --resume: identity (network, data), compression, planning
// and configuration. Each comparison returns the first difference as text.
//
//   const std::string differs = difference(state.at("identity"), identity);
//   check(differs.empty(), path, ": belongs to another run: ", differs);
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "apps/cli/common_options.h"
#include "apps/log/progress.h"

namespace heddle {

// Returns the first key of `here` whose value differs in `there`, "arch: resnet20 there, resnet32
// here"; empty if all are equal.
std::string difference(const nlohmann::json& there, const nlohmann::ordered_json& here);

// Return the options that decide how gradients are compressed, and how settings vary by layer.
nlohmann::ordered_json compression_of(const CommonOptions& o);
nlohmann::ordered_json planning_of(const CommonOptions& o);

// Returns the first difference that makes saved residuals meaningless for this run. A different
// beta (see residual_scale()) or ramp does not. `there`: compression_of() for the saved run.
std::string compression_differs(const nlohmann::json& there, const CommonOptions& o);

// Returns the factor that rescales a saved residual for this run's settings: a residual holds a sum
// over --accumulate batches, times beta. `state` is the checkpoint's. Throws InputError.
double residual_scale(const nlohmann::json& state, const CommonOptions& o);

// Notes each key of config.toml that differs between the saved run and this one.
void note_changes(const std::string& there, const std::string& here, const Logger& note);

// Returns whether two config.toml files are equal apart from flags for what a run prints, its
// folder and --comm-timeout.
bool same_config(const std::string& there, const std::string& here);

}  // namespace heddle
