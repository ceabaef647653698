// The figures of a report as one JSON object, which report.js draws: curves thinned to some hundred
// points, layers by steps for the maps, means for the tables, one step of the trace. A figure that
// a run has no data for is null, and so is a number that is not finite. Numbers are rounded to
// seven significant digits.
//
//   const Json page = report_json({read_run("runs/a"), read_run("runs/b")}, 6000);
//   page["runs"][0]["curves"]["loss"]
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "apps/report/report_data.h"

namespace heddle {

// `cells`: how many cells a map may have, at least one column. Runs of the same name are told apart
// by their folders. Throws InputError for a trace that is none.
RunRecord::Json report_json(std::vector<RunRecord> runs, int64_t cells);

// Returns one whole step of the first rank from the trace of `run`: ranges by track and the arrows
// that follow buckets of gradients, in seconds from the step's begin; null without a trace.
RunRecord::Json timeline_json(const RunRecord& run);

// Returns `value` with seven significant digits, or null where it is not finite.
RunRecord::Json rounded(double value);

}  // namespace heddle
