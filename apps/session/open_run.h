// The files that a run writes from its first step on: the run folder with config.toml, run.json and
// TensorBoard's events, and the trace of --trace.
//
//   RunFiles files = open_run(o, config, arguments, context, checkpoint);   // on the first rank
//   ... training ...
//   finish_trace(o, files, context, comm);                                  // on all ranks
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/checkpoint/checkpoint.h"
#include "apps/cli/common_options.h"
#include "apps/log/run_folder.h"
#include "comm/communicator.h"
#include "core/context.h"
#include "core/files.h"

namespace heddle {

struct RunFiles {
  std::unique_ptr<AtomicFile> trace;  // null without --trace
  std::unique_ptr<RunFolder> folder;
};

// Creates the run folder, or reopens it for a run that resumes from a checkpoint in it, and writes
// `config` as config.toml, and run.json. Throws InputError for a folder that must not be written
// to, Error where another run is in it or has just left a newer checkpoint there.
RunFiles open_run(const CommonOptions& o, const std::string& config,
                  const std::vector<std::string>& arguments, Context& context,
                  const std::optional<Checkpoint>& checkpoint);

// Gathers what all ranks have recorded, and writes the trace on the first one. Collective; to be
// called when nothing else communicates any more. `files` is empty on the other ranks.
void finish_trace(const CommonOptions& o, const RunFiles& files, Context& context,
                  Communicator& comm);

}  // namespace heddle
