// The files that a run writes from its first step on: the run folder with config.toml, run.json and
// TensorBoard's events, and the trace of --trace; and the progress on stderr.
//
//   RunFiles files = open_run(o, spec, arguments, learner, start);
//   begin_run(o, spec, files);              // once the checkpoint is restored
//   ... training ...
//   finish_trace(o, files, learner);
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "apps/cli/common_options.h"
#include "apps/log/progress.h"
#include "apps/log/run_folder.h"
#include "apps/session/learners.h"
#include "apps/session/resume.h"
#include "apps/session/training_state.h"
#include "core/files.h"

namespace heddle {

// All null on all ranks but the first.
struct RunFiles {
  std::unique_ptr<AtomicFile> trace;  // null without --trace
  std::unique_ptr<RunFolder> folder;
  std::unique_ptr<Progress> progress;
  std::string facts;  // run.json
};

// Creates the run folder on the first rank, or reopens it, without changing it, for a run that
// resumes from a checkpoint in it. Throws InputError for a folder that must not be written to,
// Error if another run is using it or has just left a newer checkpoint there.
RunFiles open_run(const CommonOptions& o, const RunSpec& spec,
                  const std::vector<std::string>& arguments, Learner& learner, const Start& start);

// Begins the run in its folder: writes config.toml and run.json, cuts metrics that are newer than
// the checkpoint. Throws Error.
void begin_run(const CommonOptions& o, const RunSpec& spec, RunFiles& files, bool resumes);

// Gathers the trace events of all ranks, and writes the trace on the first one. Collective; called
// once nothing else communicates any more.
void finish_trace(const CommonOptions& o, const RunFiles& files, Learner& learner);

}  // namespace heddle
