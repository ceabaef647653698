// The figures of a report. Curves and bars compare runs on one picture; maps, meters and timelines
// are of one run. Each is empty where the run has nothing of the kind.
#pragma once

#include <string>
#include <vector>

#include "apps/report/report_data.h"

namespace heddle {

// Over the run: loss, the score of validations, learning rate, bytes of a step, and for several
// runs the loss over time and over bytes sent.
std::string draw_curves(const std::vector<RunRecord>& runs);
// What a step's time goes into: one bar for the thread that computes, one for that which exchanges.
std::string draw_breakdown(const std::vector<RunRecord>& runs);

// For each layer, what a dense exchange would have sent and what was sent.
std::string draw_layer_bytes(const RunRecord& run, int colour);
// The plans: layers by steps, how much finer or coarser than the uniform setting.
// `cells`: about so many at most.
std::string draw_plans(const RunRecord& run, int64_t cells);
// The last choice of --compress auto: each bucket's exchange both ways, and which was chosen.
std::string draw_choices(const RunRecord& run);
// Residuals over gradients, layers by steps, and the quality meter's means over its looks.
std::string draw_residuals(const RunRecord& run, int64_t cells);
std::string draw_quality(const RunRecord& run);
// One step of the first rank, from the run's trace: what ran when, and arrows that follow
// gradients.
std::string draw_timeline(const RunRecord& run);

}  // namespace heddle
