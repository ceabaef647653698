// Reduces runs to the figures of a report, one JSON object that report.js draws: curves thinned to
// a few hundred points, layers by steps for the maps, means for the tables, one step of the trace.
// A figure without data is null, and so is a number that is not finite. Numbers are rounded to
// seven significant digits.
//
//   const Json page = report_json({read_run("runs/a"), read_run("runs/b")}, 6000);
//   page["runs"][0]["curves"]["loss"]
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "apps/report/report_data.h"

namespace heddle {

// Returns the figures. `cells`: at most so many cells in a map, which has at least one column, and
// a third as many points in a curve, from 40 to 1000. Of many runs (kMostDetailed) there are only
// curves and tables. Runs of the same name are named by their folders.
constexpr int64_t kMostDetailed = 8;
RunRecord::Json report_json(const std::vector<RunRecord>& runs, int64_t cells);

// Returns at most `most` evenly spaced records, the last among them.
std::vector<const RunRecord::Json*> sampled(const std::vector<RunRecord::Json>& all, int64_t most);

// Return a run's evaluations, evenly spaced and at most `points`; its samples of text, at most one
// for 500 cells; and its mistakes with the images of each class, of many classes the commonest
// mistakes only.
RunRecord::Json scores_json(const RunRecord& run, int64_t points);
RunRecord::Json texts_json(const RunRecord& run, int64_t cells);
RunRecord::Json mistakes_json(const RunRecord& run);

// Returns `value` with seven significant digits, or null if it is not finite.
RunRecord::Json rounded(double value);

}  // namespace heddle
