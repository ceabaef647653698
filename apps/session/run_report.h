// What a run leaves for people and viewers beside its metrics: TensorBoard's event file while it
// goes on, and report.html at its end.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "apps/cli/common_options.h"
#include "apps/log/run_folder.h"
#include "apps/log/training_log.h"
#include "core/parameters.h"

namespace heddle {

// Everything that metrics.jsonl is told from now on goes into an event file too, unless
// --no-tensorboard. The folder stays where it is from now on.
void begin_events(const CommonOptions& o, RunFolder& folder);

// The last line but one of metrics.jsonl: {"summary": status, …, "layers": {name: elements}}.
nlohmann::ordered_json summary_line(const TrainingResult& result, const ParameterStore& store);

// Writes report.html into the folder, unless --no-report, and says which files of the run are not
// complete. A report that cannot be written is worth a warning, and no reason for the run to fail.
void finish_report(const CommonOptions& o, RunFolder& folder, Progress& progress);

}  // namespace heddle
